import assert from "node:assert/strict";
import { test } from "node:test";
import { contributor, sample as some, trends as points, why as explained } from "./samples";
import { duration, percent, speedText, times } from "../src/logic/text";
import { alike, alikeThroughout, asShown, cells, changeMarks, changeWords, comparedWords, curves, directionWords, dividedBy, extent, inside, lasts, lengthWords, means, onCells, overlap, type Overlay, parseOverlay, PART, placeOf, ratio, secondsOf, shownRatio, slowestOver, SLOWEST, slowestDiffers, stretches, writeOverlay } from "../src/logic/overlay";

const trends = (rows: [at: number, attempt: number, iteration: number | null, speed: number | null][]) => points({
  at: rows.map(([at]) => at), attempt: rows.map(([, attempt]) => attempt), iteration: rows.map(([, , iteration]) => iteration),
  speed: rows.map(([, , , speed]) => speed), goodput: rows.map(() => null), goodput_window: rows.map(() => null), scores: {},
  logged: { loss: rows.map((_, i) => 10 - i) },
});

test("a comparison survives the address, and defaults are left out", () => {
  for (const [text, overlay] of [
    ["with=a%2Fb", { job: "a/b", attempt: null, own: null, axis: "step" }],
    ["with=j&with_attempt=0&attempt=3&axis=time", { job: "j", attempt: 0, own: 3, axis: "time" }],
  ] satisfies [string, Overlay][]) {
    assert.deepEqual(parseOverlay(new URLSearchParams(text)), overlay);
    const query = new URLSearchParams();
    writeOverlay(overlay, query);
    assert.equal(String(query), text);
  }
  assert.equal(parseOverlay(new URLSearchParams("with_attempt=2")), null);
  assert.equal(parseOverlay(new URLSearchParams("with=j&attempt=-1&axis=x"))!.own, null);
});

test("by time a run begins at zero, and time without points is a gap", () => {
  const found = curves(trends([[1000, 1, 1, 2], [1015, 1, 2, 2], [1030, 1, 3, 4], [1300, 1, 4, 6], [1315, 1, 5, 6]]), [], "time");
  assert.deepEqual([...found.keys()], ["speed", "log loss"]);
  assert.deepEqual(found.get("speed"), { across: [0, 15, 30, 31, 300, 315], values: [2, 2, 4, null, 6, 6] });
  assert.deepEqual(extent(found), [0, 315]);
});

test("of steps that were done again the later ones count, and points without a step have no place", () => {
  const found = curves(trends([[0, 1, null, 9], [15, 1, 10, 1], [30, 1, 20, 2], [45, 1, 30, 3], [60, 2, 20, 5], [75, 2, 40, 6]]), [], "step");
  assert.deepEqual(found.get("speed"), { across: [10, 20, 20, 40], values: [1, 2, 5, 6] });
  assert.equal(extent(curves(trends([[0, 1, null, 9]]), [], "step")), null);
});

test("samples of step times stand on the same axis", () => {
  const sample = (at: number, iteration: number, step: number) => some({ at, iteration, step });
  const run = trends([[100, 1, 5, 1], [115, 1, 9, 1]]);
  assert.deepEqual(curves(run, [sample(105, 6, 0.5), sample(115, -1, 0.7)], "step").get("step"), { across: [6], values: [0.5] });
  assert.deepEqual(curves(run, [sample(90, 4, 0.4), sample(105, 6, 0.5)], "time").get("step"), { across: [5], values: [0.5] });
});

test("both runs get a value for each place of the common axis", () => {
  const on = cells([0, 40]);
  assert.equal(on.length, 41);
  const line = onCells({ across: [0, 10, 20, 21, 30, 40], values: [0, 10, 20, null, 30, 40] }, on);
  assert.deepEqual(line.slice(0, 21), on.slice(0, 21));
  assert.deepEqual(line.slice(21, 30), Array.from({ length: 9 }, () => null));
  assert.deepEqual(line.slice(30), on.slice(30));
  assert.deepEqual(onCells({ across: [10, 12], values: [1, 3] }, cells([8, 14])), [null, null, 1, 2, 3, null, null]);
});

