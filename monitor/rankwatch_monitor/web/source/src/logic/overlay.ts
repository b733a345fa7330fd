// Two runs on one axis: of steps, or of the time since each began. A run is a job, or one attempt of it.

import type { HistorySample, Trends, Why } from "../api/types";
import { type Mark, PART_NAMES, partOf, scoreAfter, speedAfter, stepAfter, stepRows, withEdge, withTrendGaps } from "./charts";
import { SCORES } from "./stragglers";
import { listed, ofStep, plural, times, wholeDuration } from "./text";

export type Axis = "step" | "time";

/** What a job is compared with; an attempt that is null stands for the whole run. */
export interface Overlay {
  job: string;
  attempt: number | null;
  /** The attempt of the job that is open. */
  own: number | null;
  axis: Axis;
}

/** The comparison of an address: "with=JOB&with_attempt=2&attempt=3&axis=time"; null: none. */
export function parseOverlay(named: URLSearchParams): Overlay | null {
  const job = named.get("with");
  const attempt = (name: string) => (/^\d{1,15}$/.test(named.get(name) ?? "") ? Number(named.get(name)) : null);
  return job ? { job, attempt: attempt("with_attempt"), own: attempt("attempt"), axis: named.get("axis") === "time" ? "time" : "step" } : null;
}

export function writeOverlay({ job, attempt, own, axis }: Overlay, query: URLSearchParams): void {
  query.set("with", job);
  if (attempt !== null) query.set("with_attempt", String(attempt));
  if (own !== null) query.set("attempt", String(own));
  if (axis === "time") query.set("axis", "time");
}

/** Values along an axis in its order; null is a gap. */
export interface Curve {
  across: number[];
  values: (number | null)[];
}

/** The name of a part of the step time begins with it. */
export const PART = "part ";
/** And that of a part of the slowest rank's own work: medians over the ranks hide it. */
export const SLOWEST = "slowest ";
/** Whether a figure is a part of the step time. */
export const isPart = (name: string): boolean => name.startsWith(PART) || name.startsWith(SLOWEST);

/** The figures of a run as curves, by name: "step", "part NAME", "slowest NAME", "speed", "goodput", "log LOSS", "score NAME". */
export type Curves = Map<string, Curve>;

interface Row {
  at: number;
  attempt?: number | null;
  iteration?: number | null | undefined;
}

/** The rows that stand on the axis, with their places. Of steps that were done again after a restart, the later ones count. */
function places(rows: readonly Row[], axis: Axis, began: number): [row: number, across: number][] {
  if (axis === "time") return rows.map(({ at }, i) => [i, at - began]);
  const found: [number, number][] = [];
  rows.forEach(({ iteration }, i) => {
    if (iteration === null || iteration === undefined || iteration < 0) return;
    while (found.length > 0 && found.at(-1)![1] > iteration) found.pop();
    found.push([i, iteration]);
  });
  return found;
}

