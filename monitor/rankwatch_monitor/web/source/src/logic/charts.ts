// History samples as columns of a chart: nulls for gaps, stacked areas.

import type { HistorySample, JobSummary, Trends, Why } from "../api/types";
import { PARTS } from "./parts";
import { median } from "./timeline";

type Contributor = Why["contributors"][number];

export interface Line {
  name: string;
  /** The name of its colour in CSS, without its dashes. */
  tone: string;
  values: readonly (number | null)[];
  /** An area on top of the ones that follow it; areas come first. */
  stack?: boolean;
  dashed?: boolean;
  /** The name of a colour to fill the ground under it with. */
  fill?: string;
  /** It lies behind the others, and is broader, so that both are seen where they are the same. */
  behind?: boolean;
  /** The rank that each value is of, where it is one. */
  ranks?: readonly (number | null)[];
}

/** A place of the axis at which something changed. */
export interface Mark {
  at: number;
  words: string;
}

/** The parts of a step, from the lowest area up. */
const STACK: readonly (readonly [string, string])[] = [
  ["compute", PARTS.compute], ["host", PARTS.host], ["data", PARTS.data], ["communication", PARTS.communication], ["waiting for other ranks", PARTS.waiting],
];

/** Their names, as the charts and a comparison have them. */
export const PART_NAMES: readonly string[] = STACK.map(([part]) => part);

/** The seconds of a part. Where it is known how much of the communication is waiting for the slowest rank, that is a part of its own. */
export function partOf({ parts, waiting }: HistorySample, part: string): number | null | undefined {
  if (part === "waiting for other ranks") return waiting;
  const seconds = parts[part];
  return part === "communication" && seconds !== undefined ? seconds - (waiting ?? 0) : seconds;
}
/** The two ends of an edge are closer than this. */
const EDGE_S = 1;
/** Missing samples beyond this many sample lengths are a gap in the lines. */
const GAP = 3;

/** In the order in which they are drawn: areas, then what lies behind the other lines. */
export const inOrder = (lines: readonly Line[]): Line[] => [...lines].sort((a, b) => layer(a) - layer(b));
const layer = ({ stack, behind }: Line): number => (stack ? 0 : behind ? 1 : 2);

/** Where each line is drawn: an area lies on those that follow it in the list. */
export function stacked(lines: readonly Line[]): (number | null)[][] {
  const drawn = lines.map((line) => [...line.values]);
  for (let i = lines.length - 2; i >= 0; i--) {
    if (!lines[i]!.stack || !lines[i + 1]!.stack) continue;
    drawn[i] = drawn[i]!.map((value, at) => (value === null ? null : value + (drawn[i + 1]![at] ?? 0)));
  }
  return drawn;
}

/** An axis of shares reaches over a tenth at least, so that small changes remain small. */
export const SHORTEST_SHARE = 0.1;
/** One of scores over more: they vary by 1 % by chance, and 0.1 less is slow. */
export const SHORTEST_SCORE = 0.3;

/** A quarter of a length or less: 1, 2 or 5 times a power of ten. */
function rounding(length: number): number {
  const power = 10 ** Math.floor(Math.log10(length / 4));
  return power * [1, 2, 5].findLast((each) => each * power <= length / 4 + 1e-12)!;
}

/** A value axis from the least to the largest value with some room, and of a least length, from a round value on; a constant has its value in the middle. */
export function fitted(low: number | null, high: number | null, least = 0, top = Number.POSITIVE_INFINITY): [number, number] {
  if (low === null || high === null) return [0, Number.isFinite(top) ? top : 1];
  const room = (high - low) * 0.1 || Math.abs(high) * 0.1 || 1;
  const end = Math.max(high, Math.min(top, high + room));
  const round = rounding(Math.max(least, high - low + 2 * room));
  const begin = low >= 0 && low < room ? 0 : Math.floor((low - room) / round + 1e-9) * round;
  if (end - begin >= least) return [begin, end];
  const last = Math.min(Math.max(high, top), (begin + end + least) / 2);
  const first = low >= 0 ? Math.max(0, last - least) : last - least;
  return [first, first + least];
}

