import assert from "node:assert/strict";
import { test } from "node:test";
import type { JobSummary } from "../src/api/types";
import { clock } from "../src/logic/text";
import { countdown, isTroubled, nextText, passed, rowOf } from "../src/logic/verdict";

const plain = (text: string) => text.replaceAll("\u2009", " ");
const hung = { since: 100, detected: 110, ended_at: null, idle: 4, lost: { seconds: 2, since: 100, gpus: 4, steps: null }, next: { text: "restart in", due: 161 } } as JobSummary;

test("the row has since when, who is idle, what is lost, and what follows", () => {
  assert.deepEqual(rowOf(hung, 118).map(plain), [`since ${clock(100, 118)} (18 s)`, "4 ranks idle", "1.3 GPU-minutes lost", "restart in 0:43"]);
  assert.deepEqual(rowOf({ ...hung, since: null, idle: 0, lost: null, next: null }, 118), []);
  assert.deepEqual(rowOf({ ...hung, ended_at: 100, idle: 0, next: null, lost: { seconds: 60, since: null, gpus: 1, steps: 3 } }, 118).map(plain), [`at ${clock(100, 118)} (18 s ago)`, "1.0 GPU-minutes lost"]);
});

test("the clock runs from the detection to what is due, and no further", () => {
  assert.equal(passed(hung, 135.5), 0.5);
  assert.equal(passed(hung, 500), 1);
  assert.equal(passed({ ...hung, next: { text: "stopping", due: null } }, 120), null);
  assert.equal(nextText({ next: { text: "stopping", due: null } }, 120), "stopping");
  assert.deepEqual([countdown(0.2), countdown(-5), countdown(725)], ["0:01", "0:00", "12:05"]);
});

test("a job is in trouble by its tone alone", () => {
  assert.deepEqual((["bad", "waits", "warns", "calm", "over"] as const).filter((tone) => isTroubled({ tone })), ["bad", "waits", "warns"]);
});
