// The table of kernels: sparklines, and the trend in words.

import type { KernelView, KernelsView, Throttle } from "../api/types";
import { clock, count, fine, listed, ofStep, plural, times } from "./text";

/** A line of a sparkline: points of each stretch without a gap, as SVG writes them. */
export interface Spark {
  median: string[];
  /** The slowest rank's, while it was the one that is the slowest now; none if it lies on that of the median. */
  slowest: string[];
  /** While it was another rank. */
  others: string[];
  /** Heights of the newest values' labels, from 0 at the top to 1. */
  ends: { median: number; slowest: number };
  /** Where the median became slower, and where the slowest rank did; null: they did not. */
  changed: number | null;
  uneven: number | null;
}

/** Lines of ranks that are nowhere apart from the median by this share cannot be seen beside it. */
const APART = 0.02;
/** The axis as a multiple of the largest value. */
const ROOM = 1.25;

/** Lines from 0 to some room above the largest value, over the time from the first to the last point. */
export function spark(kernel: KernelView, points: readonly number[], width: number, height: number): Spark {
  const { trend, slowest_trend: slowest = [], slowest_ranks: ranks = [], slower_since, uneven_since } = kernel;
  const uneven = kernel.ranks > 1 ? slowest : [];
  const top = ROOM * Math.max(1e-12, kernel.median, kernel.slowest, ...[...trend, ...uneven].map((value) => value ?? 0));
  const [first, last] = [points[0] ?? 0, points.at(-1) ?? 0];
  const across = (at: number) => (last > first ? ((at - first) / (last - first)) * width : width);
  const place = (value: number, i: number) => `${across(points[i]!).toFixed(1)},${(height - (value / top) * height).toFixed(1)}`;
  const moment = (at: number | null | undefined) => (at == null ? null : Math.max(0, Math.min(width, across(at))));
  const own = (i: number) => ranks[i] === kernel.slowest_rank;
  const other = (i: number) => !own(i);
  const line = (wanted: (i: number) => boolean) => (uneven.some((value, i) => value !== null && wanted(i) && value > (1 + APART) * (trend[i] ?? value)) ? steps(uneven, place, wanted) : []);
  const slowestLines = line(own);
  return {
    median: steps(trend, place, () => true),
    slowest: slowestLines,
    others: line(other),
    ends: labelled(1 - kernel.slowest / top, 1 - kernel.median / top, slowestLines.length > 0),
    changed: moment(slower_since),
    uneven: moment(uneven_since),
  };
}

/** Labels nearer to each other than this share of the height would touch. */
const LABELS_APART = 0.34;

/** Places of the labels of two lines, moved apart where they would touch. */
function labelled(slowest: number, median: number, two: boolean): Spark["ends"] {
  const by = two ? Math.max(0, LABELS_APART - (median - slowest)) / 2 : 0;
  return { slowest: slowest - by, median: median + by };
}

/** A value holds until the next report, at which the line steps: one line for each stretch of wanted points without a gap. */
function steps(values: readonly (number | null)[], place: (value: number, i: number) => string, wanted: (i: number) => boolean): string[] {
  const found: string[][] = [[]];
  values.forEach((value, i) => {
    const before = values[i - 1] ?? null;
    const line = found.at(-1)!;
    if (value !== null && before !== null && (wanted(i) || wanted(i - 1))) line.push(place(before, i));
    if (value !== null && wanted(i)) line.push(place(value, i));
    else found.push([]);
  });
  return found.filter((line) => line.length > 1).map((line) => line.join(" "));
}

/** The trend as text: "2 ms to 3.1 ms, 1.55 times as long since 14:03:20". */
export function trendWords(kernel: KernelView, now: number): string {
  const known = kernel.trend.filter((value) => value !== null);
  if (known.length < 2) return "one point so far";
  const [least, most] = [fine(Math.min(...known)), fine(Math.max(...known))];
  const range = least === most ? `always ${least}` : `${least} to ${most}`;
  const slower = kernel.slower_since === null ? "" : `, ${times(kernel.change)} as long since ${clock(kernel.slower_since, now)}`;
  const uneven = kernel.uneven_since == null ? "" : `; rank ${kernel.slowest_rank} ${times(ratioOfSlowest(kernel))} the median, ${seenFrom(kernel.uneven_since, now)}`;
  return range + slower + uneven;
}

/** From when a rank is seen to be slow in a kernel: kernels are reported more seldom than windows of steps are closed. */
export const seenFrom = (at: number, now: number): string => `seen from the report of ${clock(at, now)}`;

