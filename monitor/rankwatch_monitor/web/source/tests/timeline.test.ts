import assert from "node:assert/strict";
import { test } from "node:test";
import type { RankLane, RankStep, SectionTimeline } from "../src/api/types";
import { absence, beside, choiceWords, divided, inSections, lanes, leastWaited, led, onlyMeasured, pannedView, ROW, selectedView, showing, spanAt, sums, total, type View, viewed, waited, WHOLE, withPeers, written, zoomedView } from "../src/logic/timeline";

/** Two ranks and two steps; rank 5 takes twice as long in its data and never came to step 20. */
const TIMELINE: SectionTimeline = {
  attempt: 1, finding: "", basis: "", sampled: [10, 20], profiled: [10], no_waits: "", no_sections: [], sections: ["data", "step", "forward"], ranks_known: 2,
  ranks: [
    { rank: 0, host: "a", works: 0.3, waits: 0.2, own: [0.1, 0.1, 0.15], steps: [10, 20].map((iteration) => ({ iteration, began: 90 + iteration, seconds: 0.5, waits: iteration === 10 ? [[0.25, 0.1], [0.45, 0.1]] : null, spans: [[0, 0, 0, 0.1], [1, 0, 0.1, 0.4], [2, 1, 0.1, 0.2]] })) },
    { rank: 5, host: "b", works: 1, waits: 0, own: [0.6, 0.2, 0.2], steps: [{ iteration: 10, began: 99, seconds: 1, waits: [], spans: [[0, 0, 0, 0.6], [1, 0, 0.6, 0.4], [2, 1, 0.6, 0.2]] }] },
  ],
};
/** A lane of which the test gives what it is about. */
const laneOf = (lane: Partial<RankLane>): RankLane => ({ rank: 0, host: "", works: null, waits: null, own: [], steps: [], ...lane });
const placed = lanes(TIMELINE, 314);
const at = (lane: number, step: number, section: number) => placed.spans.findIndex((span) => span.lane === lane && span.step === step && span.section === section);

