import assert from "node:assert/strict";
import { test } from "node:test";
import { coordinatesOf, groupSizes, isShared } from "../src/logic/nodes";

const NOWHERE = 0xffff;

test("a rank is in the groups that it shares, as far as it has reported them", () => {
  const coordinates = { data: Uint16Array.of(0, 1, 2, 3), pipeline: Uint16Array.of(0, 0, 1, NOWHERE) };
  assert.deepEqual([0, 1, 2, 3].map((rank) => coordinatesOf(coordinates, rank)), [{ pipeline: 0 }, { pipeline: 0 }, {}, {}]);
  assert.deepEqual([...groupSizes(coordinates.pipeline)], [[0, 2], [1, 1]]);
});

test("a dimension in which no ranks share a coordinate groups nothing", () => {
  assert.equal(isShared(Uint16Array.of(0, 1, 2, NOWHERE, NOWHERE)), false);
  assert.equal(isShared(Uint16Array.of(0, 1, 1)), true);
});