/** `samples` are those of the step times, `began` is when the run did, `change` is the moment of one. Figures without any value are left out. */
export function curves(points: Trends, samples: readonly HistorySample[], axis: Axis, began = points.at[0] ?? 0, change: number | null = null): Curves {
  const trends = axis === "time" ? withTrendGaps(points) : points;
  const rows = trends.at.map((at, i) => ({ at, iteration: trends.iteration?.[i] ?? null }));
  const edge = change === null ? null : placeOf(change, samples, axis, began);
  const found: Curves = new Map();
  const adder = (of: readonly Row[]) => {
    const placed = places(of, axis, began).filter(([, place]) => of !== steps || place >= 0);
    const [on, times] = [placed.map(([, place]) => place), placed.map(([row]) => of[row]!.at)];
    return (name: string, values: readonly (number | null)[] | undefined, first: (times: readonly number[], at: number, values: readonly (number | null)[]) => number = () => -1) => {
      const each = placed.map(([row]) => values?.[row] ?? null);
      const { axis: across, along } = withEdge(on, edge, change === null ? -1 : first(times, change, each));
      if (each.some((value) => value !== null)) found.set(name, { across: [...across], values: along(each) });
    };
  };
  const steps = axis === "time" ? stepRows(samples) : samples.map((sample) => ({ at: sample.at, iteration: sample.iteration, sample }));
  const addStep = adder(steps);
  const column = (of: (sample: HistorySample) => number | null | undefined) => steps.map(({ sample }) => (sample === null ? null : of(sample) ?? null));
  addStep("step", column(({ step }) => step), stepAfter);
  for (const part of PART_NAMES) addStep(`${PART}${part}`, column((sample) => partOf(sample, part)), stepAfter);
  for (const part of PART_NAMES) addStep(`${SLOWEST}${part}`, column(({ slowest }) => slowest?.parts[part]), stepAfter);
  const add = adder(rows);
  add("speed", trends.speed, speedAfter);
  for (const [name, values] of Object.entries(trends.logged ?? {})) add(`log ${name}`, values);
  add("goodput", trends.goodput);
  for (const [name] of SCORES) add(`score ${name}`, trends.scores[name]?.min, (times, at, values) => scoreAfter(times, at, [values]));
  return found;
}

/** Where a moment stands on the axis, by the samples of step times; null: outside of them. */
export function placeOf(moment: number, samples: readonly HistorySample[], axis: Axis, began: number): number | null {
  if (axis === "time") return moment - began;
  const on = places(samples, axis, began);
  const next = on.findIndex(([row]) => samples[row]!.at > moment);
  if (next < 1) return null;
  const [[before, from], [after, to]] = [on[next - 1]!, on[next]!];
  return from + ((to - from) * (moment - samples[before]!.at)) / (samples[after]!.at - samples[before]!.at);
}

/** The seconds in which a run was between two places of the axis, with a point beyond each end; null: it never was. */
export function secondsOf({ at, iteration }: Trends, axis: Axis, [from, to]: readonly [number, number]): [number, number] | null {
  const began = at[0] ?? 0;
  const across = at.map((time, i) => (axis === "time" ? time - began : iteration?.[i] ?? -1));
  const within = across.map((place) => place >= from && place <= to);
  const [first, last] = [within.indexOf(true), within.lastIndexOf(true)];
  if (first >= 0) return [at[Math.max(0, first - 1)]!, at[Math.min(at.length - 1, last + 1)]!];
  // Between two points.
  const after = across.findIndex((place) => place > to);
  return after > 0 ? [at[after - 1]!, at[after]!] : null;
}

/** A part of an axis moved to where there is any of it; null: it is the whole. */
export function inside([from, to]: readonly [number, number], [first, last]: readonly [number, number]): [number, number] | null {
  const length = to - from;
  if (length >= last - first) return null;
  const begin = Math.min(Math.max(from, first), last - length);
  return [begin, begin + length];
}

/** One value as a multiple of another one; null: there is no sensible one. */
export function ratio(value: number | null | undefined, of: number | null | undefined): number | null {
  if (value === null || value === undefined || of === null || of === undefined || value < 0 || of <= 0) return null;
  return value / of;
}

/** What a unit of a figure is worth. */
const UNITS: Readonly<Record<string, number>> = { ms: 1e-3, "%": 1e-2 };

/** A value as its figure shows it; one of two units, or a reciprocal, as it is. */
export function asShown(value: number, format: (value: number) => string): number {
  const [, digits, unit = ""] = /^([\d,]+(?:\.\d+)?)(?:\s?(ms|s|%|steps\/s))?$/.exec(format(value)) ?? [];
  return digits === undefined ? value : Number(digits.replaceAll(",", "")) * (UNITS[unit] ?? 1);
}

/** The ratio of two figures, as a reader of both would calculate it. */
export function shownRatio(value: number | null | undefined, of: number | null | undefined, format: (value: number) => string): number | null {
  return value == null || of == null ? null : ratio(asShown(value, format), asShown(of, format));
}

/** A figure of one run against the same of another one. */
export const dividedBy = ([one, other]: readonly [string, string]): string => `${one} ÷ ${other}`;

