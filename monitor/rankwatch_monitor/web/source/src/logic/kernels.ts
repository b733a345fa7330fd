// The table of kernels: sparklines, and the trend in words.

import type { Kernel } from "../api/types";
import { clock, fine } from "./text";

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

export function times(ratio: number | null): string {
  return ratio === null ? "–" : `${ratio.toFixed(ratio < 10 ? 2 : 0)}×`;
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