test("a long run has as many cells as a chart has pixels, each with the mean of its points", () => {
  const on = cells([0, 80_000]);
  assert.equal(on.length, 801);
  const line = onCells({ across: [100, 120, 200], values: [1, 3, 7] }, on);
  assert.deepEqual(line.slice(0, 4), [null, 2, 7, null]);
  assert.deepEqual(onCells({ across: [], values: [] }, [0, 1]), [null, null]);
});

test("runs that share no step are told from those that do", () => {
  assert.equal(overlap([0, 500], [500, 900]), true);
  assert.equal(overlap([0, 499], [500, 900]), false);
});

test("a part of the axis is read as the seconds in which the run was there", () => {
  const run = trends([[0, 1, null, 1], [15, 1, 10, 1], [30, 1, 20, 2], [45, 1, 30, 3], [60, 2, 20, 5], [75, 2, 40, 6]]);
  assert.deepEqual(secondsOf(run, "step", [15, 25]), [15, 75], "with a point beyond each end, and the steps that were done again");
  assert.deepEqual(secondsOf(run, "time", [0, 10]), [0, 15]);
  assert.deepEqual(secondsOf(run, "step", [12, 14]), [15, 30], "between two points");
  assert.equal(secondsOf(run, "step", [50, 90]), null);
  assert.equal(secondsOf(trends([]), "step", [0, 1]), null);
});

test("one run is a multiple of the other where both have a value", () => {
  assert.deepEqual(means([1, 2, null, 9], [2, 4, 6, null]), [1.5, 3]);
  assert.equal(means([null], [1]), null);
  assert.deepEqual([times(ratio(1.27, 2.38)), times(ratio(48, 2)), times(ratio(1, 0)), times(ratio(-1, 2)), times(ratio(null, 2))], ["0.53×", "24×", "–", "–", "–"]);
});

test("a part that is read again stands where it stood in the whole run", () => {
  const part = trends([[1030, 1, 3, 4], [1045, 1, 4, 4]]);
  assert.deepEqual(curves(part, [], "time", 1000).get("speed")!.across, [30, 45]);
});

test("a part stays on the axis", () => {
  assert.deepEqual(inside([80, 120], [0, 100]), [60, 100]);
  assert.deepEqual(inside([-20, 20], [0, 100]), [0, 40]);
  assert.equal(inside([-20, 120], [0, 100]), null);
});

const compared = (name: string, one: number, two: number, format: (value: number | null) => string = duration) => ({ name, title: name.replace(PART, ""), format, both: [one, two] as const });
const sentences = (rows: ReturnType<typeof compared>[], ranks: (number | null)[] = [5, 21]) => comparedWords(rows, ["new", "old"], ranks).map((each) => each.replaceAll(/[\u2009\u202f]/g, " "));

test("a comparison in words: the step, and what differs most", () => {
  const row = (name: string, one: number, two: number) => compared(name, one, two, (value) => `${value}`);
  assert.deepEqual(sentences([row("step", 3, 2), row("loss", 2, 1), row("goodput", 0.9, 1)]), ["A step of new takes 1.50× as long as one of old (3 against 2).", "loss of new is 2.00× that of old (higher): 2 against 1."]);
  assert.deepEqual(sentences([row("step", 2, 2), row("loss", 1, 1.01)]), ["Equal step time (2).", "No other figure differs by more than 2 %."]);
  assert.deepEqual(sentences([row("loss", 1, 1)]), []);
});

