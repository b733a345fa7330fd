import assert from "node:assert/strict";
import { test } from "node:test";
import type { Straggler } from "../src/api/types";
import { score, slowBasis, slowTag } from "../src/logic/stragglers";

test("how slow a rank is comes from what the others wait, else from its score", () => {
  const straggler = (share: number | null, score: number | null) => ({ share, score }) as Straggler;
  const words = (share: number | null, known: number | null) => [slowTag(straggler(share, known)), slowBasis(straggler(share, known))].map((text) => text.replaceAll("\u2009", " "));
  assert.deepEqual(words(0.267, 1), ["slow 27 %", "27 %: the other ranks wait this share of each step for it"]);
  assert.deepEqual(words(null, 0.5), ["slow 2.00×", "2.00×: its kernels take as many times as long as those of its peers; how long the others wait is not known"]);
  for (const [share, known] of [[null, null], [1, null], [-0.1, 1]] as const) assert.deepEqual(words(share, known), ["slow", ""]);
});

test("scores have two decimals", () => {
  assert.deepEqual([score(0.7), score(null)], ["0.70", "–"]);
});

