// History samples as columns of a chart: nulls for gaps, stacked areas.

import type { HistorySample, Incident, JobSummary, Trends, Why } from "../api/types";
import { PARTS } from "./parts";
import { plural } from "./text";
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
}

/** The parts of a step, from the lowest area up. */
const STACK: readonly (readonly [string, string])[] = [
  ["compute", PARTS.compute], ["host", PARTS.host], ["data", PARTS.data], ["communication", PARTS.communication], ["waiting for other ranks", PARTS.waiting],
];

/** The seconds of a part. Where it is known how much of the communication is waiting for the slowest rank, that is a part of its own. */
function partOf({ parts, waiting }: HistorySample, part: string): number | null | undefined {
  if (part === "waiting for other ranks") return waiting;
  const seconds = parts[part];
  return part === "communication" && seconds !== undefined ? seconds - (waiting ?? 0) : seconds;
}
/** Missing samples beyond this many sample lengths are a gap in the lines. */
const GAP = 3;

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

/** Where no line has a value: between points that are known, and at the edges of the axis. */
export function gaps(time: readonly number[], lines: readonly Line[], [from, to]: readonly [number, number]): Gap[] {
  const known = time.filter((_, i) => lines.some(({ values }) => values[i] !== null && values[i] !== undefined));
  if (known.length === 0) return [];
  const empty = new Set(time.flatMap((at, i) => (lines.every(({ values }) => values[i] === null || values[i] === undefined) ? [at] : [])));
  const least = EDGE * (to - from);
  const found: Gap[] = [];
  const [first, last] = [known[0]!, known.at(-1)!];
  if (first - from > least) found.push({ from, to: first });
  const rows = [...empty];
  known.slice(1).forEach((at, i) => {
    const before = known[i]!;
    if (at > from && before < to && rows.some((row) => row > before && row < at)) found.push({ from: Math.max(from, before), to: Math.min(to, at) });
  });
  if (to - last > least) found.push({ from: Math.max(from, last), to });
  return found;
}

/** The logged value that is shown where there is room for one: a loss, else the first; null: none has a value, be it NaN. */
export function mainValue(logged: Readonly<Record<string, readonly (number | null)[]>>, non_finite: Readonly<Record<string, unknown>> = {}): string | null {
  const known = Object.keys(logged).filter((name) => non_finite[name] !== undefined || logged[name]!.some((value) => value !== null));
  return known.find((name) => name.toLowerCase() === "loss") ?? known.find((name) => /loss/i.test(name)) ?? known[0] ?? null;
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
  const limit = GAP * median(at.slice(1).map((time, i) => time - at[i]!));
  const rows = [...at.keys()].flatMap((i) => (i > 0 && at[i]! - at[i - 1]! > limit ? [null, i] : [i]));
  if (rows.length === at.length) return trends;
  const column = (values: readonly (number | null)[]) => rows.map((i) => (i === null ? null : values[i] ?? null));
  const columns = <T extends Record<string, (number | null)[]>>(of: T) => Object.fromEntries(Object.entries(of).map(([name, values]) => [name, column(values)])) as T;
  const { goodput, goodput_without_waiting = [], goodput_window, attempt = [], speed = [] } = trends;
  return {
    ...columns({ goodput, goodput_without_waiting, goodput_window, attempt, speed }),
    at: rows.map((i, row) => (i === null ? at[rows[row - 1]!]! + 1 : at[i]!)),
    scores: Object.fromEntries(Object.entries(trends.scores).map(([name, each]) => [name, columns({ ...each })])),
    logged: columns(trends.logged ?? {}),
    non_finite: columns(trends.non_finite ?? {}),
    iteration: column(trends.iteration ?? []),
  };
}

/** A line that ends with the figure of now, or of the end of the job. */
export function withLatest(job: Pick<JobSummary, "ended_at" | "state">, now: number, time: readonly number[], values: readonly (number | null)[], latest: number | null): { time: readonly number[]; values: readonly (number | null)[] } {
  const at = job.ended_at ?? now;
  return latest === null || job.state === "lost" || at <= (time.at(-1) ?? at) ? { time, values } : { time: [...time, at], values: [...values, latest] };
}

/** Beside a line of goodput, on its time: the same without the waiting for slow ranks; none if there was no waiting. */
export function withoutWaiting(job: Pick<JobSummary, "goodput_without_waiting">, time: readonly number[], { at, goodput_without_waiting: known = [] }: Trends) {
  if (known.every((value) => value === null)) return [];
  return [{ name: "without waiting for slow ranks", tone: "slow", values: time.map((_, i) => (i < at.length ? known[i] : job.goodput_without_waiting) ?? null) }];
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

/** The step time and its parts. Parts without any value have no line. */
export function stepChart(samples: readonly HistorySample[]): StepChart {
  const rows = withGaps(samples);
  const column = (of: (sample: HistorySample) => number | null | undefined) => rows.map(({ sample }) => (sample === null ? null : of(sample) ?? null));
  const measured = STACK.filter(([part]) => samples.some((sample) => partOf(sample, part) != null));
  return {
    time: rows.map(({ at }) => at),
    lines: [
      ...[...measured].reverse().map(([part, tone]) => ({ name: part, tone, values: column((sample) => partOf(sample, part)), stack: true })),
      { name: "slowest rank", tone: "quiet", values: column((sample) => sample.step_max), dashed: true },
      { name: "step, median rank", tone: "text", values: column((sample) => sample.step) },
    ],
  };
}

/** What the change consists of, by its share, and other sights of the same seconds; what the sentence states already is left out. */
export function consistsOf({ contributors, sentence }: Why): { shares: Contributor[]; also: Contributor[] } {
  const rest = contributors.filter((each) => !sentence.includes(each.sentence));
  return { shares: rest.filter(({ share }) => share > 0).slice(0, 3), also: rest.filter(({ share }) => share <= 0).slice(0, 3) };
}

const NOTHING = "Nothing changed";
const HOUR = 3600;

/** The explanation's sentence. "Nothing changed" is about completed steps, so it stands only where nothing else happened. */
export function explanation(why: Why, job: JobSummary, incidents: readonly Incident[], now: number): string {
  if (!why.sentence.startsWith(NOTHING)) return why.sentence;
  const recent = incidents.filter((incident) => (incident.closed_at ?? now) > now - HOUR).length;
  const facts = [
    recent > 0 ? `${plural(recent, "incident")} in the last hour` : "",
    job.ended_at === null && job.state !== "running" ? `the job is ${job.state}` : "",
  ].filter(Boolean);
  if (facts.length === 0) return why.sentence;
  return `The step time did not change${why.sentence.slice(NOTHING.length).replace(/\.$/, "")}; ${facts.join("; ")}.`;
}

function withGaps(samples: readonly HistorySample[]): { at: number; sample: HistorySample | null }[] {
  const rows: { at: number; sample: HistorySample | null }[] = [];
  for (const sample of samples) {
    const before = rows.at(-1);
    if (before && sample.at - before.at > Math.max(30, GAP * sample.seconds)) rows.push({ at: before.at + 1, sample: null });
    rows.push({ at: sample.at, sample });
  }
  return rows;
}