test("a small difference of the step has a direction and the part in which it is", () => {
  const parts = [compared("part data", 0.005, 0.002), compared("part compute", 0.13, 0.1296)];
  const first = (rows: ReturnType<typeof compared>[]) => sentences(rows)[0];
  assert.equal(first([compared("step", 0.197, 0.193), ...parts]), "A step of new takes 1.02× as long as one of old (197 against 193 ms), mostly in data (+3 ms).");
  assert.equal(first([compared("step", 0.189, 0.193), compared("part data", 0.002, 0.005)]), "A step of new takes 0.98× as long as one of old (189 against 193 ms), mostly in data (−3 ms).");
  assert.equal(first([compared("step", 0.193, 0.193), ...parts]), "Equal step time (193 ms).");
  assert.equal(first([compared("step", 1.2, 0.6)]), "A step of new takes 2.00× as long as one of old (1.2 s against 600 ms).");
});

test("equally long steps of different causes: what each waits for, then a figure that follows from it", () => {
  const rows = [compared("step", 0.224, 0.224), compared(`${SLOWEST}data`, 0.062, 0.002), compared(`${SLOWEST}compute`, 0.13, 0.19), compared(`${SLOWEST}host`, 0.01, 0.011)];
  const first = "Equal step time (224 ms), different cause: new: rank 5 is slow in data (62 against 2 ms); old: rank 21 in compute (190 against 130 ms).";
  assert.deepEqual(sentences(rows), [first]);
  assert.deepEqual(sentences([...rows, compared("score", 1.4, 1)]), [first, "score of new is 1.40× that of old (higher): 1.4 against 1.0 s."]);
  assert.deepEqual(sentences([compared("step", 0.3, 0.2), compared(`${SLOWEST}data`, 0.002, 0.05)], [null, null]), ["A step of new takes 1.50× as long as one of old (300 against 200 ms).", "old: the slowest rank is slow in data (50 against 2 ms)."]);
});

test("the slowest rank of a stretch is the one of most of its samples", () => {
  const samples = [3, 5, 5, 7, null].map((rank, i) => some({ at: 10 * i, iteration: i, slowest: rank === null ? null : { rank, work: 0.2, late: 0.1, parts: {} } }));
  const over = (from: number, to: number, axis: "step" | "time" = "step") => slowestOver(samples, axis, 0, [from, to]);
  assert.deepEqual([over(0, 2), over(0, 3), over(4, 4), over(9, 10), over(10, 20, "time")], [5, null, null, null, 5]);
});

test("goodput is that of the whole run for both, and the parts of a step are figures", () => {
  const history = { ...trends([[0, 1, 1, 1], [15, 1, 2, 1]]), goodput: [0.9, 0.95], goodput_window: [0.5, 0.6] };
  const sample = some({ at: 5, iteration: 1, step: 0.2, parts: { data: 0.01 } });
  const found = curves(history, [sample], "step");
  assert.deepEqual(found.get("goodput")!.values, [0.9, 0.95]);
  assert.deepEqual(found.get("part data"), { across: [1], values: [0.01] });
  assert.deepEqual([lasts([1, 2, null], [3, 4, 5]), lasts([1, null], [null, 1])], [[2, 4], null]);
});

test("communication is without the waiting for other ranks, which is a figure of its own, as in the chart of one job", () => {
  const sample = some({ at: 5, iteration: 1, step: 0.2, parts: { communication: 0.08 }, waiting: 0.06 });
  const found = curves(trends([[0, 1, 1, 1], [15, 1, 2, 1]]), [sample], "step");
  assert.deepEqual(["communication", "waiting for other ranks"].map((part) => found.get(`part ${part}`)!.values.map((value) => value!.toFixed(3))), [["0.020"], ["0.060"]]);
});

test("the mean speed over steps is steps divided by seconds", () => {
  const [fast, slow] = [6, 4];
  const [mean] = means([fast, slow], [1, 1], true)!;
  assert.equal(mean.toFixed(6), (2 / (1 / fast + 1 / slow)).toFixed(6));
  assert.deepEqual(means([4, 0], [2, 2], true), [4, 2], "no step completes at a speed of 0");
});