/** The rank that is the slowest in all kernels, from the same report on, so that it stands once; null: there is none. */
export function slowestInAll(kernels: readonly KernelView[]): KernelView | null {
  const [first] = kernels;
  return first && kernels.length > 1 && kernels.every((each) => isUneven(each) && each.slowest_rank === first.slowest_rank && each.uneven_since === first.uneven_since) ? first : null;
}

/** Factors within this share of one another are equal: what all kernels of a rank have in common is its device. */
const ALIKE = 0.05;

/** That one rank is slow in all kernels alike, so that its device is, as a sentence; empty: it is not. `throttled`: what throttles a GPU. */
export function alikeWords(kernels: readonly KernelView[], throttled: Throttle | null | undefined): string {
  const one = slowestInAll(kernels);
  const ratios = kernels.map(ratioOfSlowest);
  const [least, most] = [Math.min(...ratios), Math.max(...ratios)];
  if (one === null || most > (1 + ALIKE) * least) return "";
  const range = least.toFixed(2) === most.toFixed(2) ? least.toFixed(2) : `${least.toFixed(2)} to ${most.toFixed(2)}`;
  const known = throttled?.rank === one.slowest_rank ? throttled : null;
  const clocked = known && `, throttled${known.readings && ` at ${known.readings}`}`;
  const than = one.ranks === 2 ? "as long as on the other rank" : "the median of all ranks";
  return `On rank ${one.slowest_rank} ${kernels.length === 2 ? "both" : `all ${kernels.length}`} kernels take ${range} times ${than}: ${known?.gpu ?? "its device"} is slow, not one kernel${clocked ?? ""}`;
}

/** Whether a median differs from what it was: by 1 % it does by chance. */
export const hasChanged = ({ change, slower_since }: Pick<KernelView, "change" | "slower_since">): boolean => slower_since !== null || (change !== null && Math.abs(change - 1) >= 0.02);

/** Relative scores below this are marked: the slowest rank takes 1.1 times as long as the fastest. */
export const SLOW_BELOW = 0.9;

/** A rank that is the slowest in some kernels, and by how much. */
export interface SlowRank {
  rank: number;
  host: string;
  /** Of these kernels in the time that all ranks spend in kernels. */
  share: number;
  /** The kernel in which it loses most. */
  worst: KernelView;
  ratio: number;
}

export function isUneven(kernel: KernelView): boolean {
  return kernel.relative !== null && kernel.relative < SLOW_BELOW;
}

/** The slowest rank's median divided by that over all ranks; of two ranks, by that of the other. */
export function ratioOfSlowest({ ranks, relative, slowest, median }: KernelView): number {
  return ranks === 2 && relative ? 1 / relative : median > 0 ? slowest / median : 1;
}

/** The rank that has a column of its own: the straggler, else the one that is slow in all kernels; null: there is none. */
export const ownColumn = ({ kernels, straggler }: Pick<KernelsView, "kernels" | "straggler">): number | null => straggler ?? slowestInAll(kernels)?.slowest_rank ?? null;

/** The median of that rank, and how many times that over all ranks it is, of two ranks that of the other; null: not known. */
export function ownMedian({ ranks, median, slowest, slowest_rank, straggler }: KernelView, rank: number | null): { seconds: number; ratio: number } | null {
  const seconds = rank === slowest_rank ? slowest : straggler;
  return rank === null || seconds == null ? null : { seconds, ratio: seconds / (ranks === 2 ? 2 * median - seconds : median) };
}

/** How that rank's medians lie beside those over all ranks, where it has no line of its own: "; rank 5 now 0.99 to 1.01 times that"; empty: not known. */
export function besideWords(kernels: readonly KernelView[], rank: number | null): string {
  const ratios = kernels.flatMap((each) => ownMedian(each, rank)?.ratio ?? []);
  return ratios.length === 0 ? "" : `; rank ${rank} now ${Math.min(...ratios).toFixed(2)} to ${Math.max(...ratios).toFixed(2)} times that`;
}

/** The ranks that are slow in the kernels that take the most time, the costliest first. */
export function slowRanksOf(kernels: readonly KernelView[]): SlowRank[] {
  const found = new Map<number, SlowRank>();
  for (const kernel of kernels.filter(isUneven)) {
    const ratio = ratioOfSlowest(kernel);
    const known = found.get(kernel.slowest_rank);
    if (known === undefined) {
      found.set(kernel.slowest_rank, { rank: kernel.slowest_rank, host: kernel.slowest_host, share: kernel.share, worst: kernel, ratio });
      continue;
    }
    known.share += kernel.share;
    if (excess(kernel) > excess(known.worst)) [known.worst, known.ratio] = [kernel, ratio];
  }
  return [...found.values()].sort((a, b) => b.share - a.share);
}