/** What a larger figure is, and a smaller one. */
function directions(name: string): readonly [more: string, less: string] {
  if (name === "step" || isPart(name)) return ["longer", "shorter"];
  if (name === "speed") return ["faster", "slower"];
  return name === "goodput" || name.startsWith("score ") ? ["better", "worse"] : ["higher", "lower"];
}

/** " (slower)", of the first run against the second; with `names` the worse one is named: " (b is worse)". Empty: they are the same, or there is no ratio. */
export function directionWords(name: string, multiple: number | null, names?: readonly [string, string]): string {
  if (multiple === null || Math.abs(multiple - 1) < 0.005) return "";
  const [less, way] = [multiple > 1 ? 1 : 0, directions(name)[multiple > 1 ? 0 : 1]];
  return ` (${names && directions(name)[1] === "worse" ? `${names[less]} is worse` : way})`;
}

/** "62 against 2 ms"; both units, where they differ. */
function against(one: string, other: string): string {
  const [value, unit] = one.split("\u2009");
  return `${unit !== undefined && other.split("\u2009").slice(1).join() === unit ? value : one} against ${other}`;
}

/** How much of the axis a mean is over: "2,005 steps of each", "15 min of each". */
export const lengthWords = ([from, to]: readonly [number, number], axis: Axis): string => `${axis === "step" ? plural(Math.floor(to) - Math.ceil(from) + 1, "step") : wholeDuration(to - from)} of each`;

/** Means of two lines over the places at which both have a value; null: there are none. `ofRates`: of steps per second by step, so steps divided by their seconds; those in which none completed take no step. */
export function means(one: readonly (number | null)[], other: readonly (number | null)[], ofRates = false): [number, number] | null {
  let [sum, others, n] = [0, 0, 0];
  one.forEach((value, i) => {
    const against = other[i] ?? null;
    if (value === null || against === null || (ofRates && value * against === 0)) return;
    [sum, others, n] = ofRates ? [sum + 1 / value, others + 1 / against, n + 1] : [sum + value, others + against, n + 1];
  });
  return n === 0 ? null : ofRates ? [n / sum, n / others] : [sum / n, others / n];
}

/** A stretch of the axis is this share of it at least. */
const STRETCH = 0.02;

/** The axis between the places of changes, in its order: means over one would be values that never occurred. `apart`: from the end of one to the next, of steps. */
export function stretches([from, to]: readonly [number, number], changes: readonly (number | null)[], apart = 0): [number, number][] {
  const least = STRETCH * (to - from);
  const found: [number, number][] = [[from, to]];
  for (const at of changes.filter((each) => each !== null).sort((a, b) => a - b)) {
    const last = found.at(-1)!;
    if (to - at < least) continue;
    // Another run's change at about the same place: what follows begins after both.
    if (at - last[0] < least) last[0] = Math.max(last[0], at);
    else found.splice(-1, 1, [last[0], at - apart], [at, to]);
  }
  return found;
}

/** The changes of both on the axis: "both change at step 2,659", "new changes at step 40". */
export function changeMarks([one, other]: readonly (number | null)[], names: readonly [string, string], across: (place: number) => string): Mark[] {
  const mark = (at: number | null | undefined, of: string) => (at == null ? [] : [{ at, words: `${of} at ${across(at)}` }]);
  return one != null && other != null && across(one) === across(other) ? mark(one, "both change") : [...mark(one, `${names[0]} changes`), ...mark(other, `${names[1]} changes`)];
}

/** "a takes 1.32× as long since step 2,659 (169 ms → 224 ms): waiting for rank 5 on host-0, whose data takes 60 ms longer than the others'." */
export function changeWords(name: string, { before, after, contributors: [first] }: Why, place: string): string {
  if (!before || !after) return "";
  const cause = first === undefined ? "" : `: ${first.words}`;
  return `A step of ${name} takes ${times(shownRatio(after, before, ofStep))} as long since ${place} (${ofStep(before)} → ${ofStep(after)})${cause}.`;
}