test("figures change at the step of the change, and the means on each side are values that occurred", () => {
  const rows = Array.from({ length: 13 }, (_, i) => ({ at: 10 * i, iteration: i < 7 ? 6 * i * 10 : 360 + 40 * (i - 6), step: i < 7 ? 1 / 6 : 1 / 4 }));
  const samples = rows.map(some);
  // The speed is the mean of the 30 s before.
  const run = trends(rows.map(({ at, iteration, step }) => [at, 1, iteration, at > 60 && at < 90 ? 5 : 1 / step]));
  assert.equal(placeOf(60, samples, "step", 0), 360);
  assert.equal(placeOf(65, samples, "step", 0), 380);
  assert.equal(placeOf(65, samples, "time", 5), 60);
  assert.equal(placeOf(500, samples, "step", 0), null);
  const found = curves(run, samples, "step", 0, 60);
  const on = cells([0, 600]);
  for (const [name, before, since] of [["speed", 6, 4], ["step", 1 / 6, 1 / 4]] as const) {
    const values = onCells(found.get(name)!, on);
    assert.deepEqual([values[350], values[362]], [before, since], name);
  }
});

test("the axis is cut at changes, those at about the same place once, and not at its ends", () => {
  assert.deepEqual(stretches([0, 1000], [null, null]), [[0, 1000]]);
  assert.deepEqual(stretches([0, 1000], [600, 605]), [[0, 600], [605, 1000]]);
  assert.deepEqual(stretches([0, 1000], [800, 300]), [[0, 300], [300, 800], [800, 1000]]);
  assert.deepEqual(stretches([0, 1000], [5, 995]), [[5, 1000]]);
  assert.deepEqual(stretches([0, 1000], [600], 1), [[0, 599], [600, 1000]], "a step belongs to one of them");
});

test("a mark names the run that changed there", () => {
  const marks = (one: number | null, other: number | null) => changeMarks([one, other], ["new", "old"], (at) => `step ${at}`);
  assert.deepEqual(marks(40, 40), [{ at: 40, words: "both change at step 40" }]);
  assert.deepEqual(marks(40, 60).map(({ words }) => words), ["new changes at step 40", "old changes at step 60"]);
  assert.deepEqual([marks(null, 60).map(({ words }) => words), marks(null, null)], [["old changes at step 60"], []]);
});

test("means that differ by 2 % as they are shown, or less, are alike", () => {
  const pair = (one: number, two: number) => ({ both: [one, two] as const, format: duration });
  assert.deepEqual([pair(0.1692, 0.1688), pair(0.102, 0.1), pair(0.103, 0.1), pair(0, 0), pair(0, 1)].map(alike), [true, true, false, true, false]);
});

test("a change has its factor, its place, its figures and its cause", () => {
  const contributors = [contributor({ words: "waiting for rank 5 on host-0, whose data takes 59.9 ms longer than the others'", share: 0.99 })];
  const why = explained({ since: 1, before: 0.1692, after: 0.2241, contributors });
  assert.equal(
    changeWords("slowed", why, "step 2,659").replaceAll("\u2009", " "),
    "A step of slowed takes 1.33× as long since step 2,659 (169 ms → 224 ms): waiting for rank 5 on host-0, whose data takes 59.9 ms longer than the others'.",
  );
  assert.match(changeWords("a", { ...why, contributors: [] }, "step 9"), /→ 224.ms\)\.$/);
});

test("a ratio names what is divided by what, what that means, and how much it is of", () => {
  assert.equal(dividedBy(["attempt 4", "attempt 1"]), "attempt 4 ÷ attempt 1");
  const words = ([["step", 1.12], ["speed", 0.88], ["log loss", 0.9], [`${PART}data`, 0.5], ["goodput", 0.9], ["score gpu", 1.43], ["step", 1.004], ["goodput", null]] as const).map(([name, multiple]) => directionWords(name, multiple));
  assert.deepEqual(words, [" (longer)", " (slower)", " (lower)", " (shorter)", " (worse)", " (better)", "", ""]);
  assert.equal(lengthWords([59, 2659], "step"), "2,601 steps of each");
  assert.match(lengthWords([0, 900], "time"), /^15.min of each$/);
});

