import assert from "node:assert/strict";
import { test } from "node:test";
import { outages, withOutages } from "../src/logic/outages";
import { incident } from "./samples";

const RUNS = { ended_at: null, iterations_per_second: 1, state: "running" as const };
const spans = (...of: Parameters<typeof outages>) => outages(...of).map(({ from, to }) => ({ from, to }));
const none = { since: null, detected: null, decided: null, captured: null, restarted: null, first_step: null };
const hung = incident({ timeline: { ...none, since: 100, detected: 111, restarted: 112, first_step: 113.5 }, closed_at: 114 });

test("an outage is from the last progress to the first new step, and goes on while no step completes", () => {
  assert.deepEqual(spans([hung], RUNS, 500), [{ from: 100, to: 113.5 }]);
  const open = incident({ timeline: { ...none, since: 490, detected: 490 } });
  assert.deepEqual(spans([open, hung], { ...RUNS, iterations_per_second: 0 }, 500), [{ from: 100, to: 113.5 }, { from: 490, to: 500 }]);
  assert.deepEqual(spans([open], RUNS, 500), [], "steps are measured meanwhile");
  assert.deepEqual(spans([{ ...open, closed_at: 495 }], { ...RUNS, ended_at: 495 }, 500), [{ from: 490, to: 495 }], "the job ended with it");
  assert.deepEqual(spans([{ ...open, closed_at: 495 }], RUNS, 500), [], "the ranks went on by themselves");
});

test("nothing stood still in a suspicion that was not confirmed, nor before an ordered restart", () => {
  assert.deepEqual(spans([{ ...hung, confirmed: false }], RUNS, 500), []);
  assert.deepEqual(spans([{ ...hung, kind: "ordered" }], RUNS, 500), [{ from: 112, to: 113.5 }]);
});

test("in a suspicion that goes on no step completes from the last progress on, unless steps are measured", () => {
  const suspected = incident({ confirmed: false, timeline: { ...none, since: 480, detected: 484 } });
  assert.deepEqual(spans([suspected], { ...RUNS, iterations_per_second: 0 }, 500), [{ from: 480, to: 500 }]);
  const { time, values } = withOutages([465, 480, 484, 500], [1, 1, 0.8, 0], [{ from: 480, to: 500 }]);
  assert.deepEqual(time.map(Math.round), [465, 480, 480, 500]);
  assert.deepEqual(values, [1, 1, 0, 0], "an edge, not a slope");
  assert.deepEqual(spans([suspected], RUNS, 500), []);
});

test("the speed of an outage is 0, however short it is beside the points", () => {
  const { time, values } = withOutages([60, 75, 90, 105, 120, 135], [1, 1, 1, 0.9, 0.95, 1], [{ from: 100, to: 113.5 }]);
  assert.deepEqual(time.map((at) => Math.round(at * 10) / 10), [60, 75, 90, 100, 100, 113.5, 113.5, 120, 135]);
  assert.deepEqual(values, [1, 1, 1, 1, 0, 0, 0.95, 0.95, 1]);
  assert.ok(time.every((at, i) => i === 0 || at > time[i - 1]!));
});

test("the line goes on between outages that follow one another", () => {
  const { values } = withOutages([90, 110, 125, 140], [1, null, 1.1, 1.2], [{ from: 100, to: 103 }, { from: 128, to: 130 }]);
  assert.deepEqual(values, [1, 1, 0, 0, 1.1, 1.1, 1.1, 0, 0, 1.2, 1.2]);
});

test("an outage that goes on is the end of the line", () => {
  const { time, values } = withOutages([60, 75, 90], [1, 1, 0], [{ from: 80, to: 90 }]);
  assert.deepEqual([time.at(-1), values.at(-1)], [90, 0]);
});

test("a line without outages is the same, and one without points remains empty", () => {
  const [time, values] = [[1, 2], [3, 4]];
  assert.equal(withOutages(time, values, [{ from: -5, to: 0 }]).time, time);
  assert.deepEqual(withOutages([], [], [{ from: 1, to: 2 }]).time, []);
});

test("between outages without a point the speed is that of the steps which the incidents name", () => {
  const crash = (since: number, facts: object) => incident({ timeline: { ...none, since, restarted: since + 1, first_step: since + 2 }, closed_at: since + 2, ...facts });
  const all = outages([crash(200, { furthest_iteration: 120, steps_lost: 3 }), crash(250, { furthest_iteration: 166, steps_lost: 5 })], RUNS, 500);
  assert.deepEqual(all.map(({ before, after }) => [before, after]), [[120, 118], [166, 162]]);
  assert.deepEqual(withOutages([150, 195, 300], [1, 1, 1], all).values, [1, 1, 1, 0, 0, 1, 1, 0, 0, 1, 1]);
  const unknown = withOutages([150, 195, 300], [1, 1, 1], all.map(({ from, to }) => ({ from, to }))).values;
  assert.deepEqual(unknown, [1, 1, 1, 0, 0, null, 0, 0, 1, 1], "not 0");
});
