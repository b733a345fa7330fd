// The speed of a job over the last hours, beside its figures in the list of jobs.

import { useMemo } from "preact/hooks";
import type { JobSummary, Sparklines } from "../api/types";
import { bytesOf } from "../live/grid";
import { rate, wholeDuration } from "../logic/text";

const WIDTH = 96;
const HEIGHT = 24;

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

export function Sparkline({ job, of }: { job: JobSummary; of: Sparklines | null }) {
  const [peak, text] = of?.jobs[job.id] ?? [0, ""];
  const points = useMemo(() => bytesOf(text), [text]);
  if (of === null || text === "") return <span class="spark" />;
  const { value, unit } = rate(peak);
  const label = `Speed of the last ${wholeDuration(points.length * of.seconds)}, at most ${value} ${unit}`;
  return (
    <span class="spark">
      <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} width={WIDTH} height={HEIGHT} role="img" aria-label={label}>
        <title>{label}</title>
        <path d={path(points, of, job.iterations_per_second === 0)} />
      </svg>
    </span>
  );
}
