import assert from "node:assert/strict";
import { test } from "node:test";
import { path } from "../src/logic/sparkline";

const scale = { unknown: 255, largest: 254 };

test("a line from the bottom to the top", () => {
  assert.equal(path(Uint8Array.from([0, 127, 254]), scale), "M0.0 23.0L48.0 12.0L96.0 1.0");
});

test("points that are not known are a gap, and one alone is a short line", () => {
  assert.equal(path(Uint8Array.from([0, 255, 0, 0, 255, 254]), scale), "M0.0 23.0h2M38.4 23.0L57.6 23.0M96.0 1.0h-2");
  assert.equal(path(Uint8Array.from([255, 255]), scale), "");
});
