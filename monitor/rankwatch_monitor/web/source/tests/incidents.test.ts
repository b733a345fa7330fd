import assert from "node:assert/strict";
import { test } from "node:test";
import type { Incident, JobSummary } from "../src/api/types";
import { doing, focus, hosts, merged, otherRanks, rankTime, culpritRanks } from "../src/logic/incidents";
import { incidentAddress, parse } from "../src/logic/route";
import { incident as some } from "./samples";

const incident = (id: string, opened_at: number, closed_at: number | null, confirmed = true): Incident =>
  some({ id, opened_at, closed_at, confirmed, phase: closed_at === null ? "capturing" : "closed" });
const job = { state: "running" } as JobSummary;

test("a requested incident comes first, then the open one, then closed ones", () => {
  const list = [incident("c", 300, 310), incident("b", 200, null), incident("a", 100, 110)];
  assert.equal(focus(list, null, job, 400)?.id, "b");
  assert.equal(focus(list, "a", job, 400)?.id, "a");
  assert.equal(focus(list, "nope", job, 400), null);
});

test("the last incident is shown for an hour, of a failed job without limit", () => {
  const list = [incident("a", 100, 110)];
  assert.equal(focus(list, null, job, 200)?.id, "a");
  assert.equal(focus(list, null, job, 100_000), null);
  assert.equal(focus(list, null, { ...job, state: "failed" }, 100_000)?.id, "a");
});

test("an open suspicion is shown, a resolved one is not", () => {
  const list = [incident("b", 200, 230, false), incident("a", 100, 110)];
  assert.equal(focus(list, null, job, 240)?.id, "a");
  assert.equal(focus(list, "b", job, 240)?.id, "b");
  assert.equal(focus(list.slice(0, 1), null, job, 240), null);
  assert.equal(focus([incident("b", 200, null, false)], null, job, 240)?.id, "b");
});

test("a changed incident replaces its old version, newest first", () => {
  const list = merged([incident("b", 200, null), incident("a", 100, 110)], incident("b", 200, 230));
  assert.deepEqual(list.map(({ id, closed_at }) => [id, closed_at]), [["b", 230], ["a", 110]]);
});

test("culprits are listed as runs of ranks", () => {
  const named = (rank: number) => ({ rank, host: "n1", class: "dead", reason: "" });
  assert.equal(culpritRanks([]), "none identified");
  assert.equal(culpritRanks([named(2)]), "rank 2");
  assert.equal(culpritRanks([8, 9, 10].map(named)), "ranks 8–10");
  assert.deepEqual(hosts([8, 9].map(named)), ["n1"]);
});

test("other ranks are those besides the culprits, and no more than there are", () => {
  const culprits = [{ rank: 2, host: "n1", class: "behind", reason: "" }];
  assert.equal(otherRanks(some({ culprits, affected: [0, 1, 2, 3] }), 4), 3);
  assert.equal(otherRanks(some({ culprits, affected: [0, 1, 3, 4] }), 4), 3);
  assert.equal(otherRanks(some({ culprits, affected: [2] }), 4), 0);
});

test("the current activity is described while the incident is open", () => {
  assert.equal(doing(incident("a", 1, null)), "capturing stacks");
  assert.equal(doing({ ...incident("a", 1, null), phase: "acting", action: "save_and_stop" }), "save and stop");
  assert.equal(doing({ ...incident("a", 1, null, false), phase: "confirming" }), "confirming that no rank makes progress");
  assert.equal(doing(incident("a", 1, 2)), "");
});

test("rank time is shown in a fitting unit", () => {
  assert.equal(rankTime(10, 4), "40 rank-seconds");
  assert.equal(rankTime(21, 4), "1.4 rank-minutes");
  assert.equal(rankTime(60, 16_384), "273 rank-hours");
});

test("addresses survive any id", () => {
  const plain = { view: "job", tab: "overview", sight: {}, incident: null };
  assert.deepEqual(parse(incidentAddress("a/b c%", "i#1")), { ...plain, job: "a/b c%", incident: "i#1" });
  assert.deepEqual(parse("#/"), { view: "fleet" });
  assert.deepEqual(parse("#/jobs/x"), { ...plain, job: "x" });
  assert.deepEqual(parse("#/jobs/50%"), { ...plain, job: "50%" });
});
