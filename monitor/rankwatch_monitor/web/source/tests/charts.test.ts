import assert from "node:assert/strict";
import { test } from "node:test";
import { stacked, stepChart } from "../src/logic/charts";

const sample = (at: number, parts: Record<string, number>) => ({ at, seconds: 10, step: 0.5, step_max: 0.6, parts });

test("areas lie on those that follow them, and lines stay where they are", () => {
  const chart = stepChart([sample(10, { compute: 0.3, data: 0.1 }), sample(20, { compute: 0.3, data: 0.2 })]);
  assert.deepEqual(chart.lines.map((line) => line.name), ["data", "compute", "slowest rank", "step, median rank"]);
  const [data, compute, slowest, step] = stacked(chart.lines);
  assert.deepEqual(data, [0.4, 0.5]);
  assert.deepEqual([compute, slowest, step], [[0.3, 0.3], [0.6, 0.6], [0.5, 0.5]]);
});

test("silence is a gap, and a step that was not profiled has no parts", () => {
  const chart = stepChart([sample(10, { compute: 0.3 }), sample(20, {}), sample(300, { compute: 0.3 })]);
  assert.deepEqual(chart.time, [10, 20, 21, 300]);
  assert.deepEqual(chart.lines[0]!.values, [0.3, null, null, 0.3]);
  assert.deepEqual(chart.lines.at(-1)!.values, [0.5, 0.5, null, 0.5]);
});

test("nothing yet is no chart that fails", () => {
  assert.deepEqual(stepChart([]).time, []);
});
