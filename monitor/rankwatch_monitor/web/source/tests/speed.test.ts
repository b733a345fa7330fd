import assert from "node:assert/strict";
import { test } from "node:test";
import type { JobSummary } from "../src/api/types";
import { addSample, samplesOf } from "../src/live/samples";
import { speedOf, Steps } from "../src/logic/speed";

const job = (facts: Partial<JobSummary>) => ({ state: "running", iterations_per_second: 75, ...facts }) as JobSummary;

/** Steps of half a second each, seen every second. */
function steady(until: number): Steps {
  const steps = new Steps();
  for (let at = 0; at <= until; at++) steps.note(2 * at, at);
  return steps;
}

test("the monitor's own figure counts, also where it is unknown", () => {
  assert.equal(speedOf(job({ steps_per_second: 1.5 }), steady(60), 60), 1.5);
  assert.equal(speedOf(job({ steps_per_second: 0, state: "running" }), steady(60), 60), 0);
  assert.equal(speedOf(job({ steps_per_second: null }), steady(60), 60), null);
});

test("a job that is hung, lost or over completes no step", () => {
  for (const state of ["hung", "lost", "finished", "failed", "stopped"] as const)
    assert.equal(speedOf(job({ state, iterations_per_second: 1.69 }), steady(60), 61), 0, state);
});

test("speed is zero once no step completed for ten seconds, or for five of its steps", () => {
  assert.equal(speedOf(job({}), steady(60), 69), 2);
  assert.equal(speedOf(job({}), steady(60), 71), 0);
  const slow = new Steps();
  for (let i = 0; i <= 10; i++) slow.note(i, 30 * i);
  assert.equal(slow.rate(300 + 149), 1 / 30);
  assert.equal(slow.rate(300 + 151), 0);
});

test("long steps are no pause where the page was opened within one", () => {
  const steps = new Steps();
  steps.note(7, 100);
  assert.equal(speedOf(job({ iterations_per_second: 1 / 30 }), steps, 130), 1 / 30);
  assert.equal(speedOf(job({ iterations_per_second: 1 / 30 }), steps, 251), 0);
  assert.equal(speedOf(job({ iterations_per_second: null }), steps, 500), null);
});

test("steps that arrive at once after a pause are no spike", () => {
  const steps = steady(60);
  steps.note(240, 90);
  steps.note(242, 90.5);
  assert.ok(steps.rate(91)! <= 4.1, String(steps.rate(91)));
  assert.equal(speedOf(job({}), steps, 91), steps.rate(91));
});

test("a restart from a checkpoint is no negative speed", () => {
  const steps = steady(60);
  steps.note(100, 70);
  assert.equal(steps.rate(70.5), null);
  steps.note(104, 72);
  assert.equal(steps.rate(72), 2);
});

test("before two steps were seen the monitor's estimate counts", () => {
  assert.equal(speedOf(job({}), new Steps(), 5), 75);
});

test("times without a sample are a gap in the line", () => {
  const samples = samplesOf("gaps");
  for (const [at, value] of [[100, 2], [101, 2], [160, 3], [160.5, 9]] as const) addSample(samples, at, value);
  assert.deepEqual(samples, { time: [100, 101, 102, 160], rate: [2, 2, null, 3] });
});
