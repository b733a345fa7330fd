import assert from "node:assert/strict";
import { test } from "node:test";
import type { RankReport, RankState } from "../src/api/types";
import { asOfNow, openSection, sectionWords, tally, timeIn, worstFirst } from "../src/logic/severity";
import { clock } from "../src/logic/text";

const report = (rank: number, iteration: number | null, open_sections: Record<string, number> = {}): RankReport => ({
  rank, local_rank: rank, host: "a", pid: 1, state: "running", iteration, progress: iteration, function: null, scores: {}, heartbeat_age: 0, report_age: 0, open_sections, idle: null, reason: "",
});

test("culprits come first, then the worst states, then the furthest behind", () => {
  const states: RankState[] = ["waiting", "running", "hung", "dead", "waiting"];
  const reports = [report(0, 9), report(1, 9), report(2, 8), report(3, 9), report(4, 7)];
  assert.deepEqual(worstFirst(states, reports, new Set([2])), [2, 3, 4, 0, 1]);
});

test("slow ranks stand below states of trouble and above all others, the costliest first", () => {
  const states: RankState[] = ["running", "dead", "unseen", "running", "running", "waiting"];
  assert.deepEqual(worstFirst(states, [], new Set(), [4, 3]), [1, 4, 3, 2, 5, 0]);
  assert.deepEqual(worstFirst(["running", "hung"], [], new Set(), [1]), [1, 0], "a slow rank that hangs keeps its place");
});

test("ranks that run keep their rows, whichever of them has reported last", () => {
  assert.deepEqual(worstFirst(["running", "running", "running"], [report(0, 9), report(1, 7), report(2, 8)], new Set()), [0, 1, 2]);
});

test("ranks without a report keep their place by number", () => {
  assert.deepEqual(worstFirst(["running", "running"], [], new Set()), [0, 1]);
});

test("states are counted by the legend that came with them", () => {
  const counts = tally(Uint8Array.of(1, 1, 0, 1), ["unseen", "running"]);
  assert.deepEqual([...counts], [["unseen", 1], ["running", 3]]);
});

test("the section shown is the one open longest", () => {
  assert.deepEqual(openSection(report(0, 1, { backward: 3, step: 4.5 })), { name: "step", seconds: 4.5 });
  assert.equal(openSection(report(0, 1)), null);
  assert.equal(openSection(undefined), null);
});

test("ages grow while nothing moves; a silent rank does not report either", () => {
  const hung = asOfNow({ ...report(0, 5, { step: 11 }), state: "hung", heartbeat_age: 12 }, 1.5);
  assert.deepEqual([hung.open_sections, hung.heartbeat_age, hung.report_age], [{ step: 12.5 }, 13.5, 0]);
  assert.equal(asOfNow({ ...report(0, 5), state: "silent", report_age: 60 }, 1.5).report_age, 61.5);
  const running = report(0, 5, { step: 0.2 });
  assert.equal(asOfNow(running, 1.5), running);
});

test("the section of a rank has the function in which it hangs", () => {
  const inside = { ...report(0, 9, { step: 3 }), function: "load_batch" };
  assert.equal(sectionWords(inside), "step › load_batch");
  assert.equal(sectionWords({ ...inside, function: null }), "step");
  assert.equal(sectionWords({ ...inside, open_sections: {} }), "load_batch");
  assert.equal(sectionWords(report(0, 9)), "–");
  assert.equal(sectionWords({ ...report(0, 9), idle: 2 }), "outside");
});

test("how long a silent rank has been in its section is unknown since it was last heard", () => {
  const inside = { ...report(0, 9, { step: 25 }), report_age: 25 };
  assert.equal(timeIn([inside, report(1, 9, { step: 30 })], 1000), "25.0\u2009s–30.0\u2009s");
  assert.equal(timeIn([{ ...inside, state: "silent" }], 1000), `unknown since ${clock(975, 1000)}`);
  assert.equal(timeIn([{ ...inside, state: "silent", open_sections: {} }], 1000), "–");
});

test("a process that has ended is in no section: when it ended stands there instead", () => {
  const dead = { ...report(0, 9, { step: 25 }), state: "dead" as const, report_age: 8 };
  assert.deepEqual([timeIn([dead], 1000, 992), timeIn([dead], 1000)], [`exited ${clock(992, 1000)}`, "–"]);
});
