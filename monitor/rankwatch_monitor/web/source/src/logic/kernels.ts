// The table of kernels: sparklines, and the trend in words.

import type { Kernel, Kernels } from "../api/types";
import { clock, count, fine, listed, plural } from "./text";

export interface Spark {
  /** Points of each stretch without a gap, as SVG writes them. */
  lines: string[];
  /** The newest point. */
  end: { x: number; y: number } | null;
  /** Where the median became slower; null: it did not. */
  changed: number | null;
}

/** A line from 0 to the largest value, over the time from the first to the last point. */
export function spark(kernel: Kernel, points: readonly number[], width: number, height: number): Spark {
  const top = Math.max(1e-12, ...kernel.trend.map((value) => value ?? 0));
  const [first, last] = [points[0] ?? 0, points.at(-1) ?? 0];
  const across = (at: number) => (last > first ? ((at - first) / (last - first)) * width : width);
  const up = (value: number) => height - (value / top) * height;
  const lines: string[][] = [];
  let end: Spark["end"] = null;
  let open = false;
  kernel.trend.forEach((value, i) => {
    if (value === null) {
      open = false;
      return;
    }
    if (!open) lines.push([]);
    open = true;
    end = { x: across(points[i]!), y: up(value) };
    lines.at(-1)!.push(`${end.x.toFixed(1)},${end.y.toFixed(1)}`);
  });
  const { slower_since } = kernel;
  return { lines: lines.filter((line) => line.length > 1).map((line) => line.join(" ")), end, changed: slower_since === null ? null : Math.max(0, Math.min(width, across(slower_since))) };
}

/** The trend as text: "2 ms to 3.1 ms, 1.55 times as long since 14:03:20". */
export function trendWords(kernel: Kernel, now: number): string {
  const known = kernel.trend.filter((value) => value !== null);
  if (known.length < 2) return "one point so far";
  const [least, most] = [fine(Math.min(...known)), fine(Math.max(...known))];
  const range = least === most ? `always ${least}` : `${least} to ${most}`;
  return kernel.slower_since === null ? range : `${range}, ${times(kernel.change)} as long since ${clock(kernel.slower_since, now)}`;
}

/** Where the fastest rank, the median and the slowest rank lie on a line from 0 to the slowest. */
export function spread({ fastest, median, slowest }: Pick<Kernel, "fastest" | "median" | "slowest">, width: number): [number, number, number] | null {
  if (fastest == null || !(slowest > 0)) return null;
  return [fastest, median, slowest].map((value) => (width * value) / slowest) as [number, number, number];
}

export function times(ratio: number | null): string {
  return ratio === null ? "–" : `${ratio.toFixed(ratio < 10 ? 2 : 0)}×`;
}

/** Relative scores below this are marked: the slowest rank takes 1.1 times as long as the fastest. */
export const SLOW_BELOW = 0.9;

/** A rank that is the slowest in some kernels, and by how much. */
export interface SlowRank {
  rank: number;
  host: string;
  kernels: number;
  /** Of the time that all ranks spend in kernels. */
  share: number;
  /** The kernel in which it loses most. */
  worst: Kernel;
  ratio: number;
}

export function isUneven(kernel: Kernel): boolean {
  return kernel.relative !== null && kernel.relative < SLOW_BELOW;
}

/** The slowest rank's median divided by that over all ranks; of two ranks, by that of the other. */
export function ratioOfSlowest({ ranks, relative, slowest, median }: Kernel): number {
  return ranks === 2 && relative ? 1 / relative : median > 0 ? slowest / median : 1;
}

/** The ranks that are slow in the kernels that take the most time, the costliest first. */
export function slowRanksOf(kernels: readonly Kernel[]): SlowRank[] {
  const found = new Map<number, SlowRank>();
  for (const kernel of kernels.filter(isUneven)) {
    const ratio = ratioOfSlowest(kernel);
    const known = found.get(kernel.slowest_rank);
    if (known === undefined) {
      found.set(kernel.slowest_rank, { rank: kernel.slowest_rank, host: kernel.slowest_host, kernels: 1, share: kernel.share, worst: kernel, ratio });
      continue;
    }
    known.kernels += 1;
    known.share += kernel.share;
    if (excess(kernel) > excess(known.worst)) [known.worst, known.ratio] = [kernel, ratio];
  }
  return [...found.values()].sort((a, b) => b.share - a.share);
}

/** How much longer the slowest rank takes, as a share of the kernel time. */
const excess = (kernel: Kernel) => (ratioOfSlowest(kernel) - 1) * kernel.share;

/** "Rank 3's all_gather kernel takes 1.80 times the median of all ranks". */
export function slowRankWords({ rank, worst, ratio }: SlowRank): string {
  const than = worst.ranks === 2 ? "that of the other rank" : "the median of all ranks";
  return `Rank ${rank}'s ${shortName(worst.name)} kernel takes ${ratio.toFixed(2)} times ${than}`;
}

/** In how many of all kernels: "the only kernel", "both kernels", "all 3 kernels", "2 of 3 kernels". */
export function inKernels(some: number, all: number): string {
  if (some < all) return `${count(some)} of ${count(all)} kernels`;
  return all === 1 ? "the only kernel" : all === 2 ? "both kernels" : `all ${count(all)} kernels`;
}

/** Which ranks time kernels now, as a sentence. `over`: the job has ended. */
export function timedWords({ at, sources }: Pick<Kernels, "at" | "sources">, over: boolean, now: number): string {
  const timing = sources.filter(({ source }) => source !== "none");
  const without = sources.filter(({ source }) => source === "none");
  const on = timing.map((each) => `${each.source} on ${plural(each.ranks, "rank")}`);
  const missing = without.map(({ ranks, reason }) => `${plural(ranks, "rank has", "ranks have")} none${reason && ` (${reason.replace(/\.$/, "")})`}`);
  const none = sources.length === 0 ? "no rank of this attempt has reported timings yet" : missing.join(", ");
  if (on.length > 0) return `${over ? "Were timed" : "Timed"} by ${listed(on)}${missing.length > 0 ? `; ${missing.join(", ")}` : ""}.`;
  return over ? `As of the last report, at ${clock(at, now)}.` : `These are of the last report, at ${clock(at, now)}: ${none}.`;
}

const LONGEST = 32;

/** Without shapes, template arguments and namespaces. */
export function shortName(name: string): string {
  const [plain] = nameAndShape(name);
  const short = plain.replace(/^void\s+/, "").replace(/[<(].*$/s, "").split("::").at(-1)!.trim() || plain;
  return short.length > LONGEST ? `${short.slice(0, LONGEST - 1)}…` : short;
}

/** Those that became slower first, then by total time. */
export function slowerFirst(kernels: readonly Kernel[]): Kernel[] {
  return [...kernels].sort((a, b) => Number(b.slower_since !== null) - Number(a.slower_since !== null));
}

/** The name without the launch or input shapes, and those. */
export function nameAndShape(name: string): [name: string, shape: string] {
  const at = name.search(/<<<|\[/);
  return at > 0 ? [name.slice(0, at).trimEnd(), name.slice(at)] : [name, ""];
}
