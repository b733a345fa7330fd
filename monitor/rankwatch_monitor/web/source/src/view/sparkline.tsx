// The speed of a job over the last hours, beside its figures in the list of jobs.

import { useMemo } from "preact/hooks";
import type { JobSummary, Sparklines } from "../api/types";
import { bytesOf } from "../live/grid";
import { HEIGHT, path, WIDTH } from "../logic/sparkline";
import { rate, wholeDuration } from "../logic/text";

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
