import assert from "node:assert/strict";
import { test } from "node:test";
import { cellWords, isLevel, LEVELS, levels, slowestFirst } from "../src/logic/levels";
import { isTrouble } from "../src/logic/severity";
import { type Palette, stamp } from "../src/logic/stamps";

const named = (look: "lateness" | "robust", ...bytes: number[]) =>
  [...levels(look, Uint8Array.from(bytes), bytes.length)].map((code) => cellWords(look, LEVELS[code]!));

test("the others' waiting has levels from under 1 % to 20 % and more", () => {
  assert.deepEqual(named("lateness", 0, 2, 10, 20, 40, 254, 255), [
    "under 1 %", "1–5 %", "5–10 %", "10–20 %", "20 % and more", "20 % and more", "not known",
  ]);
});

test("a score is the worse the lower it is, and the threshold of 0.7 is not under it", () => {
  assert.deepEqual(named("robust", 200, 196, 195, 189, 179, 140, 139, 255), [
    "0.98 and more", "0.98 and more", "0.95–0.98", "0.90–0.95", "0.70–0.90", "0.70–0.90", "under 0.70", "not known",
  ]);
});

test("ranks without a byte are not known, and bytes without a rank are left out", () => {
  assert.deepEqual([...levels("robust", Uint8Array.of(200), 3)], [0, 5, 5]);
  assert.equal(levels("robust", Uint8Array.of(200, 200), 1).length, 1);
});

test("states are their own words, and only the slowest levels are trouble", () => {
  assert.equal(cellWords("state", "hung"), "hung");
  assert.ok(!isLevel("hung") && isLevel("level-1"));
  assert.deepEqual(LEVELS.filter(isTrouble), ["level-3", "level-4"]);
});

// One colour for all: what is told apart here is told apart by shape alone.
const one = Object.fromEntries(LEVELS.map((level) => [level, 7])) as Palette["fill"];
for (const size of [9, 13, 20, 36]) {
  test(`at ${size} pixels every level has a shape of its own`, () => {
    const shapes = new Set(LEVELS.map((level) => stamp(level, size, { fill: one, dimmed: one, mark: 9 }).join()));
    assert.equal(shapes.size, LEVELS.length);
  });
}

test("the slowest come first, equal ones keep their order, and the unknown come last", () => {
  assert.deepEqual(slowestFirst([3, 0, 1, 2, 9], Uint8Array.of(0, 5, 4, 0)), [2, 3, 0, 1, 9]);
});
