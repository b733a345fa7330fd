import assert from "node:assert/strict";
import { test } from "node:test";
import { causeChart, causeOf, consistsOf, fitted, gaps, heard, heardCount, mainValues, inOrder, isolated, missingAt, nonFinite, scoreAfter, speedAfter, speedCurve, stacked, stepChart, stepsBySpeed, temperatureChart, withEdge, withTrendGaps } from "../src/logic/charts";
import { contributor, sample as some, trends as points, why as explained } from "./samples";

const sample = (at: number, parts: Record<string, number>) => some({ at, parts });

const NO_TRENDS = points();

test("areas lie on those that follow them, and lines stay where they are", () => {
  const chart = stepChart([sample(10, { compute: 0.3, data: 0.1 }), sample(20, { compute: 0.3, data: 0.2 })]);
  assert.deepEqual(chart.lines.map((line) => line.name), ["data", "compute", "step, slowest rank", "step, median rank"]);
  const [data, compute, slowest, step] = stacked(chart.lines);
  assert.deepEqual(data, [0.4, 0.5]);
  assert.deepEqual([compute, slowest, step], [[0.3, 0.3], [0.6, 0.6], [0.5, 0.5]]);
});

test("the slowest rank is seen by its own work where that is measured, and by its step only where it stands out", () => {
  const of = (rank: number, work: number, step_max: number) => ({ ...sample(rank, { compute: 0.3 }), step_max, slowest: { rank, work, late: work - 0.4, parts: {} } });
  const names = (step_max: number) => stepChart([of(3, 0.4, 0.5), of(21, 0.75, step_max)]).lines.map(({ name }) => name);
  assert.deepEqual(names(0.52), ["compute", "own work, median rank", "own work, slowest rank", "step, median rank"]);
  assert.deepEqual(names(0.6), ["compute", "own work, median rank", "own work, slowest rank", "step, slowest rank", "step, median rank"]);
  const [, median, slowest] = stepChart([of(3, 0.4, 0.5), of(21, 0.75, 0.5)]).lines;
  assert.deepEqual([median!.values, slowest!.values, slowest!.ranks], [[0.4, 0.4], [0.4, 0.75], [3, 21]]);
});

test("silence is a gap, and a step that was not profiled has no parts", () => {
  const chart = stepChart([sample(10, { compute: 0.3 }), sample(20, {}), sample(300, { compute: 0.3 })]);
  assert.deepEqual(chart.time.map(Math.round), [10, 20, 20, 300]);
  assert.deepEqual(chart.lines[0]!.values, [0.3, null, null, 0.3]);
  assert.deepEqual(chart.lines.at(-1)!.values, [0.5, 0.5, null, 0.5]);
});

test("a point without a neighbour is drawn as a dot", () => {
  assert.deepEqual(isolated([1, null, 2, 3, null, 4]), [0, 5]);
  assert.equal(isolated([1, 2, null]), null);
  assert.deepEqual(isolated([7]), [0]);
});

test("time without points is a gap in the trends", () => {
  const line = (values: number[]) => ({ min: values, median: values, max: values, rank: values });
  const trends = { ...NO_TRENDS, at: [0, 15, 30, 45, 300, 315], goodput: [1, 2, 3, 4, 5, 6], goodput_window: [1, 2, 3, 4, 5, 6], scores: { robust: line([1, 2, 3, 4, 5, 6]) } };
  const found = withTrendGaps(trends);
  assert.deepEqual(found.at, [0, 15, 30, 45, 46, 300, 315]);
  assert.deepEqual(found.goodput, [1, 2, 3, 4, null, 5, 6]);
  assert.deepEqual(found.scores.robust!.max, [1, 2, 3, 4, null, 5, 6]);
  const whole = { ...trends, at: [0, 15, 30, 45, 60, 75] };
  assert.equal(withTrendGaps(whole), whole);
});

test("values that were not finite are stretches, which a finite one ends", () => {
  const at = [0, 15, 30, 45, 60, 75];
  assert.deepEqual(nonFinite(at, [null, 2, null, 1, null, 5], [1, null, null, null, 1, null]), [
    { values: 3, from: 15, to: 45, lasting: false },
    { values: 5, from: 75, to: 75, lasting: true },
  ]);
  assert.deepEqual(nonFinite(at, [], [1, 1, 1, 1, 1, 1]), []);
  assert.equal(nonFinite(at, [1], [null, null, null, null, null, null])[0]!.lasting, true, "no finite one has followed");
});

