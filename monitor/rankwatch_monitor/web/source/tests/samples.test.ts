import assert from "node:assert/strict";
import { test } from "node:test";
import type { JobSummary, Trends } from "../src/api/types";
import { addSample, sample, samplesOf, seed } from "../src/live/samples";

test("times without a sample are a gap in the line", () => {
  const samples = samplesOf("gaps");
  for (const [at, value] of [[100, 2], [101, 2], [160, 3], [160.5, 9]] as const) addSample(samples, at, value);
  assert.deepEqual(samples, { time: [100, 101, 102, 160], rate: [2, 2, null, 3] });
});

const trends = (points: [at: number, speed: number | null][]): Trends => ({
  at: points.map(([at]) => at), speed: points.map(([, speed]) => speed), goodput: [], goodput_window: [], scores: {},
});

test("the stored points stand before the samples, and a page that has just opened has an hour", () => {
  const samples = samplesOf("seeded");
  addSample(samples, 1000, 4);
  addSample(samples, 1001, 5);
  seed(samples, trends([[900, 1], [915, 2], [985, 3], [999, 9]]));
  assert.deepEqual(samples, { time: [900, 915, 916, 985, 1000, 1001], rate: [1, 2, null, 3, 4, 5] });
  seed(samples, trends([[900, 1], [915, 2], [985, 3], [999, 9]]));
  assert.equal(samples.time.length, 6, "the same points again change nothing");
});

test("stored points fill the time in which the page was not connected, and what is unknown now remains so", () => {
  const samples = samplesOf("cut off");
  for (const [at, value] of [[100, 2], [101, null], [160, 3], [161, null]] as const) addSample(samples, at, value);
  seed(samples, trends([[115, 7], [130, null], [145, 8], [162, 9]]));
  assert.deepEqual(samples, { time: [100, 115, 145, 160, 161], rate: [2, 7, 8, 3, null] });
});

test("an hour of samples is kept", () => {
  const samples = samplesOf("long");
  for (let at = 0; at <= 4000; at++) addSample(samples, at, 1);
  assert.deepEqual([samples.time[0], samples.time.length], [400, 3601]);
});

test("a job that has ended has no speed", () => {
  const job = { id: "over", ended_at: 1000, iterations_per_second: 0 } as JobSummary;
  sample(job);
  assert.deepEqual(samplesOf("over").time, []);
  sample({ ...job, ended_at: null });
  assert.equal(samplesOf("over").time.length, 1);
});

test("the speed of a lost job is not known, whatever the monitor counts it as", () => {
  const job = { id: "lost", ended_at: null, state: "lost", iterations_per_second: 0 } as JobSummary;
  sample(job);
  assert.deepEqual(samplesOf("lost").rate, [null]);
  sample({ ...job, id: "held up", state: "hung" });
  assert.deepEqual(samplesOf("held up").rate, [0]);
});