/** How much longer the slowest rank takes, as a share of the kernel time. */
const excess = (kernel: KernelView) => (ratioOfSlowest(kernel) - 1) * kernel.share;

/** A text cut in its middle: names of one family differ at their ends. */
export function cutMiddle(text: string, most: number): string {
  const half = Math.floor((most - 1) / 2);
  return text.length <= most ? text : `${text.slice(0, half)}…${text.slice(-half)}`;
}

/** "Rank 3's all_gather kernel takes 1.80 times the median of all ranks". */
export const slowRankWords = (slow: SlowRank): string => `Rank ${slow.rank}'s ${slowRankFigures(slow)}`;

/** "all_gather kernel takes 1.80 times the median of all ranks". */
export function slowRankFigures({ worst, ratio }: SlowRank): string {
  const than = worst.ranks === 2 ? "that of the other rank" : "the median of all ranks";
  return `${shortName(worst.name)} kernel takes ${ratio.toFixed(2)} times ${than}`;
}

/** Seconds by which a rank's kernels make its step longer than the median rank's: each of those in which it is the slowest. */
export interface Lag {
  rank: number;
  kernels: { kernel: KernelView; seconds: number }[];
  seconds: number;
}

/** How much of each step a rank loses in which kernels, the most first; null where steps are not profiled, or in none. */
export function lagOf(rank: number, { kernels, compute }: Pick<KernelsView, "kernels" | "compute">): Lag | null {
  if (compute == null) return null;
  const found = kernels
    .filter((kernel) => kernel.slowest_rank === rank && isUneven(kernel))
    .map((kernel) => ({ kernel, seconds: excess(kernel) * compute }))
    .sort((a, b) => b.seconds - a.seconds);
  const seconds = found.reduce((sum, each) => sum + each.seconds, 0);
  return seconds > 0 ? { rank, kernels: found, seconds } : null;
}

/** A rank that loses less than this share of a step in its kernels is not slow in them: short ones vary by chance. */
const LEAST_LOSS = 0.01;

/** The table in which only ranks whose kernels make a step longer stand out; as it is where steps are not profiled. */
export function weighed(table: KernelsView): KernelsView {
  const { kernels, step } = table;
  if (step == null || table.compute == null) return table;
  const slow = (rank: number) => (lagOf(rank, table)?.seconds ?? 0) >= LEAST_LOSS * step;
  return { ...table, kernels: kernels.map((each) => (slow(each.slowest_rank) ? each : { ...each, relative: null, uneven_since: null })) };
}

/** Kernels that a sentence names at most; those that add less than a tenth are not named. */
const NAMED = 3;

/** Seconds in the three digits in which they are shown, so that sums are those of what is shown. */
const asShown = (seconds: number) => Number(seconds.toPrecision(3));

/** How often the median rank calls a kernel in a step; null: steps are not profiled. */
export function callsOf({ share, median }: Pick<KernelView, "share" | "median">, { compute }: Pick<KernelsView, "compute">): number | null {
  return compute == null || median <= 0 ? null : (share * compute) / median;
}

/** "48", "0.5". */
export const callsWords = (calls: number | null): string => (calls === null ? "–" : calls < 9.95 ? calls.toFixed(1).replace(/\.0$/, "") : count(Math.round(calls)));

/** Seconds by which its calls make a step of the slowest rank longer; null: steps are not profiled, or no rank stands out. */
export function moreOf(kernel: KernelView, { compute }: Pick<KernelsView, "compute">): number | null {
  return compute == null || !isUneven(kernel) ? null : excess(kernel) * compute;
}

/** "Rank 21 is slow in its kernels: gemm (+48 ms a step) and softmax (+12 ms) explain the 60 ms that the others wait for it". */
export function lagWords({ rank, kernels, seconds }: Lag, lateness: number | null): string {
  const named = kernels.slice(0, NAMED).filter((each) => each.seconds >= 0.1 * seconds);
  const parts = named.map((each, i) => `${shortName(each.kernel.name)} (+${fine(each.seconds)}${i === 0 ? " a step" : ""})`);
  const one = named.length === 1;
  const begin = `Rank ${rank} is slow in its kernels: ${listed(parts)}`;
  const sum = named.reduce((total, each) => total + asShown(each.seconds), 0);
  if (lateness === null || lateness <= 0) return `${begin} ${one ? "takes" : "take"} longer than on the median rank`;
  const [part, all] = [fine(sum), ofStep(lateness)];
  const of = sum >= lateness || part === all ? "" : `${part.split("\u2009")[1] === all.split("\u2009")[1] ? part.split("\u2009")[0] : part} of `;
  return `${begin} ${one ? "explains" : "explain"} ${of}the ${all} that the others wait for it`;
}