/** The last values of two lines where both have one; null: there are none. */
export function lasts(one: readonly (number | null)[], other: readonly (number | null)[]): [number, number] | null {
  const at = one.findLastIndex((value, i) => value !== null && (other[i] ?? null) !== null);
  return at < 0 ? null : [one[at]!, other[at]!];
}

/** First and last place of all figures; null: there are none. */
export function extent(of: Curves): [number, number] | null {
  const ends = [...of.values()].flatMap(({ across }) => [across[0]!, across.at(-1)!]);
  return ends.length === 0 ? null : [Math.min(...ends), Math.max(...ends)];
}

export const overlap = ([a, b]: readonly [number, number], [c, d]: readonly [number, number]): boolean => Math.max(a, c) <= Math.min(b, d);

/** Cells of the common axis at most; a chart has about as many pixels. */
const CELLS = 800;

/** The places of the common axis: whole steps, or seconds. */
export function cells([from, to]: readonly [number, number]): number[] {
  const each = Math.max(1, Math.ceil((to - from) / CELLS));
  return Array.from({ length: Math.floor((to - from) / each) + 1 }, (_, i) => Math.floor(from) + each * i);
}

/** The curve on these places: the mean of the values of a cell, or what lies between its neighbours; null beyond its ends and in gaps. */
export function onCells({ across, values }: Curve, on: readonly number[]): (number | null)[] {
  const half = on.length > 1 ? (on[1]! - on[0]!) / 2 : 0.5;
  let next = 0;
  return on.map((place) => {
    while (next < across.length && across[next]! < place - half) next++;
    let [sum, n, last] = [0, 0, next];
    for (; last < across.length && across[last]! < place + half; last++) {
      const value = values[last];
      if (value !== null && value !== undefined) [sum, n] = [sum + value, n + 1];
    }
    if (n > 0) return sum / n;
    if (last > next || next === 0 || next === across.length) return null;
    const [before, after] = [values[next - 1], values[next]];
    if (before === null || before === undefined || after === null || after === undefined) return null;
    const share = (place - across[next - 1]!) / (across[next]! - across[next - 1]!);
    return before + (after - before) * share;
  });
}

/** Spacings of the labels of an axis of seconds. */
export const SECONDS_APART: readonly number[] = [1, 5, 10, 30, 60, 300, 600, 1800, 3600, 7200, 21_600, 43_200, 86_400, 172_800];
/** And of steps. */
export const STEPS_APART: readonly number[] = Array.from({ length: 30 }, (_, i) => [1, 2, 5][i % 3]! * 10 ** Math.floor(i / 3));

/** A figure of both runs: their means over what is shown. */
export interface Compared {
  name: string;
  title: string;
  format: (value: number | null) => string;
  both: readonly [number, number];
}

/** Means that differ by less are the same in words. */
const SAME = 0.02;

/** Whether the means are the same within 2 %, as they are shown. */
export function alike({ both: [one, two], format }: Pick<Compared, "both" | "format">): boolean {
  const multiple = shownRatio(one, two, format);
  return multiple === null ? one === two : Math.abs(Math.log(multiple)) <= Math.log(1 + SAME);
}

/** Parts that are named at most, and the share of the difference that one has at least. */
const [NAMED, LEAST] = [2, 0.2];

/** Whether the slowest ranks of both differ in a part by more than a little of a step. */
export function slowestDiffers({ both: [one, two] }: Compared, rows: readonly Compared[]): boolean {
  const step = rows.find(({ name }) => name === "step");
  return step !== undefined && Math.abs(one - two) > SAME * Math.min(...step.both);
}

/** The figures that differ over a stretch. */
export const differing = (rows: readonly Compared[]): Compared[] => rows.filter((row) => (row.name.startsWith(SLOWEST) ? slowestDiffers(row, rows) : !alike(row)));

/** The names of those, but the step time, that differ over none of the stretches. */
export function alikeThroughout(means: readonly (readonly Compared[])[]): string[] {
  const differ = ["step", ...means.flatMap(differing).map(({ name }) => name)];
  return means.flat().map(({ name }) => name).filter((name) => !differ.includes(name));
}

