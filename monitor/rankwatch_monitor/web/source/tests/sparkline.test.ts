import assert from "node:assert/strict";
import { test } from "node:test";
import { path } from "../src/view/sparkline";

const scale = { unknown: 255, largest: 254 };

test("each mean is level over its time, and the next one begins with a vertical edge", () => {
  assert.equal(path(Uint8Array.from([0, 127, 254]), scale), "M0.0 23.0H32.0V12.0H64.0V1.0H96.0");
});

test("points that are not known are a gap", () => {
  assert.equal(path(Uint8Array.from([0, 255, 0, 0, 255, 254]), scale), "M0.0 23.0H16.0M32.0 23.0H48.0V23.0H64.0M80.0 1.0H96.0");
  assert.equal(path(Uint8Array.from([255, 255]), scale), "");
});

test("a job that stands still now ends at the bottom, whatever the mean of the last minutes is", () => {
  assert.equal(path(Uint8Array.from([254, 127]), scale, true), "M0.0 1.0H48.0V12.0H96.0V23.0");
  assert.equal(path(Uint8Array.from([254, 255]), scale, true), "M0.0 1.0H48.0", "of the last minutes nothing is known");
});
