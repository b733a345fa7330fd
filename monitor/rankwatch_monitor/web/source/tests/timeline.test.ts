import assert from "node:assert/strict";
import { test } from "node:test";
import type { SectionTimeline } from "../src/api/types";
import { beside, lanes, ROW, spanAt, sums, total, written } from "../src/logic/timeline";

/** Two ranks and two steps; rank 5 takes twice as long in its data and never came to step 20. */
const TIMELINE: SectionTimeline = {
  attempt: 1, sampled: [10, 20], sections: ["data", "step", "forward"], ranks_known: 2,
  ranks: [
    { rank: 0, host: "a", steps: [10, 20].map((iteration) => ({ iteration, seconds: 0.5, spans: [[0, 0, 0, 0.1], [1, 0, 0.1, 0.4], [2, 1, 0.1, 0.2]] })) },
    { rank: 5, host: "b", steps: [{ iteration: 10, seconds: 1, spans: [[0, 0, 0, 0.6], [1, 0, 0.6, 0.4], [2, 1, 0.6, 0.2]] }] },
  ],
};
const placed = lanes(TIMELINE, 314);
const at = (lane: number, step: number, section: number) => placed.spans.findIndex((span) => span.lane === lane && span.step === step && span.section === section);

test("steps stand side by side, as wide as the slowest rank needs, and fill the width", () => {
  assert.deepEqual(placed.columns.map(({ iteration, seconds }) => [iteration, seconds]), [[10, 1], [20, 0.5]]);
  const [first, second] = placed.columns;
  assert.ok(Math.abs(first!.width - 2 * second!.width) < 1e-6);
  assert.ok(Math.abs(second!.x + second!.width - 314) < 1e-6);
});

test("every step begins at its column whatever the clock, and what is nested lies a row lower", () => {
  assert.equal(placed.spans[at(0, 0, 0)]!.x, placed.spans[at(1, 0, 0)]!.x);
  assert.equal(placed.spans[at(0, 0, 2)]!.y - placed.spans[at(0, 0, 1)]!.y, ROW);
  assert.deepEqual(placed.missing, [{ lane: 1, step: 1 }]);
});

test("a point finds the innermost span, and nothing between the lanes", () => {
  const inner = placed.spans[at(1, 0, 2)]!;
  assert.equal(spanAt(placed, inner.x + 3, inner.y + 3), at(1, 0, 2));
  assert.equal(spanAt(placed, 3, placed.laneHeight + 4), null);
});

test("arrow keys go along the lane and to the same section of the next rank", () => {
  assert.equal(beside(placed, at(0, 0, 0), "ArrowRight"), at(0, 0, 1));
  assert.equal(beside(placed, at(0, 0, 0), "ArrowLeft"), at(0, 0, 0));
  assert.equal(beside(placed, at(0, 0, 2), "ArrowDown"), at(1, 0, 2));
  assert.equal(beside(placed, at(1, 0, 2), "ArrowDown"), at(1, 0, 2));
});

test("sums are seconds a step, the longest section first", () => {
  const { sections, seconds, medians } = sums(TIMELINE, 8);
  assert.deepEqual(sections.map((section) => TIMELINE.sections[section]), ["step", "data", "forward"]);
  assert.deepEqual(seconds, [[0.4, 0.1, 0.2], [0.4, 0.6, 0.2]]);
  assert.equal(medians[1], 0.35);
  assert.equal(total(placed, 1, 0, 0), 0.6);
});

test("ranks are written as the monitor reads them", () => {
  assert.equal(written([9, 0, 8, 10, 3]), "0,3,8-10");
});

test("nothing at all has no lanes that fail", () => {
  const none = lanes({ ...TIMELINE, ranks: [{ rank: 0, host: "", steps: [] }] }, 300);
  assert.deepEqual([none.columns, none.spans, none.missing], [[], [], []]);
});