test("counts and steps keep their rows where there are gaps", () => {
  const row = [1, 2, 3, 4, 5, 6];
  const found = withTrendGaps({ ...NO_TRENDS, at: [0, 15, 30, 45, 300, 315], goodput: row, goodput_window: row, scores: {}, iteration: row, non_finite: { loss: row } });
  assert.deepEqual([found.iteration, found.non_finite!.loss], [[1, 2, 3, 4, null, 5, 6], [1, 2, 3, 4, null, 5, 6]]);
});

test("nothing yet is no chart that fails", () => {
  assert.deepEqual(stepChart([]).time, []);
});

test("an axis that fits its values has a least length and ends at the top", () => {
  assert.deepEqual(fitted(0.97, 0.98, 0.1, 1), [0.9, 1], "goodput near its end");
  assert.deepEqual(fitted(0, 0, 0.1, 1), [0, 1]);
  assert.deepEqual(fitted(0.5, 0.5, 0.1, 1).map((end) => Number(end.toFixed(6))), [0.44, 0.55]);
  assert.deepEqual(fitted(2, 12), [0, 13]);
  assert.deepEqual(fitted(102, 112), [100, 113]);
  assert.equal(fitted(0.68, 1, 0.1)[0].toFixed(6), "0.600000", "a round value");
  assert.deepEqual(fitted(null, null, 0.1, 1), [0, 1]);
});

test("where nothing is known is a gap, also at the edges of the axis, and a point that is on its way is none", () => {
  const line = (...values: (number | null)[]) => ({ name: "", tone: "", values });
  assert.deepEqual(gaps([10, 20, 21, 60, 70], [line(1, 1, null, 1, 1)], [0, 100]), [{ from: 0, to: 10 }, { from: 20, to: 60 }, { from: 70, to: 100 }]);
  assert.deepEqual(gaps([10, 20, 21, 60, 70], [line(1, 1, null, 1, 1), line(null, null, 2, null, null)], [9, 71]), [], "another line knows");
  assert.deepEqual(gaps([10, 20, 21, 60], [line(1, 1, null, 1)], [30, 60]), [{ from: 30, to: 60 }]);
  assert.deepEqual(gaps([10], [line(null)], [0, 20]), []);
});

test("of the logged values a loss is shown, else the first that has a value, and a throughput", () => {
  assert.deepEqual(mainValues({ lr: [1], "train/loss": [2], loss: [null] }), ["train/loss"]);
  assert.deepEqual(mainValues({ lr: [1], val_loss: [2], Loss: [3] }), ["Loss"]);
  assert.deepEqual(mainValues({ a: [null], b: [1] }), ["b"]);
  assert.deepEqual(mainValues({ a: [1], loss: [null] }, { loss: [3] }), ["loss"], "it is NaN, which is to be seen");
  assert.deepEqual(mainValues({ loss: [2], lr: [1], tokens_per_second: [3] }), ["loss", "tokens_per_second"]);
  assert.deepEqual(mainValues({ loss: [2], "perf/samples/s": [1], tokens_per_sec: [null] }), ["loss", "perf/samples/s"]);
  assert.deepEqual(mainValues({ throughput: [1] }), ["throughput"], "once");
  assert.deepEqual(mainValues({ loss: [2], "val/score": [1] }), ["loss"]);
  assert.deepEqual(mainValues({}), []);
});

test("waiting for the slowest rank is no communication, where it is known", () => {
  const waited = { ...sample(10, { compute: 0.3, communication: 0.08 }), waiting: 0.06 };
  const { lines } = stepChart([waited, sample(20, { compute: 0.3, communication: 0.08 })]);
  const of = (name: string) => lines.find((line) => line.name === name)?.values.map((value) => (value === null ? null : Math.round(value * 1000)));
  assert.deepEqual([of("waiting for other ranks"), of("communication")], [[60, null], [20, 80]]);
  assert.deepEqual(stacked(lines)[0]!.map((value) => Math.round((value ?? 0) * 1000)), [380, 0]);
  assert.equal(stepChart([sample(20, { communication: 0.08 })]).lines.some(({ name }) => name.startsWith("waiting")), false);
});

test("a change consists of shares that its sentence does not state", () => {
  const rank = contributor({ sentence: "waiting for rank 5", share: 0.9, stated: true });
  const [host, also] = [contributor({ sentence: "host", share: 0.1 }), contributor({ sentence: "section 'data'" })];
  const why = explained({ sentence: "Steps take longer: 90 % of it is waiting for rank 5.", since: 1, contributors: [rank, host!, also!] });
  assert.deepEqual(consistsOf(why), [host]);
});

