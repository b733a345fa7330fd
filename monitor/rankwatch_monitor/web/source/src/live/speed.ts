// The speed of a job as it is known now.

import { stale } from "../api/connection";
import type { JobSummary } from "../api/types";

/** Steps per second now; null: not known. */
export function speed(job: JobSummary): number | null {
  return stale.value === null && job.state !== "lost" ? job.iterations_per_second : null;
}
