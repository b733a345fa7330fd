// Of which moment the last word about a job is: its end, or its last message where it was lost.

import type { JobSummary } from "../api/types";
import { clock } from "./text";

type Of = Pick<JobSummary, "ended_at" | "state" | "last_heard">;

/** Whether what is shown of the job is as of now. */
export const goesOn = ({ ended_at, state }: Of): boolean => ended_at === null && state !== "lost";

/** "now", "at the end", "when last heard, 13:55:00". */
export function momentWords(job: Of, now: number): string {
  if (goesOn(job)) return "now";
  if (job.ended_at !== null) return "when the job ended";
  return job.last_heard == null ? "when last heard" : `when last heard, ${clock(job.last_heard, now)}`;
}

/** Where there are no incidents. */
export function noIncidentWords(job: Of, now: number): string {
  if (goesOn(job)) return "None in this job so far.";
  return job.ended_at !== null ? "No incidents in this run." : `None until the job was last heard${job.last_heard == null ? "" : `, ${clock(job.last_heard, now)}`}.`;
}
