import assert from "node:assert/strict";
import { test } from "node:test";
import { ageByte, cellWords, isLevel, LEVELS, levels, slowestFirst, withSlow } from "../src/logic/levels";
import { byCoordinate } from "../src/logic/nodes";
import { isTrouble } from "../src/logic/severity";
import { type Palette, glyph } from "../src/logic/glyphs";

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

// One colour for all: cells are distinguished by shape alone.
const one = Object.fromEntries(LEVELS.map((level) => [level, 7])) as Palette["fill"];
for (const size of [9, 13, 20, 36]) {
  test(`at ${size} pixels every level has a shape of its own`, () => {
    const shapes = new Set(LEVELS.map((level) => glyph(level, size, { fill: one, dimmed: one, mark: 9 }).join()));
    assert.equal(shapes.size, LEVELS.length);
  });
}

test("the slowest come first, equal ones keep their order, and the unknown come last", () => {
  assert.deepEqual(slowestFirst([3, 0, 1, 2, 9], Uint8Array.of(0, 5, 4, 0)), [2, 3, 0, 1, 9]);
});

test("ages of heartbeats and temperatures have levels too", () => {
  const words = (look: "heartbeat_age" | "temperature", byte: number) => cellWords(look, LEVELS[levels(look, Uint8Array.of(byte), 1)[0]!]!);
  assert.deepEqual([0, 9, 11, 60, 200, 400].map((age) => words("heartbeat_age", ageByte(age))), [
    "under 10 s", "under 10 s", "10–30 s", "30 s–2 min", "2–5 min", "5 min and more",
  ]);
  assert.deepEqual([59, 60, 86, 87, 254, 255].map((celsius) => words("temperature", celsius)), [
    "under 60 °C", "60–70 °C", "80–87 °C", "87 °C and more", "87 °C and more", "not known",
  ]);
});

test("ranks are grouped by their coordinate, in its order, ranks without one last", () => {
  const groups = byCoordinate(5, "pipeline", Uint16Array.of(1, 0, 1, 0xffff));
  assert.deepEqual(groups, [
    { host: "pipeline stage 0", ranks: [1] }, { host: "pipeline stage 1", ranks: [0, 2] }, { host: "no pipeline stage", ranks: [3, 4] },
  ]);
});

test("a slow rank that runs has a cell of its own, one in another state keeps that", () => {
  const codes = Uint8Array.of(0, 1, 0, 0);
  assert.deepEqual(withSlow(codes, ["running", "hung"], [1, 2, 9]), { codes: Uint8Array.of(0, 1, 2, 0), legend: ["running", "hung", "slow"] });
  assert.deepEqual([...codes], [0, 1, 0, 0]);
});