test("by time no line joins the step times of two attempts", () => {
  const of = (at: number, attempt: number) => some({ at, iteration: at, step: attempt, attempt });
  const { values } = curves(trends([[0, 1, 0, 1], [80, 2, 80, 1]]), [of(10, 1), of(20, 1), of(60, 2), of(70, 2)], "time").get("step")!;
  assert.deepEqual(values, [1, 1, null, 2, 2, 2]);
});

test("a ratio is that of the figures as they are shown, whatever they are rounded from", () => {
  const score = (value: number | null) => (value ?? 0).toFixed(2);
  assert.equal(times(shownRatio(0.9949, 0.6851, score)), "1.43×", "0.99 against 0.69");
  assert.deepEqual([[0.1692, 0.2241], [0.1688, 0.2243]].map(([before, after]) => times(shownRatio(after!, before!, duration))), ["1.33×", "1.33×"]);
  assert.deepEqual([asShown(1.25, duration), asShown(0.98876, percent), asShown(4.4671, speedText)].map((value) => value.toFixed(4)), ["1.3000", "0.9890", "4.4700"]);
  assert.deepEqual([asShown(125.4, duration), asShown(0.0333, speedText)], [125.4, 0.0333], "two units, and a reciprocal");
});

test("sentence and table have one direction: the open job against the other one", () => {
  const score = { name: "score gpu_robust", title: "GPU score, robust", format: (value: number | null) => (value ?? 0).toFixed(2), both: [0.6851, 0.9949] as const };
  assert.deepEqual(comparedWords([score], ["throttled", "slowed"], [21, 5]), ["GPU score, robust of throttled is 0.70× that of slowed (throttled is worse): 0.69 against 0.99."]);
  const turned = { ...score, both: [score.both[1], score.both[0]] as const };
  assert.deepEqual(comparedWords([turned], ["slowed", "throttled"], [5, 21]), ["GPU score, robust of slowed is 1.43× that of throttled (throttled is worse): 0.99 against 0.69."]);
});

test("the slowest rank's parts are figures of their own, where they differ by more than a little of a step", () => {
  const sample = some({ at: 5, iteration: 1, step: 0.2, parts: { compute: 0.13 }, slowest: { rank: 21, work: 0, late: 0, parts: { compute: 0.189, data: 0.002 } } });
  const found = curves(trends([[0, 1, 1, 1], [15, 1, 2, 1]]), [sample], "step");
  assert.deepEqual(["compute", "data", "host"].map((part) => found.get(`${SLOWEST}${part}`)?.values), [[0.189], [0.002], undefined]);
  const row = (name: string, one: number, two: number) => ({ name, title: name, format: duration, both: [one, two] as const });
  const step = row("step", 0.224, 0.224);
  assert.deepEqual([row(`${SLOWEST}compute`, 0.129, 0.189), row(`${SLOWEST}data`, 0.002, 0.003)].map((each) => slowestDiffers(each, [step])), [true, false]);
});

test("a chart is folded where its figure differs neither before a change nor since, and the step time never", () => {
  const row = (name: string, one: number, two: number) => ({ name, title: name, format: duration, both: [one, two] as const });
  const before = [row("step", 0.169, 0.169), row("speed", 5.9, 5.9), row("log a", 1, 1), row(`${SLOWEST}data`, 0.002, 0.003), row(`${SLOWEST}host`, 0.01, 0.01)];
  const since = [row("step", 0.224, 0.224), row("speed", 4.5, 4.5), row("log a", 1, 3), row(`${SLOWEST}data`, 0.062, 0.002)];
  assert.deepEqual(alikeThroughout([before]), ["speed", "log a", `${SLOWEST}data`, `${SLOWEST}host`]);
  assert.deepEqual([...new Set(alikeThroughout([before, since]))], ["speed", `${SLOWEST}host`]);
  assert.deepEqual(alikeThroughout([]), []);
});