test("a change of the step time is an edge at its moment", () => {
  const chart = stepChart([10, 20, 30, 40].map((at) => ({ ...sample(at, { compute: at > 20 ? 0.4 : 0.3 }), step: at > 20 ? 0.6 : 0.5 })), 20);
  assert.deepEqual(chart.time.map(Math.round), [10, 20, 20, 20, 30, 40]);
  assert.deepEqual(chart.lines.at(-1)!.values, [0.5, 0.5, 0.5, 0.6, 0.6, 0.6]);
  assert.deepEqual(chart.lines[0]!.values, [0.3, 0.3, 0.3, 0.4, 0.4, 0.4]);
  assert.ok(chart.time.every((at, i) => i === 0 || at > chart.time[i - 1]!));
});

test("the speed after a change is that of the first point which is a mean of nothing earlier", () => {
  const [time, speed] = [[0, 15, 30, 45, 60, 75], [6, 6, 5.9, 5.2, 4.5, 4.5]];
  const first = speedAfter(time, 25);
  assert.equal(first, 4);
  const { axis, along } = withEdge(time, 25, first);
  assert.deepEqual([axis.map(Math.round), along(speed)], [[0, 15, 25, 25, 60, 75], [6, 6, 6, 4.5, 4.5, 4.5]]);
  assert.equal(speedAfter(time, 70), -1, "none yet");
  assert.deepEqual(withEdge(time, 70, -1).axis, time);
  assert.equal(speedAfter([0, 15, 900, 915], 200), -1, "no point is near");
});

test("the score after a change is that of the next report of kernels, and of noise none is made", () => {
  const [time, worst] = [[0, 15, 30, 45, 60, 75], [0.99, 0.99, 0.99, 0.985, 0.69, 0.69]];
  const first = scoreAfter(time, 20, [worst, [1, 1, 1, 1, 1, 1]]);
  assert.equal(first, 4);
  assert.deepEqual(withEdge(time, 20, first).along(worst), [0.99, 0.99, 0.99, 0.69, 0.69, 0.69]);
  assert.equal(scoreAfter(time, 20, [[1, 1, 1, 1.01, 1, 0.99]]), -1);
});

test("without windows the step time is that of completed steps, and none while the speed is 0", () => {
  const { time, lines } = stepsBySpeed([1, 2, 3, 4], [2, 0, null, 4]);
  assert.deepEqual([time, lines.map(({ values }) => values)], [[1, 2, 3, 4], [[0.5, null, null, 0.25]]]);
});

test("a lost job has no points after its last message, any other job all", () => {
  const line = { min: [1, 2, 3], median: [1, 2, 3], max: [1, 2, 3], rank: [5, 6, 7] };
  const trends = { ...NO_TRENDS, at: [0, 15, 30], goodput: [1, 2, 3], goodput_window: [1, 2, 3], speed: [1, 1, 0], scores: { gpu_robust: line } };
  const lost = { state: "lost" as const, last_heard: 20 };
  const found = heard(trends, lost);
  assert.deepEqual([found.at, found.speed, found.scores.gpu_robust!.rank], [[0, 15], [1, 1], [5, 6]]);
  assert.equal(heard(trends, { ...lost, state: "running" }), trends);
  assert.equal(heardCount([0, 15], { ...lost, last_heard: null }), 2);
});

test("the cause of a change is the clock of devices, else a section of one rank, where the history has it", () => {
  const section = contributor({ kind: "section", name: "data", rank: 5 });
  const why = explained({ since: 20, contributors: [contributor({ kind: "section", name: "backward" }), section] });
  assert.deepEqual(causeOf(why), { section: "data" });
  assert.deepEqual(causeOf({ ...why, circumstances: [{ kind: "clock", sentence: "", before: null, after: null }] }), { devices: true });
  assert.equal(causeOf({ ...why, contributors: why.contributors.slice(0, 1) }), null, "it takes longer on all ranks");
  assert.equal(causeOf({ ...why, kind: "steady" }), null);
});