/** A stretch of the axis of which nothing is known. */
export interface Gap {
  from: number;
  to: number;
}

/** A gap at an edge of the axis is drawn from this share of it on; points there are still on their way. */
const EDGE = 0.03;

const isKnown = (lines: readonly Line[], i: number): boolean => lines.some(({ values }) => values[i] != null);

/** Where no line has a value: between points that are known, and at the edges of the axis. */
export function gaps(time: readonly number[], lines: readonly Line[], [from, to]: readonly [number, number]): Gap[] {
  const known = time.filter((_, i) => isKnown(lines, i));
  if (known.length === 0) return [];
  const empty = time.filter((_, i) => !isKnown(lines, i));
  const least = EDGE * (to - from);
  const found: Gap[] = [];
  const [first, last] = [known[0]!, known.at(-1)!];
  if (first - from > least) found.push({ from, to: first });
  known.slice(1).forEach((at, i) => {
    const before = known[i]!;
    if (at > from && before < to && empty.some((row) => row > before && row < at)) found.push({ from: Math.max(from, before), to: Math.min(to, at) });
  });
  if (to - last > least) found.push({ from: Math.max(from, last), to });
  return found;
}

/** The stretch around a row in which no line has a value; null: one has. */
export function missingAt(time: readonly number[], lines: readonly Line[], row: number): [from: number, to: number] | null {
  const known = (i: number) => isKnown(lines, i);
  if (time.length === 0 || known(row)) return null;
  const rows = [...time.keys()];
  const [before, after] = [rows.findLastIndex((i) => i < row && known(i)), rows.findIndex((i) => i > row && known(i))];
  return [time[before] ?? time[0]!, time[after] ?? time.at(-1)!];
}

/** The logged values that are shown where there is room for two: a loss, else the first, and a throughput; of those with a value, be it NaN. */
export function mainValues(logged: Readonly<Record<string, readonly (number | null)[]>>, non_finite: Readonly<Record<string, unknown>> = {}): string[] {
  const known = Object.keys(logged).filter((name) => non_finite[name] !== undefined || logged[name]!.some((value) => value !== null));
  const first = (pattern: RegExp) => known.find((name) => pattern.test(name));
  const main = first(/^loss$/i) ?? first(/loss/i) ?? known[0];
  const rate = first(/per_?sec|\/s(ec)?$|throughput/i);
  return [...new Set([main, rate])].filter((name) => name !== undefined);
}

/** The points without a neighbour, which no line reaches; null: there are none. */
export function isolated(values: readonly (number | null)[]): number[] | null {
  const known = (i: number) => values[i] !== null && values[i] !== undefined;
  const found = [...values.keys()].filter((i) => known(i) && !known(i - 1) && !known(i + 1));
  return found.length > 0 ? found : null;
}

/** The same with an empty row in each gap: where the next point is much later than points usually are. */
export function withTrendGaps(trends: Trends): Trends {
  const { at } = trends;
  const limit = GAP * median(at.slice(1).map((time, i) => time - at[i]!).filter((apart) => apart > EDGE_S));
  const rows = [...at.keys()].flatMap((i) => (i > 0 && at[i]! - at[i - 1]! > limit ? [null, i] : [i]));
  return rows.length === at.length ? trends : rowsOf(trends, rows);
}

/** How many of the points are of a time in which the job was heard of: a lost one is unknown after its last message. */
export function heardCount(time: readonly number[], { state, last_heard }: Pick<JobSummary, "state" | "last_heard">): number {
  const after = state === "lost" && last_heard != null ? time.findIndex((at) => at > last_heard) : -1;
  return after < 0 ? time.length : after;
}

/** These points of the trends. */
export function heard(trends: Trends, job: Pick<JobSummary, "state" | "last_heard">): Trends {
  const count = heardCount(trends.at, job);
  return count === trends.at.length ? trends : rowsOf(trends, [...trends.at.keys()].slice(0, count));
}

