import assert from "node:assert/strict";
import { test } from "node:test";
import { CELLS_WORST_FIRST } from "../src/logic/severity";
import { abgr, glyph, paint, type Palette, readableOn, silentFrame } from "../src/logic/glyphs";

// One colour for all: cells are distinguished by shape alone.
const CELLS = CELLS_WORST_FIRST;
const one = Object.fromEntries(CELLS.map((state) => [state, 7])) as Palette["fill"];
const grey: Palette = { fill: one, dimmed: one, mark: 9 };

for (const size of [9, 13, 20, 36]) {
  test(`at ${size} pixels every state has a shape of its own`, () => {
    const shapes = new Set(CELLS.map((state) => glyph(state, size, grey).join()));
    assert.equal(shapes.size, CELLS.length);
  });
}

for (const size of [24, 36, 54, 108]) {
  test(`the frame of a silent rank leaves room for its number at ${size} pixels`, () => {
    const row = glyph("silent", size, grey).subarray(size * (size >> 1), size * ((size >> 1) + 1));
    const frame = row.indexOf(grey.mark);
    assert.equal(frame, silentFrame(size));
    assert.ok(frame >= 2 && frame <= size / 8, `${frame}`);
  });
}

test("glyphs are copied to their corners and nowhere else", () => {
  const target = new Uint32Array(5 * 2);
  paint(target, 5, Int32Array.of(0, 0, 3, 0), 2, Uint8Array.of(1, 0), [Uint32Array.of(1, 1, 1, 1), Uint32Array.of(2, 2, 2, 2)]);
  assert.deepEqual([...target], [2, 2, 0, 1, 1, 2, 2, 0, 1, 1]);
});

test("a state beyond the legend is left blank instead of breaking the picture", () => {
  const target = new Uint32Array(4);
  paint(target, 2, Int32Array.of(0, 0), 2, Uint8Array.of(200), [Uint32Array.of(1, 1, 1, 1)]);
  assert.deepEqual([...target], [0, 0, 0, 0]);
});

test("colours become canvas words, and numbers on them stay readable", () => {
  assert.equal(abgr("#112233"), 0xff332211);
  assert.equal(abgr("#ff0000", 0), 0x000000ff);
  assert.equal(readableOn("#14191c"), "#ffffff");
  assert.equal(readableOn("#cabd82"), "#000000");
});
