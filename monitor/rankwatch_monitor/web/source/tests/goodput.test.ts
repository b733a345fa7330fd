import assert from "node:assert/strict";
import { test } from "node:test";
import { inWords, slices, wholeRatio, windowDiffers, windowName } from "../src/logic/goodput";
import { percent } from "../src/logic/text";

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
  assert.equal(plain(inWords(slices({ productive: 90, hang: 10 }))), "new steps 90.0 %; hang 10.0 %");
});

test("the window is an hour once the run is that old", () => {
  assert.equal(windowName(3570), "Last hour");
  assert.equal(plain(windowName(600)), "Last 10 min");
});

test("the sliding window is shown once the run is longer than it", () => {
  const run = (productive: number, seconds: number) => ({ ratio: 1, window: { seconds, ratio: 1 }, buckets: { productive }, incidents: [] });
  assert.equal(windowDiffers(run(1200, 1200)), false);
  assert.equal(windowDiffers(run(0, 0)), false);
  assert.equal(windowDiffers(run(7200, 3600)), true);
});

test("every place shows the same share of the whole run", () => {
  assert.equal(percent(wholeRatio({ goodput: 0.9665 }, { ratio: 0.96649 })), percent(0.96649));
  assert.equal(wholeRatio({ goodput: 0.966 }, null), 0.966);
  assert.equal(wholeRatio({ goodput: null }, { ratio: 0.1 }), null, "too early for one");
});
