import assert from "node:assert/strict";
import { test } from "node:test";
import type { Incident } from "../src/api/types";
import { attemptMarks, between, bounds, incidentRange, panned, parseRange, placed, PRESETS, rangeText, shownRange, USUAL, zoomed } from "../src/logic/range";
import { parse, addressOf } from "../src/logic/route";

test("every range survives the address", () => {
  for (const [name, , range] of PRESETS) assert.deepEqual(parseRange(name), range);
  const chosen = { from: 1_700_000_000, to: 1_700_003_600 };
  assert.deepEqual(parseRange(rangeText(chosen)), chosen);
  assert.equal(rangeText(USUAL), "");
  for (const bad of ["", "5", "1e3-1e4", "20-10", "10-11", "constructor", "-5-10", "1-99999999999999"]) assert.equal(parseRange(bad), null);
  const address = "#/jobs/j?tab=charts&range=6h&rank=3";
  const found = parse(address);
  assert.ok(found.view === "job" && found.sight.range !== undefined);
  assert.equal(addressOf(found, { rank: 3, look: "state", group: "node", range: found.sight.range }), address);
});

test("a live axis ends now or when the job did, and the whole run begins with it", () => {
  assert.deepEqual(bounds({ last: 900 }, null, 5000), [4100, 5000]);
  assert.deepEqual(bounds("all", 1000, 5000), [1000, 5000]);
  assert.deepEqual(bounds({ from: 10, to: 90 }, 1000, 5000), [10, 90]);
  assert.deepEqual(bounds("all", 4999, 5000), [4940, 5000]);
  assert.deepEqual(bounds({ last: 3600 }, 4000, 5000), [4000, 5000], "a younger job has nothing before");
  const [from, to] = bounds({ last: 604_800 }, null, 1_000_000.5);
  assert.ok(to >= 1_000_000.5 && to - 1_000_000.5 < 606 && to - from === 604_800);
});

test("zoom keeps the moment under the cursor, and no axis is shorter than ten seconds", () => {
  assert.deepEqual(zoomed([0, 100], 0.5, 20), { from: 10, to: 60 });
  assert.deepEqual(zoomed([100, 110], 0.1), { from: 100, to: 110 });
  assert.deepEqual(panned([1000, 1100], -0.5), { from: 950, to: 1050 });
  assert.deepEqual(between(60, 20), { from: 20, to: 60 });
});

test("attempts begin where the number changes, the first where the job began", () => {
  const points = { at: [10, 20, 30, 40], attempt: [1, 1, null, 2] };
  assert.deepEqual(attemptMarks(points, 5, 50), [{ attempt: 1, from: 5, to: 40 }, { attempt: 2, from: 40, to: 50 }]);
  assert.deepEqual(attemptMarks(points, -5000, 50), [{ attempt: 2, from: 40, to: 50 }]);
  assert.deepEqual(attemptMarks({ at: [10], attempt: [] }, 5, 50), []);
});

test("an attempt begins at the restart of its incident, not at the first point after it", () => {
  const points = { at: [10, 20, 30, 40, 50], attempt: [1, 1, 2, 2, 2] };
  const incidents = [12, 26, 44].map((restarted) => ({ timeline: { since: null, detected: null, decided: null, captured: null, restarted, first_step: null } }));
  assert.deepEqual(attemptMarks(points, 5, 60, incidents), [{ attempt: 1, from: 5, to: 26 }, { attempt: 2, from: 26, to: 60 }]);
});

test("a range that is longer than the job's life is all of it", () => {
  assert.equal(shownRange(USUAL, 4000, 5000), "all");
  assert.deepEqual([shownRange(USUAL, 1000, 5000), shownRange(USUAL, null, 5000)], [USUAL, USUAL]);
  assert.deepEqual(shownRange({ from: 1, to: 20 }, 4000, 5000), { from: 1, to: 20 });
});

test("what is too close on the axis to be told apart is one", () => {
  const item = (from: number, to: number) => ({ from, to, item: from });
  const found = placed([item(50, 60), item(10, 12), item(10.5, 30), item(200, 300)], [0, 100]);
  assert.deepEqual(found.map(({ items, left, width, room }) => [items, left, width, room]), [[[10, 10.5], 10, 20, 40], [[50], 50, 10, 50]]);
  assert.equal(placed([item(-50, 20)], [0, 100])[0]!.left, 0, "it began before the axis");
});

test("incidents that take less than a third of the axis are zoomed to, others and none are not", () => {
  const each = ([from, to]: [number, number]) => ({ item: {} as Incident, from, to });
  const two = [each([600, 620]), each([680, 700])];
  assert.deepEqual(incidentRange(two, [0, 1000]), { from: 575, to: 725 });
  assert.deepEqual(incidentRange(two, [650, 1000]), { from: 675, to: 705 }, "of those shown");
  assert.equal(incidentRange(two, [575, 725]), null);
  assert.equal(incidentRange([each([100, 101])], [95, 105]), null, "no axis is shorter");
  assert.deepEqual([incidentRange([], [0, 1000]), incidentRange(two, [701, 1000])], [null, null]);
});
