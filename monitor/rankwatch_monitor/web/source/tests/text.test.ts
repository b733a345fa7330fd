import assert from "node:assert/strict";
import { test } from "node:test";
import { ago, clock, duration, figure, gpuTime, limitText, percent, rate, runs, speedText, wholeDuration } from "../src/logic/text";

const plain = (text: string) => text.replaceAll("\u2009", " ");

test("durations have two units at most and no more digits than help", () => {
  const cases: [number, string][] = [
    [0, "0 s"], [0.0104, "10 ms"], [0.9996, "1.0 s"], [14.24, "14.2 s"], [59.94, "59.9 s"], [59.96, "1 min"],
    [125, "2 min 5 s"], [3600, "1 h"], [3725, "1 h 2 min"], [86_399, "23 h 59 min"], [86_400 * 3 + 7200, "3 d 2 h"],
  ];
  for (const [seconds, text] of cases) assert.equal(plain(duration(seconds)), text);
});

test("what is not known is a dash", () => {
  assert.equal(duration(null), "–");
  assert.equal(duration(Number.NaN), "–");
  assert.equal(percent(null), "–");
  assert.equal(ago(null, 10), "–");
  assert.equal(rate(null).value, "–");
});

test("slow steps are shown in seconds per step", () => {
  assert.deepEqual(rate(0.05), { value: "20.0", unit: "s/step" });
  assert.deepEqual(rate(0), { value: "0.00", unit: "steps/s" });
  assert.deepEqual(rate(3.214), { value: "3.21", unit: "steps/s" });
  assert.deepEqual([4.47, 0.05, 0, null].map(speedText).map(plain), ["4.47 steps/s", "20.0 s/step", "0.00 steps/s", "–"]);
});

test("ranks are grouped into runs", () => {
  assert.equal(runs([2]), "2");
  assert.equal(runs([3, 0, 1]), "0, 1, 3");
  assert.equal(runs([0, 1, 2, 5]), "0–2, 5");
  assert.equal(runs([0, 2, 4, 6], 2), "0, 2, …");
});

test("neighbouring labels of small numbers differ", () => {
  assert.deepEqual([1.05e-4, 1.1e-4, 1e-4, 1e-10].map(figure), ["1.05e-4", "1.1e-4", "1e-4", "1e-10"]);
});

test("what ranks cost is one kind of unit: GPU-minutes, then GPU-hours", () => {
  const found = [40, 216, 3600, 1.256 * 3600, 12.34 * 3600, 1234.5 * 3600].map((seconds) => gpuTime(seconds).replaceAll("\u2009", " "));
  assert.deepEqual(found, ["0.7 GPU-minutes", "3.6 GPU-minutes", "1.00 GPU-hours", "1.26 GPU-hours", "12.3 GPU-hours", "1,235 GPU-hours"]);
});

test("an age is the difference of the two times that are shown", () => {
  const noon = Date.UTC(2026, 10, 26, 12) / 1000;
  const seconds = (at: number) => Number(clock(at, noon + 60).slice(-2));
  for (const then of [noon, noon + 0.4, noon + 0.5, noon + 0.9]) for (const now of [noon + 12, noon + 44]) {
    assert.equal(plain(wholeDuration(now - then)), `${seconds(now) - seconds(then)} s`);
    assert.equal(plain(ago(then, now)), `${seconds(now) - seconds(then)} s ago`);
  }
});

test("a limit has no decimals that are zero", () => {
  assert.deepEqual([10, 10.4, 0.25, 60, 90, 1800].map((each) => plain(limitText(each))), ["10 s", "10.4 s", "250 ms", "1 min", "1 min 30 s", "30 min"]);
});