/** The rows of these numbers; null: an empty one. */
function rowsOf(trends: Trends, rows: readonly (number | null)[]): Trends {
  const column = (values: readonly (number | null)[]) => rows.map((i) => (i === null ? null : values[i] ?? null));
  const columns = <T extends Record<string, (number | null)[]>>(of: T) => Object.fromEntries(Object.entries(of).map(([name, values]) => [name, column(values)])) as T;
  const { at, goodput, goodput_window, attempt, speed } = trends;
  return {
    attempts: trends.attempts,
    ...columns({ goodput, goodput_window, attempt, speed }),
    at: rows.map((i, row) => (i === null ? at[rows[row - 1]!]! + 1 : at[i]!)),
    scores: Object.fromEntries(Object.entries(trends.scores).map(([name, each]) => [name, columns({ ...each })])),
    logged: columns(trends.logged),
    non_finite: columns(trends.non_finite),
    iteration: column(trends.iteration),
  };
}

type Column = readonly (number | null)[];

/** Seconds before a change of the last point that shows what was before it, and after it of the first that shows what followed, at most. */
const [NEAR, LATE] = [90, 600];
/** Seconds of which a point of the speed is the mean. */
const MEAN_OF = 30;
/** A score that differs by less was not measured again. */
const SAME_SCORE = 0.02;
/** Distance of the two ends of a jump. */
const JUMP = 0.001;

/** The first row from a moment on that shows what followed it, and `settled` accepts; -1: there is none soon. */
function after(time: readonly number[], at: number, settled: (row: number, before: number) => boolean): number {
  const before = time.findLastIndex((each) => each <= at);
  const first = time.findIndex((each, row) => each > at && settled(row, before));
  return before < 0 || at - time[before]! > NEAR || first < 0 || time[first]! - at > LATE ? -1 : first;
}

/** The same of step times, which are those of the time since the point before. */
export const stepAfter = (time: readonly number[], at: number): number => after(time, at, () => true);
/** Of the speed, whose points before it are means over both sides. */
export const speedAfter = (time: readonly number[], at: number): number => after(time, at, (row) => time[row]! - at >= MEAN_OF);
/** Of scores, which hold until ranks report their kernels again. */
export const scoreAfter = (time: readonly number[], at: number, scores: readonly Column[]): number =>
  after(time, at, (row, before) => scores.some((each) => Math.abs((each[row] ?? 0) - (each[before] ?? 0)) > SAME_SCORE && each[row] != null && each[before] != null));

/** An axis on which what changed at a place does so at once, and columns along it. `first`: the row that shows what followed; -1: nothing moves. */
export function withEdge(axis: readonly number[], at: number | null, first: number): { axis: readonly number[]; along: <T>(column: readonly T[]) => T[] } {
  const before = at === null ? -1 : axis.findLastIndex((each) => each <= at);
  if (at === null || before < 0 || first <= before) return { axis, along: (column) => [...column] };
  const moved = <T>(column: readonly T[], two: readonly T[]) => [...column.slice(0, before + 1), ...two, ...column.slice(first)];
  return { axis: moved(axis, [at + JUMP, at + 2 * JUMP]), along: (column) => moved(column, [column[before]!, column[first]!]) };
}

/** When the step time changed; null: it did not. */
export const changeOf = (why: Pick<Why, "kind" | "since"> | null): number | null => (why?.kind === "change" ? why.since : null);

/** The speed as each chart of it draws it: what changed at a moment does so at once, and the line goes on to now. */
export function speedCurve(job: Pick<JobSummary, "ended_at" | "state" | "iterations_per_second">, trends: Trends, now: number, change: number | null = null) {
  const { axis, along } = withEdge(trends.at, change, change === null ? -1 : speedAfter(trends.at, change));
  const values = along(trends.speed);
  const latest = job.ended_at === null && values.some((value) => value !== null) ? job.iterations_per_second : null;
  // Where steps cease or begin again, the points have the moment as soon as they are read.
  const same = (latest === 0) === ((values.at(-1) ?? latest) === 0);
  return withLatest(job, now, axis, values, same ? latest : null);
}

/** A line that ends with the figure of now, or of the end of the job. */
function withLatest(job: Pick<JobSummary, "ended_at" | "state">, now: number, time: readonly number[], values: readonly (number | null)[], latest: number | null): { time: readonly number[]; values: readonly (number | null)[] } {
  const at = job.ended_at ?? now;
  return latest === null || job.state === "lost" || at <= (time.at(-1) ?? at) ? { time, values } : { time: [...time, at], values: [...values, latest] };
}

