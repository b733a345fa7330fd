import assert from "node:assert/strict";
import { test } from "node:test";
import type { Goodput, JobSummary, LedgerEntry } from "../src/api/types";
import { asOfNow, byStage, goodputNotes, inWords, isYoung, slices, spent, stages, windowDiffers, windowName } from "../src/logic/goodput";
import { clock } from "../src/logic/text";
import { course, incident } from "./samples";

const plain = (text: string) => text.replaceAll("\u2009", " ");

test("slices are the non-empty buckets in order, and fill the bar", () => {
  const found = slices({ restart: 20, hang: 10, productive: 70, stalled: 0, down: 0.01 });
  assert.deepEqual(found.map((slice) => slice.bucket), ["productive", "hang", "restart"]);
  assert.ok(Math.abs(found.reduce((sum, slice) => sum + slice.share, 0) - 1) < 0.001);
});

test("goodput of a lost job is known until it was last heard, with what is at risk; what a finished one may not have saved stands elsewhere", () => {
  const notes = ["13.4 % lost waiting for rank 21", "up to 49 steps at risk"];
  assert.equal(goodputNotes({ state: "lost", last_heard: 60, goodput_notes: notes.slice(1), unsaved: "" }, 100), `until ${clock(60, 100)}, up to 49 steps at risk`);
  assert.equal(goodputNotes({ state: "restarting", last_heard: null, goodput_notes: notes, unsaved: "" }, 100), notes.join(", "));
  assert.equal(goodputNotes({ state: "finished", last_heard: null, goodput_notes: [notes[0]!, "29 steps"], unsaved: "29 steps" }, 100), notes[0]);
});

test("an unknown bucket is shown by its own name, last", () => {
  const [first, last] = slices({ waiting_for_data: 50, productive: 50 });
  assert.equal(first!.bucket, "productive");
  assert.equal(last!.name, "waiting for data");
});

test("a job without time has no slices", () => {
  assert.deepEqual(slices({ productive: 0, startup: 0 }), []);
});

test("the bar has a text for screen readers", () => {
  assert.equal(plain(inWords(slices({ productive: 90, hang: 10 }))), "kept steps 90.0 %; hang 10.0 %");
});

test("the window is an hour once the run is that old", () => {
  assert.equal(windowName(3570), "Last hour");
  assert.equal(plain(windowName(600)), "Last 10 min");
});

test("the sliding window is shown once the run is longer than it", () => {
  const run = (productive: number, seconds: number): Goodput => ({ ...spentSo, window: { seconds, ratio: 1 }, buckets: { productive } });
  assert.equal(windowDiffers(run(1200, 1200)), false);
  assert.equal(windowDiffers(run(0, 0)), false);
  assert.equal(windowDiffers(run(7200, 3600)), true);
});

test("a suspicion is confirmed in a stage of its own, which the table has only then", () => {
  const going = { phases: course(100, { detect: 111, confirm: null }), cost: { seconds: 0, since: 100 } };
  const suspected = incident({ ...going, confirmed: false, phase: "confirming", closed_at: null });
  const job = { ...summary, state: "suspected", started_at: 0 } as JobSummary;
  const answer: Goodput = { ...spentSo, ratio: 0.9, window: { seconds: 115, ratio: 0.9 }, buckets: { productive: 100, hang: 11, handling: 4 }, incidents: [{ ...entry, ...going }] };
  const found = spent(job, answer, [suspected], 120);
  assert.deepEqual([found.buckets.Confirm, found.apart, found.columns], [9, [], ["Detect", "Confirm"]]);
  assert.deepEqual(spent(job, { ...answer, incidents: [entry] }, [], 120).columns, ["Detect", "Restart", "Recover"]);
});

const spentSo: Goodput = { ratio: 1, waited_for: "", notes: [], seconds: 0, window: { seconds: 0, ratio: 1 }, buckets: {}, incidents: [] };
const summary = { ended_at: null, last_heard: null, goodput: 0.9 };
const entry: LedgerEntry = {
  id: "i", kind: "section_overrun", opened_at: 110, steps_lost: 3, outcome: "", lost_steps_s: null,
  phases: course(100, { detect: 111, restart: 112, recover: 113.5 }), cost: { seconds: 13.5, since: null },
};

test("the time of incidents has the names and the seconds of their stages", () => {
  const { buckets, apart } = byStage({ productive: 80, hang: 11, handling: 1, restart: 1.5 }, [stages(entry, undefined, 500)]);
  assert.deepEqual([slices(buckets).map(({ name, seconds }) => [name, seconds]), apart], [[["kept steps", 80], ["Detect", 11], ["Restart", 1], ["Recover", 1.5]], []]);
});

test("an entry that is over has its stages, although the incident was read while it was open", () => {
  const going = { phases: course(100, { detect: 111, capture: null }), cost: { seconds: 0, since: 100 } };
  const open = incident({ ...going, phase: "capturing", closed_at: null });
  assert.deepEqual(Object.keys(stages(entry, open, 500)), ["Detect", "Restart", "Recover"]);
  assert.deepEqual(stages({ ...entry, ...going }, open, 114).Capture, { seconds: 3, open: true });
});

test("time that is not that of the stages has a name of its own", () => {
  const { buckets, apart } = byStage({ productive: 80, hang: 4, handling: 1, restart: 19 }, [stages(entry, undefined, 500)]);
  assert.deepEqual([slices(buckets).map(({ name }) => name), apart], [["kept steps", "hang", "Restart", "restarts"], ["hang", "restarts"]]);
});

test("a stage that the monitor counts in another bucket makes no difference where all seconds are the same", () => {
  const logged = { phases: course(100, { detect: 112, capture: 117, unresolved: null }), cost: { seconds: 0, since: 100 } };
  const { buckets, apart } = byStage({ productive: 80, hang: 25 }, [stages({ ...entry, ...logged }, undefined, 125)]);
  assert.deepEqual([buckets, apart], [{ productive: 80, Detect: 12, Unresolved: 8, Capture: 5 }, []]);
});

test("what has passed since the answer belongs to the stage that goes on", () => {
  const crash = { phases: course(100, { restart: null }), cost: { seconds: 0, since: 100 } };
  const taken = stages({ ...entry, ...crash }, undefined, 108.5);
  assert.deepEqual(taken.Restart, { seconds: 8.5, open: true });
  const now = asOfNow({ productive: 100, handling: 8 }, [taken], 108.5);
  assert.deepEqual(byStage(now, [taken]), { buckets: { productive: 100, Restart: 8.5 }, apart: [] });
  assert.deepEqual(asOfNow({ productive: 100 }, [], 108.5), { productive: 100 });
});

test("a run younger than an hour has no last hour", () => {
  assert.equal(isYoung({ started_at: 0, ended_at: null }, 900), true);
  assert.equal(isYoung({ started_at: 0, ended_at: null }, 7200), false);
  assert.equal(isYoung({ started_at: 0, ended_at: 900 }, 7200), true);
});

test("waiting for a slow rank names the rank, and does not count for goodput", () => {
  const buckets = { productive: 85, waiting: 13, startup: 2 };
  assert.equal(plain(inWords(slices(buckets, "rank 21"))), "kept steps, not waiting 85.0 %; waiting for rank 21 13.0 %; start-up 2.0 %");
});