/** Seconds of a median rank's step in a kernel as a share of the step; null: steps are not profiled. */
export function shareOfStep({ share }: KernelView, { compute, step }: Pick<KernelsView, "compute" | "step">): number | null {
  return compute != null && step != null && step > 0 ? (share * compute) / step : null;
}

const SOURCES: Record<string, string> = { cupti: "CUPTI", "kineto-cuda": "Kineto on the GPU", "kineto-cpu": "Kineto as CPU operators" };

/** Which ranks time kernels now, as a sentence. `over`: the job has ended. */
export function timedWords({ at, sources }: Pick<KernelsView, "at" | "sources">, over: boolean, now: number): string {
  const timing = sources.filter(({ source }) => source !== "none");
  const without = sources.filter(({ source }) => source === "none");
  const on = timing.map((each) => `${SOURCES[each.source] ?? each.source} on ${plural(each.ranks, "rank")}`);
  const missing = without.map(({ ranks, reason }) => `${plural(ranks, "rank has", "ranks have")} none${reason && ` (${reason.replace(/\.$/, "")})`}`);
  const none = sources.length === 0 ? "no rank of this attempt has reported timings yet" : missing.join(", ");
  if (on.length > 0) return `${over ? "Were timed" : "Timed"} by ${listed(on)}${missing.length > 0 ? `; ${missing.join(", ")}` : ""}.`;
  return over ? `As of the last report, at ${clock(at, now)}.` : `These are of the last report, at ${clock(at, now)}: ${none}.`;
}

const LONGEST = 32;

/** What a sentence calls a kernel. */
export function shortName(name: string): string {
  const family = kernelName(name).family.replace(/^aten::/, "");
  return family.length > LONGEST ? `${family.slice(0, LONGEST - 1)}…` : family;
}

/** Those that became slower first, then by total time. */
export function slowerFirst(kernels: readonly KernelView[]): KernelView[] {
  return [...kernels].sort((a, b) => Number(b.slower_since !== null) - Number(a.slower_since !== null));
}

/** The name without the launch or input shapes, and those. */
export function nameAndShape(name: string): [name: string, shape: string] {
  const at = name.search(/<<<|\[/);
  return at > 0 ? [name.slice(0, at).trimEnd(), name.slice(at)] : [name, ""];
}

export interface KernelName {
  /** What kind of kernel it is: "sm80_xmma_gemm", "multi_tensor_apply_kernel", "aten::addmm". */
  family: string;
  /** What tells it from others of its family: a functor, or types and tiles. */
  variant: string;
  /** "grid 8×8, block 64", or the shapes of an operator's inputs. */
  shape: string;
}

/** A wrapper whose argument is the kernel: "Kernel2<cutlass_80_simt_sgemm_64x64>". */
const WRAPPED = /^Kernel\d*<(.*?)>?$/;
/** "sm80_xmma_gemm" and "_f32f32_nt_n_tilesize32": what the kernel computes ends its family. */
const COMPUTES = /^(\w*?(?:gemm|gemv|conv\d?d?|fprop|dgrad|wgrad|fmha|attention)[a-z]*)_(\w.*)$/;
/** The argument that a generic kernel is about: "FusedAdamMathFunctor". */
const FUNCTOR = /\w*(?:Functor|Ops)(?:_\w+)?\b/;

/** A name of the profiler in the order in which it is read; the parts hold less than the name. */
export function kernelName(name: string): KernelName {
  const [whole, shape] = nameAndShape(name);
  const plain = whole.replace(/^void\s+/, "");
  const inner = WRAPPED.exec(plain)?.[1] ?? plain;
  const [, base, rest = ""] = /^([^<(]*)[<(]?(.*)$/s.exec(inner)!;
  const own = (base!.startsWith("aten::") ? base! : base!.split("::").at(-1)!).trim() || inner;
  const [, family, tiles] = COMPUTES.exec(own) ?? [];
  const variant = tiles ?? FUNCTOR.exec(rest)?.[0] ?? rest.replace(/[>)\s]+$/, "");
  return { family: family ?? own, variant, shape: launch(shape) };
}

/** "<<<8,8,1 64,1,1>>>" as "grid 8×8, block 64"; other shapes as they are. */
function launch(shape: string): string {
  const [, grid, block] = /^<<<([\d,]+) ([\d,]+)>>>$/.exec(shape) ?? [];
  if (grid === undefined) return shape;
  const short = (sizes: string) => sizes.replace(/(,1)+$/, "").replaceAll(",", "×");
  return `grid ${short(grid)}, block ${short(block!)}`;
}