/** The slowest rank of each; null: no single one. */
type Ranks = readonly (number | null)[];

/** Which of the two takes longer for a step and for what, then in which other figure they differ most: sentences, the first by itself. */
export function comparedWords(rows: readonly Compared[], names: readonly [string, string], ranks: Ranks): string[] {
  const multiple = ({ both: [one, two], format }: Compared) => shownRatio(one, two, format) ?? 1;
  const step = rows.find(({ name }) => name === "step");
  const [most] = rows
    .filter((row) => row.name !== "step" && row.name !== "speed" && !isPart(row.name) && multiple(row) > 0 && !alike(row))
    .sort((a, b) => Math.abs(Math.log(multiple(b))) - Math.abs(Math.log(multiple(a))));
  const causes = causeWords(rows.filter((row) => row.name.startsWith(SLOWEST) && slowestDiffers(row, rows)), names, ranks);
  const figure = most && `${most.title} of ${names[0]} is ${times(multiple(most))} that of ${names[1]}${directionWords(most.name, multiple(most), names)}: ${against(most.format(most.both[0]), most.format(most.both[1]))}.`;
  const rest = figure ?? (step && causes === "" ? "No other figure differs by more than 2\u2009%." : "");
  const [first, second] = step === undefined ? ["", ""] : stepWords(step, rows, names, causes);
  return [first, second, rest].filter(Boolean);
}

/** The rank that is the slowest over most of a stretch; null: none is. */
export function slowestOver(samples: readonly HistorySample[], axis: Axis, began: number, [from, to]: readonly [number, number]): number | null {
  const ranks = places(samples, axis, began).filter(([, place]) => place >= from && place <= to).map(([row]) => samples[row]!.slowest?.rank);
  return ranks.find((rank, _, all) => 2 * all.filter((each) => each === rank).length > all.length) ?? null;
}

/** What the slowest ranks of each spend more on: "new: rank 5 is slow in data (62 against 2 ms); old: rank 21 in compute (190 against 130 ms)". */
function causeWords(rows: readonly Compared[], names: readonly [string, string], ranks: Ranks): string {
  const more = ([0, 1] as const).flatMap((i) => {
    const found = rows.filter(({ both }) => both[i] > both[1 - i]!).map(({ name, both, format }) => `${name.slice(SLOWEST.length)} (${against(format(both[i]), format(both[1 - i]!))})`);
    return found.length === 0 ? [] : [[`${names[i]}: ${ranks[i] == null ? "the slowest rank" : `rank ${ranks[i]}`}`, listed(found)]];
  });
  return more.map(([rank, parts], i) => `${rank} ${i === 0 ? "is slow " : ""}in ${parts}`).join("; ");
}

/** "Equal step time (224 ms), different cause: …", or "A step of new takes 1.02× as long as one of old (197 against 193 ms), mostly in data (+3 ms)", and the causes. */
function stepWords({ both: [one, two], format }: Compared, rows: readonly Compared[], [own, other]: readonly [string, string], causes: string): [string, string] {
  if (format(one) === format(two)) return [`Equal step time (${format(one)})${causes && `, different cause: ${causes}`}.`, ""];
  const more = one - two;
  const parts = rows
    .filter(({ name }) => name.startsWith(PART))
    .map(({ title, both }) => ({ title, more: both[0] - both[1] }))
    .filter((part) => part.more / more >= LEAST)
    .sort((a, b) => Math.abs(b.more) - Math.abs(a.more))
    .slice(0, NAMED)
    .map((part) => `${part.title} (${part.more > 0 ? "+" : "−"}${format(Math.abs(part.more))})`);
  const mostly = parts.length > 0 ? `, mostly in ${listed(parts)}` : "";
  return [`A step of ${own} takes ${times(shownRatio(one, two, format))} as long as one of ${other} (${against(format(one), format(two))})${mostly}.`, causes && `${causes}.`];
}