/** Goodput of the whole run, and of the last hour. */
export function goodputChart(job: Pick<JobSummary, "ended_at" | "state" | "goodput">, trends: Trends, now: number, ofLastHour: boolean): { time: readonly number[]; lines: Line[] } {
  const { time, values } = withLatest(job, now, trends.at, trends.goodput, job.goodput);
  const hour: Line = { name: "last hour", tone: "series-1", values: time.map((_, i) => trends.goodput_window[i] ?? null), dashed: true };
  return { time, lines: [{ name: "whole run", tone: "text", values }, ...(ofLastHour ? [hour] : [])] };
}

/** A stretch in which a logged value was NaN or infinite. */
export interface NonFinite {
  values: number;
  from: number;
  to: number;
  /** No finite value has followed. */
  lasting: boolean;
}

/** The stretches in which values were not finite, oldest first; a point with finite values only ends one. */
export function nonFinite(at: readonly number[], counts: readonly (number | null)[], finite: readonly (number | null)[]): NonFinite[] {
  const found: NonFinite[] = [];
  at.forEach((time, i) => {
    const last = found.at(-1);
    const values = counts[i] ?? 0;
    if (values === 0) {
      if (last && (finite[i] ?? null) !== null) last.lasting = false;
    } else if (last?.lasting) Object.assign(last, { values: last.values + values, to: time });
    else found.push({ values, from: time, to: time, lasting: true });
  });
  return found;
}

export interface StepChart {
  time: number[];
  lines: Line[];
}

/** A step of the slowest rank that is longer than the median's by this share stands out. */
const LONGER = 0.05;

/** The step time and its parts, which change at once at the moment of a change. Parts without any value have no line. Collectives make steps of all ranks equally long, so that the slowest rank is seen by its own work. */
export function stepChart(samples: readonly HistorySample[], change: number | null = null): StepChart {
  const { time, column } = columnsOf(samples, change);
  const works = samples.some(({ slowest }) => slowest != null);
  const apart = !works || samples.some(({ step, step_max }) => step_max > (1 + LONGER) * step);
  const measured = STACK.filter(([part]) => samples.some((sample) => partOf(sample, part) != null));
  return {
    time,
    lines: [
      ...[...measured].reverse().map(([part, tone]) => ({ name: part, tone, values: column((sample) => partOf(sample, part)), stack: true })),
      ...(works
        ? [
          { name: "own work, median rank", tone: "text", values: column(({ slowest }) => slowest && slowest.work - slowest.late), dashed: true },
          { name: "own work, slowest rank", tone: "rank-hung", values: column(({ slowest }) => slowest?.work), ranks: column(({ slowest }) => slowest?.rank) },
        ]
        : []),
      ...(apart ? [{ name: "step, slowest rank", tone: "quiet", values: column((sample) => sample.step_max), dashed: true, behind: true }] : []),
      { name: "step, median rank", tone: "text", values: column((sample) => sample.step) },
    ],
  };
}

/** What is measured of the cause of a change: the clocks of devices, or a section that takes longer on one rank. */
export type Cause = { devices: true } | { section: string };

/** The cause of a change that the history has; null: none. */
export function causeOf({ kind, contributors, circumstances }: Why): Cause | null {
  if (kind !== "change") return null;
  if (circumstances.some((each) => each.kind === "clock")) return { devices: true };
  const uneven = contributors.find(({ kind, rank }) => kind === "section" && rank !== null);
  return uneven === undefined ? null : { section: uneven.name };
}

/** The rank that stands out against the median one; of devices, their clocks. */
export function causeChart(samples: readonly HistorySample[], cause: Cause, change: number | null): StepChart {
  return linesOf(samples, change, "devices" in cause
    ? [{ name: "median", tone: "text", of: ({ device }) => device?.clock }, { name: "lowest of all ranks", tone: "rank-hung", of: ({ device }) => device?.clock_min, rank: ({ device }) => device?.clock_rank }]
    : [{ name: "median", tone: "text", of: ({ section }) => section?.median }, { name: "slowest rank", tone: "rank-hung", of: ({ section }) => section?.max, rank: ({ section }) => section?.worst }]);
}