test("the rank that stands out is drawn against the median one, from the change on", () => {
  const of = (at: number, max: number) => ({ ...sample(at, {}), section: { median: 0.002, max, worst: max > 0.01 ? 5 : 3, calls: 1 }, device: { clock: 1.98e9, clock_min: max > 0.01 ? 1.2e9 : 1.98e9, clock_rank: max > 0.01 ? 21 : 4, temperature: max > 0.01 ? 88 : 65, temperature_rank: 21, temperature_median: 64, throttled: {} } });
  const samples = [of(10, 0.003), of(20, 0.003), of(30, 0.06)];
  const [median, slowest] = causeChart(samples, { section: "data" }, 20).lines;
  assert.deepEqual([median!.values, slowest!.values, slowest!.ranks], [[0.002, 0.002, 0.002, 0.002, 0.002], [0.003, 0.003, 0.003, 0.06, 0.06], [3, 3, 3, 5, 5]]);
  assert.deepEqual(causeChart(samples, { devices: true }, null).lines.map(({ values }) => values), [[1.98e9, 1.98e9, 1.98e9], [1.98e9, 1.98e9, 1.2e9]]);
  assert.deepEqual(causeChart([sample(10, {})], { devices: true }, null).lines[0]!.values, [null]);
  assert.deepEqual(causeChart(samples, { devices: true }, null).lines.map(({ ranks }) => ranks), [undefined, [4, 4, 21]]);
  assert.deepEqual(temperatureChart(samples, null)!.lines.map(({ values, ranks }) => [values, ranks]), [[[64, 64, 64], undefined], [[65, 65, 88], [21, 21, 21]]]);
  assert.equal(temperatureChart([sample(10, {})], null), null);
});

test("no line joins the step times of two attempts, and the first one of an attempt holds for its steps", () => {
  const of = (at: number, attempt: number, step: number) => ({ ...sample(at, {}), attempt, step });
  const { time, lines } = stepChart([of(10, 1, 0.5), of(20, 1, 0.5), of(60, 2, 0.7), of(70, 2, 0.7)]);
  assert.deepEqual(time.map(Math.round), [10, 20, 20, 50, 60, 70]);
  assert.deepEqual(lines.at(-1)!.values, [0.5, 0.5, null, 0.7, 0.7, 0.7]);
});

test("the speed goes on to now, and where steps cease or begin again its points have the moment", () => {
  const trends = { ...NO_TRENDS, at: [0, 15, 30], goodput: [], goodput_window: [], scores: {}, speed: [1, 1, 1] };
  const job = { ended_at: null, state: "running" as const, iterations_per_second: 1.1 };
  assert.deepEqual(speedCurve(job, trends, 40), { time: [0, 15, 30, 40], values: [1, 1, 1, 1.1] });
  assert.deepEqual(speedCurve({ ...job, state: "restarting", iterations_per_second: 0 }, trends, 40).time, trends.at, "no slope");
  assert.deepEqual(speedCurve(job, { ...trends, speed: [1, 1, 0] }, 40).time, trends.at, "no slope");
  assert.deepEqual(speedCurve({ ...job, state: "hung", iterations_per_second: 0 }, { ...trends, speed: [1, 0, 0] }, 40).values, [1, 0, 0, 0]);
  assert.deepEqual(speedCurve(job, { ...trends, speed: [null, null, null] }, 40).time, trends.at, "none was measured");
  assert.deepEqual(speedCurve({ ...job, ended_at: 30, iterations_per_second: 0 }, trends, 40).time, trends.at);
});

test("the ends of an outage are no gaps, and of none that is longer", () => {
  const row = Array.from({ length: 9 }, () => 1);
  const at = [0, 15, 20, 20.001, 22, 22.001, 25, 25.001, 40];
  const trends = points({ at, goodput: row, goodput_window: row });
  assert.equal(withTrendGaps(trends), trends);
});

test("areas are drawn first, then what lies behind the other lines", () => {
  const line = (name: string, more: object) => ({ name, tone: "text", values: [1], ...more });
  const lines = [line("b", { stack: true }), line("a", { stack: true }), line("step", {}), line("slowest", { behind: true })];
  assert.deepEqual(inOrder(lines).map(({ name }) => name), ["b", "a", "slowest", "step"]);
});

test("a row without a value lies between those that have one, or at an end", () => {
  const lines = [{ name: "a", tone: "text", values: [1, null, null, 2, null] }];
  const at = (row: number) => missingAt([10, 20, 30, 40, 50], lines, row);
  assert.deepEqual([at(0), at(1), at(2), at(4)], [null, [10, 40], [10, 40], [40, 50]]);
  assert.equal(missingAt([], [], 0), null);
});
