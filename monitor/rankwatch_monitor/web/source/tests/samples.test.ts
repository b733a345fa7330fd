import assert from "node:assert/strict";
import { test } from "node:test";
import { addSample, samplesOf } from "../src/live/samples";

test("times without a sample are a gap in the line", () => {
  const samples = samplesOf("gaps");
  for (const [at, value] of [[100, 2], [101, 2], [160, 3], [160.5, 9]] as const) addSample(samples, at, value);
  assert.deepEqual(samples, { time: [100, 101, 102, 160], rate: [2, 2, null, 3] });
});