/** The temperature of the hottest device and of the median one; null: none was measured. */
export function temperatureChart(samples: readonly HistorySample[], change: number | null): StepChart | null {
  if (samples.every(({ device }) => device?.temperature == null)) return null;
  return linesOf(samples, change, [{ name: "median", tone: "text", of: ({ device }) => device?.temperature_median }, { name: "highest of all ranks", tone: "rank-hung", of: ({ device }) => device?.temperature, rank: ({ device }) => device?.temperature_rank }]);
}

/** How many process groups have a line. */
const GROUPS = 4;

/** Bandwidths of the process groups that have lost most of their best in these samples; null: none was measured. */
export function bandwidthChart(samples: readonly HistorySample[], change: number | null): StepChart | null {
  const best = new Map<string, number>();
  const last = new Map<string, number>();
  for (const { bandwidths = {} } of samples) {
    for (const [group, rate] of Object.entries(bandwidths)) {
      best.set(group, Math.max(rate, best.get(group) ?? 0));
      last.set(group, rate);
    }
  }
  if (best.size === 0) return null;
  const left = (group: string) => last.get(group)! / best.get(group)!;
  const chosen = [...best.keys()].sort((a, b) => left(a) - left(b) || a.localeCompare(b)).slice(0, GROUPS);
  return linesOf(samples, change, chosen.map((name, i) => ({ name, tone: `series-${i + 1}`, of: ({ bandwidths }) => bandwidths?.[name] })));
}

type Measured = (sample: HistorySample) => number | null | undefined;

/** The time of the samples with the edge of a change, and what is measured along it. */
function columnsOf(samples: readonly HistorySample[], change: number | null): { time: number[]; column: (of: Measured) => (number | null)[] } {
  const given = stepRows(samples);
  const moments = given.map(({ at }) => at);
  const { axis, along } = withEdge(moments, change, change === null ? -1 : stepAfter(moments, change));
  const rows = along(given);
  return { time: [...axis], column: (of) => rows.map(({ sample }) => (sample === null ? null : of(sample) ?? null)) };
}

/** Lines of what is measured. */
function linesOf(samples: readonly HistorySample[], change: number | null, lines: readonly { name: string; tone: string; of: Measured; rank?: Measured }[]): StepChart {
  const { time, column } = columnsOf(samples, change);
  return { time, lines: lines.map(({ name, tone, of, rank }) => ({ name, tone, values: column(of), ...(rank && { ranks: column(rank) }) })) };
}

/** Seconds for each completed step, by the speed: where no windows of steps arrived. */
export function stepsBySpeed(time: readonly number[], speed: readonly (number | null)[]): StepChart {
  return { time: [...time], lines: [{ name: "seconds for each completed step", tone: "text", values: speed.map((value) => (value ? 1 / value : null)) }] };
}

/** A sentence of an explanation; those of the command line are ASCII. */
export const withArrows = (text: string): string => text.replaceAll(" -> ", " → ");

/** What the change consists of, by its share; what the sentence states already is left out. */
export const consistsOf = ({ contributors }: Why): Contributor[] => contributors.filter(({ share, stated }) => share > 0 && !stated).slice(0, 3);

export interface StepRow {
  at: number;
  iteration?: number | null | undefined;
  sample: HistorySample | null;
}

/** The samples, with an empty row where none came for long and between two attempts. The first one of an attempt holds for all of its steps. */
export function stepRows(samples: readonly HistorySample[]): StepRow[] {
  const rows: StepRow[] = [];
  samples.forEach((sample, i) => {
    const { at, iteration, seconds } = sample;
    const before = samples[i - 1];
    const renewed = before !== undefined && sample.attempt !== before.attempt;
    if (before && (renewed || at - before.at > Math.max(30, GAP * seconds))) rows.push({ at: before.at + JUMP, sample: null });
    if (renewed && at - seconds > before.at + EDGE_S) rows.push({ at: at - seconds, sample });
    rows.push({ at, iteration, sample });
  });
  return rows;
}
