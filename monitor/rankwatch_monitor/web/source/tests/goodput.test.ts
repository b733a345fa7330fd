import assert from "node:assert/strict";
import { test } from "node:test";
import type { Goodput } from "../src/api/types";
import { inWords, slices, windowDiffers, windowName } from "../src/logic/goodput";

const plain = (text: string) => text.replaceAll("\u2009", " ");

test("slices are the non-empty buckets in order, and fill the bar", () => {
  const found = slices({ restart: 20, hang: 10, productive: 70, stalled: 0, down: 0.01 });
  assert.deepEqual(found.map((slice) => slice.bucket), ["productive", "hang", "restart"]);
  assert.ok(Math.abs(found.reduce((sum, slice) => sum + slice.share, 0) - 1) < 0.001);
});

test("an unknown bucket is shown by its own name, last", () => {
  const [first, last] = slices({ waiting_for_data: 50, productive: 50 });
  assert.equal(first!.bucket, "productive");
  assert.equal(last!.name, "waiting for data");
});

test("a job without time has no slices", () => {
  assert.deepEqual(slices({ productive: 0, startup: 0 }), []);
});

test("the bar has a text for screen readers", () => {
  assert.equal(plain(inWords(slices({ productive: 90, hang: 10 }))), "kept steps 90.0 %; hang 10.0 %");
});

test("the window is an hour once the run is that old", () => {
  assert.equal(windowName(3570), "last hour");
  assert.equal(plain(windowName(600)), "last 10 min");
});

test("the sliding window is shown once the run is longer than it", () => {
  const run = (productive: number, seconds: number): Goodput => ({ ratio: 1, waited_for: "", notes: [], seconds, incidents: [], window: { seconds, ratio: 1 }, buckets: { productive } });
  assert.equal(windowDiffers(run(1200, 1200)), false);
  assert.equal(windowDiffers(run(0, 0)), false);
  assert.equal(windowDiffers(run(7200, 3600)), true);
});

test("waiting for a slow rank names the rank, and does not count for goodput", () => {
  const buckets = { productive: 85, waiting: 13, startup: 2 };
  assert.equal(plain(inWords(slices(buckets, "rank 21"))), "kept steps 85.0 %; waiting for rank 21 13.0 %; start-up 2.0 %");
});
