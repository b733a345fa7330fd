import assert from "node:assert/strict";
import { test } from "node:test";
import { PARTS, sectionTone } from "../src/logic/parts";

test("a section has the colour of the part that its name states", () => {
  const tones = ["data", "get_batch", "all_reduce", "checkpointing", "evaluation", "forward", "step"].map((name) => sectionTone(name, 0));
  assert.deepEqual(tones, [PARTS.data, PARTS.data, PARTS.communication, PARTS.checkpoint, PARTS.evaluation, PARTS.compute, "part-step"]);
});

test("sections of computation are apart from each other, and other names from all parts", () => {
  const shades = ["forward", "backward", "optimizer"].map((name) => sectionTone(name, 0));
  assert.equal(new Set(shades).size, 3);
  const others = [0, 1, 2].map((index) => sectionTone("teacher", index));
  assert.equal(new Set([...others, ...Object.values(PARTS)]).size, 3 + Object.keys(PARTS).length);
});
