import assert from "node:assert/strict";
import { test } from "node:test";
import type { Vitals } from "../src/api/types";
import { vitalFacts } from "../src/logic/vitals";

const NONE: Vitals = { step: null, logged: {}, gpu_temperature: null, gpu_clock: null };
const words = (vitals: Vitals) => vitalFacts(vitals).map(({ label, value, note = "" }) => `${label}: ${value} ${note}`.trim().replaceAll("\u2009", " "));

test("a step, what it consists of, what is logged, and the range of the GPUs", () => {
  const step = { seconds: 0.224, parts: { communication: 0.08, compute: 0.131, data: 0.002 }, waiting: 0.06 };
  assert.deepEqual(words({ step, logged: { loss: 2.184, "tokens/s": 125_400 }, gpu_temperature: [61.2, 64], gpu_clock: [1.98e9, 1.98e9] }), [
    "Step time, median rank: 224 ms compute 131 ms, communication 20 ms, waiting 60 ms, data 2.0 ms",
    "loss: 2.184", "tokens/s: 125.4k", "GPU temperature, all ranks: 61–64 °C", "GPU clock, all ranks: 1.98 GHz",
  ]);
});

test("what a chart shows is left out", () => {
  const facts = vitalFacts({ ...NONE, logged: { loss: 2.184, lr: 3e-4, "tokens/s": 125_400 } }, ["loss", "tokens/s"]);
  assert.deepEqual(facts.map(({ label }) => label), ["lr"]);
});

test("what is not known is left out", () => {
  assert.deepEqual(words(NONE), []);
  assert.deepEqual(words({ ...NONE, step: { seconds: 1.5, parts: {}, waiting: null } }), ["Step time, median rank: 1.50 s"]);
});