test("steps stand side by side, as wide as the slowest rank needs, and fill the width", () => {
  assert.deepEqual(placed.columns.map(({ iteration, seconds }) => [iteration, seconds]), [[10, 1], [20, 0.5]]);
  assert.deepEqual(placed.columns.map(({ began }) => began), [99, 110], "as the first rank began it");
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

const rounded = (rows: readonly (readonly (number | null)[])[]) => rows.map((row) => row.map((value) => (value === null ? null : Math.round(value * 1000) / 1000)));

test("sections stand in the order of a step, and where they take longer on a rank it is known by how much", () => {
  const { sections, rests, longer } = sums(TIMELINE, 8);
  assert.deepEqual(sections.map((section) => TIMELINE.sections[section]), ["data", "forward", "step"]);
  assert.deepEqual(rounded(longer), [[null, null, null], [0.5, 0.05, 0.1]]);
  assert.deepEqual([...rests], [1]);
  const narrow = sums(TIMELINE, 8, true);
  assert.deepEqual(narrow.sections.map((section) => TIMELINE.sections[section]), ["data", "step", "forward"], "those that take longer on a rank first");
  assert.deepEqual(rounded(narrow.longer), [[null, null, null], [0.5, 0.1, 0.05]]);
  assert.equal(total(placed, 1, 0, 0), 0.6);
});

test("a section is marked as longer by its own work, and one that all take alike is not", () => {
  const longer = (...own: number[]) => sums({ ...TIMELINE, sections: ["backward"], ranks: own.map((each, rank) => laneOf({ rank, own: [each] })) }, 8).longer;
  assert.deepEqual(rounded(longer(0.127, 0.087, 0.088)), [[0.04], [null], [null]]);
  assert.deepEqual(longer(0.2, 0.2), [[null], [null]]);
});

test("sections that only contain others are not drawn", () => {
  const ranks = [laneOf({ steps: [{ iteration: 10, began: 1, seconds: 0.3, waits: [[0.25, 0.05]] as [number, number][], spans: [[1, 0, 0, 0.3], [0, 1, 0, 0.1], [2, 1, 0.1, 0.15]] as [number, number, number, number][] }] })];
  const { spans, laneHeight, waits } = lanes({ ...TIMELINE, ranks }, 300);
  assert.deepEqual(spans.map(({ section, y }) => [section, y]), [[0, 0], [2, 0]]);
  assert.deepEqual([laneHeight, waits[0]!.y], [ROW, 0], "waiting outside of the nested sections stands beside them");
});

test("steps with measured waiting are shown where there are any, unless others are asked for", () => {
  assert.deepEqual([onlyMeasured(null, TIMELINE), onlyMeasured(null, { profiled: [] }), onlyMeasured(null, null)], [true, false, false]);
  assert.deepEqual([onlyMeasured(false, TIMELINE), onlyMeasured(true, { profiled: [] })], [false, true]);
});

test("ranks to look at lead, then those of their nodes", () => {
  const ranks = [0, 8, 16, 17, 21, 24].map((rank) => laneOf({ rank, host: `host-${rank >> 3}` }));
  assert.deepEqual(led({ ...TIMELINE, ranks }, [21]).ranks.map(({ rank }) => rank), [21, 16, 17, 0, 8, 24]);
  assert.deepEqual(led({ ...TIMELINE, ranks }, []).ranks.map(({ rank }) => rank), [0, 8, 16, 17, 21, 24]);
});

test("a slow rank is compared with some of its node and one each of other nodes", () => {
  const hostOf = (rank: number) => `host-${rank >> 3}`;
  assert.deepEqual(withPeers([21], 32, 8, hostOf), [21, 16, 17, 18, 19, 0, 8, 24]);
  assert.deepEqual(withPeers([21], 32, 4, hostOf), [21, 16, 17, 0]);
  assert.deepEqual(withPeers([3], 8, 8, hostOf), [3, 0, 1, 2, 4, 5, 6, 7], "one node");
  assert.deepEqual(withPeers([5], 6, 8, () => undefined), [5, 0, 1, 2, 3, 4]);
  assert.deepEqual(withPeers([7, 40], 16, 10, hostOf), [7, 0, 1, 2, 3, 4, 5, 6, 8, 9]);
  assert.deepEqual(withPeers([], 4, 2, hostOf), [0, 1]);
});

test("which ranks were chosen is stated", () => {
  const hostOf = (rank: number) => `host-${rank >> 3}`;
  const words = (wanted: number[], size: number) => choiceWords(wanted, withPeers(wanted, size, 8, hostOf), hostOf);
  assert.deepEqual([words([21], 32), words([3], 8), words([5, 21], 32)], ["rank 21, 4 of the same node, 3 of other nodes", "rank 3, 7 of the same node", "ranks 5, 21, 4 of the same nodes, 2 of other nodes"]);
  assert.deepEqual([words([], 32), choiceWords([5], [5, 6], () => undefined)], ["", ""]);
});

test("waits lie on the innermost section that was open, on the first row outside of all", () => {
  const [step] = TIMELINE.ranks[0]!.steps;
  const found = inSections(step!.waits!, step!.spans).map((each) => each.map((value) => Math.round(value * 1000) / 1000));
  assert.deepEqual(found, [[0.25, 0.3, 1], [0.3, 0.35, 0], [0.45, 0.55, 0]]);
  assert.equal(placed.waits.length, 3);
  assert.deepEqual([0, 1, 2].map((section) => placed.spans[at(0, 0, section)]!.waits), [false, true, true]);
  assert.deepEqual([placed.waits[0]!.y, placed.waits[1]!.y], [ROW, 0]);
});

test("waiting is added up, within a section too, and unknown where it was not measured", () => {
  const [profiled, other] = TIMELINE.ranks[0]!.steps;
  assert.ok(Math.abs(waited(profiled)! - 0.2) < 1e-9);
  assert.ok(Math.abs(waited(profiled, 0.1, 0.3)! - 0.05) < 1e-9);
  assert.deepEqual([waited(other), waited(TIMELINE.ranks[1]!.steps[0]), waited(undefined)], [null, 0, null]);
});

const near = (view: View, expected: View) => assert.ok(view.every((each, i) => Math.abs(each - expected[i]!) < 1e-9), `${view} is not ${expected}`);

test("zoom keeps the point under the cursor, ends at the whole and at a 500th", () => {
  near(zoomedView(WHOLE, 0.5, 0.25), [0.125, 0.625]);
  near(zoomedView([0.4, 0.6], 100), WHOLE);
  const closest = zoomedView(WHOLE, 1e-9);
  assert.ok(Math.abs(closest[1] - closest[0] - 1 / 500) < 1e-9);
});

test("moving stops at the ends, and a drag selects in either direction", () => {
  near(pannedView([0.2, 0.4], 0.5), [0.3, 0.5]);
  near(pannedView([0.2, 0.4], -9), [0, 0.2]);
  near(pannedView([0.2, 0.4], 9), [0.8, 1]);
  near(selectedView([0.5, 1], 0.6, 0.2), [0.6, 0.8]);
  near(selectedView(WHOLE, -3, 0.5), [0, 0.5]);
});

test("a part is drawn over the whole width", () => {
  const last = placed.columns[1]!;
  const part = viewed(placed, [last.x / 314, 1], 314);
  assert.ok(Math.abs(part.columns[1]!.x) < 1e-6);
  assert.ok(Math.abs(part.columns[1]!.width - 314) < 1e-6);
  assert.ok(part.columns[0]!.x < 0);
  assert.equal(spanAt(part, 3, 3), at(0, 1, 0));
});

test("a span that is not seen is moved to, and one that is seen moves nothing", () => {
  const span = placed.spans[at(0, 1, 1)]!;
  const moved = showing([0, 0.1], span, 314);
  assert.ok(moved[0] < (span.x + span.width) / 314 && moved[1] > span.x / 314);
  assert.ok(Math.abs(moved[1] - moved[0] - 0.1) < 1e-9);
  near(showing([0.1, 1], span, 314), [0.1, 1]);
});

test("ranks are written as the monitor reads them", () => {
  assert.equal(written([9, 0, 8, 10, 3]), "0,3,8-10");
});

test("nothing at all has no lanes that fail", () => {
  const none = lanes({ ...TIMELINE, ranks: [laneOf({})] }, 300);
  assert.deepEqual([none.columns, none.spans, none.missing], [[], [], []]);
});

test("an empty timeline states the monitor's reason; without measured steps, why there are none", () => {
  const none = { sampled: [], no_waits: "it is not profiled", no_sections: ["No rank has completed a step yet.", "Does the loop enter it?"] };
  assert.deepEqual(absence(none, false), none.no_sections);
  assert.deepEqual(absence({ ...none, sampled: [10] }, true), ["No step with known waiting is kept: it is not profiled."]);
});

test("the transfer takes as long as on the rank that waits least, at the end of each stretch; the rest is waiting", () => {
  const step = (waits: [number, number][] | null) => [{ iteration: 10, seconds: 1, waits, spans: [[0, 0, 0, 1]] }] as RankStep[];
  const ranks = [laneOf({ steps: step([[0.8, 0.1]]) }), laneOf({ rank: 1, steps: step([[0.2, 0.1], [0.6, 0.3]]) })];
  const both = { ...TIMELINE, sections: ["step"], ranks };
  assert.equal(leastWaited(both, 10).toFixed(6), "0.100000");
  const [waiting, transfer] = divided(ranks[1]!.steps[0]!.waits!, 0.1);
  assert.deepEqual(waiting.map((each) => each.map((value) => value.toFixed(3))), [["0.200", "0.075"], ["0.600", "0.225"]]);
  assert.deepEqual(transfer.map((each) => each.map((value) => value.toFixed(3))), [["0.275", "0.025"], ["0.825", "0.075"]]);
  const widths = (timeline: SectionTimeline, lane: number) => lanes(timeline, 1000).waits.filter((each) => each.lane === lane).map(({ transfer: is, width }) => [is, Math.round(width)]);
  assert.deepEqual([widths(both, 0), widths(both, 1)], [[[true, 100]], [[false, 75], [false, 225], [true, 25], [true, 75]]]);
  const alone = { ...both, ranks: [ranks[0]!, { ...ranks[1]!, steps: step(null) }] };
  assert.deepEqual([leastWaited(alone, 10), widths(alone, 0)], [0, [[false, 100]]], "of one rank the transfer is not known");
});
