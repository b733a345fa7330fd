// The speed of the last hours as the path of a small chart.

import type { Sparklines } from "../api/types";

export const WIDTH = 96;
export const HEIGHT = 24;

/** The known points in a field of this size, each level over its time; `stopped`: no step completes now, where the line then ends. */
export function path(points: Uint8Array, { unknown, largest }: Pick<Sparklines, "unknown" | "largest">, stopped = false): string {
  const across = (i: number) => ((WIDTH * i) / points.length).toFixed(1);
  // Half a line's width stays free above and below.
  const up = (value: number) => (HEIGHT - 1 - ((HEIGHT - 2) * value) / largest).toFixed(1);
  let found = "";
  points.forEach((value, i) => {
    if (value !== unknown) found += `${i === 0 || points[i - 1] === unknown ? `M${across(i)} ` : "V"}${up(value)}H${across(i + 1)}`;
  });
  return stopped && (points.at(-1) ?? unknown) !== unknown ? `${found}V${up(0)}` : found;
}
