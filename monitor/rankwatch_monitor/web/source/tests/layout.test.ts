import assert from "node:assert/strict";
import { test } from "node:test";
import { cell, layout, neighbour, rankAt, readable, rings } from "../src/logic/layout";
import { byNode } from "../src/logic/nodes";

const nodes = (worldSize: number, each: number) => byNode(worldSize, (rank) => `node-${Math.floor(rank / each)}`);
const box = { width: 640, maxHeight: 440, scale: 1 };

test("ranks are grouped by node in the order of their first rank, also when a node's ranks are scattered", () => {
  const groups = byNode(4, (rank) => (rank % 2 === 0 ? "a" : "b"));
  assert.deepEqual(groups, [{ host: "a", ranks: [0, 2] }, { host: "b", ranks: [1, 3] }]);
});

for (const [worldSize, each] of [[1, 1], [8, 8], [64, 8], [512, 8], [4608, 72], [16_384, 8]] as const) {
  test(`${worldSize} ranks, ${each} a node: each has a cell of its own within the box, and is found again`, () => {
    const placed = layout(nodes(worldSize, each), worldSize, box);
    assert.ok(placed.width <= box.width && placed.height <= box.maxHeight, `${placed.width} x ${placed.height}`);
    const seen = new Set<string>();
    for (let rank = 0; rank < worldSize; rank++) {
      const { x, y } = cell(placed, rank);
      assert.ok(x >= 0 && y >= 0 && x + placed.cell <= placed.width && y + placed.cell <= placed.height);
      seen.add(`${x} ${y}`);
      if (rank % 97 === 0) assert.equal(rankAt(placed, x + placed.cell / 2, y + placed.cell / 2), rank);
    }
    assert.equal(seen.size, worldSize);
  });
}

test("a box that is too small for any cell grows in height instead of losing ranks", () => {
  const placed = layout(nodes(16_384, 8), 16_384, { width: 200, maxHeight: 60, scale: 1 });
  assert.ok(placed.height > 60 && placed.width <= 200);
});

test("nodes that are not known yet make one block as wide as there is room", () => {
  const placed = layout(byNode(16_384, () => undefined), 16_384, box);
  assert.equal(placed.lines, false);
  assert.ok(placed.width > 0.9 * box.width && placed.height <= box.maxHeight);
});

test("arrow keys go to the neighbour that lies there, and stay at the edge", () => {
  const placed = layout(nodes(16, 8), 16, box);
  assert.equal(neighbour(placed, 0, "right"), 1);
  assert.equal(neighbour(placed, 0, "down"), 8);
  assert.equal(neighbour(placed, 9, "up"), 1);
  assert.equal(neighbour(placed, 0, "left"), 0);
});

test("a node of which all ranks are meant gets one ring with its name, single ranks get their own", () => {
  const groups = nodes(16, 8);
  const placed = layout(groups, 16, box);
  assert.deepEqual(rings(placed, groups, [8, 9, 10, 11, 12, 13, 14, 15, 2]).map((ring) => ring.label), ["rank 2", "node-1"]);
});

test("of labels that would cover each other the first stands", () => {
  const at = (x: number, y: number, text: string, before = false) => ({ x, y, text, before });
  assert.deepEqual([...readable([at(10, 10, "rank 5"), at(14, 18, "rank 9"), at(14, 40, "rank 90"), at(200, 10, "rank 7")])], ["rank 5", "rank 90", "rank 7"]);
  assert.deepEqual([...readable([at(300, 10, "rank 5", true), at(310, 10, "rank 6")])], ["rank 5", "rank 6"]);
  assert.deepEqual([...readable([at(300, 10, "rank 5", true), at(290, 10, "rank 6", true)])], ["rank 5"]);
});

