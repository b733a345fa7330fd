// What is lost by a restart: the steps since the last checkpoint.

import type { JobSummary } from "../api/types";
import { ago, count, plural } from "./text";

type Known = Pick<JobSummary, "checkpoint" | "iteration">;

/** What a restart or a stop costs in steps. `checkpoint` is undefined with older monitors. */
export function loss({ checkpoint, iteration }: Known, now: number): string {
  if (checkpoint == null) return `Steps since the last checkpoint are lost${checkpoint === null ? "; none is known of this job" : ""}.`;
  const { at, step } = checkpoint;
  if (step === null) return `What was trained since the last checkpoint, ${ago(at, now)}, is lost.`;
  const steps = iteration === null || iteration < step ? "Steps since then" : iteration === step ? "No steps" : `Up to ${plural(iteration - step, "step")}`;
  return `${steps} are lost: the last checkpoint was saved after step ${count(step)}, ${ago(at, now)}.`;
}

/** Where a job goes on that is launched again; empty: an older monitor does not know. */
export function resumesAfter({ checkpoint, iteration }: Known, now: number): string {
  if (checkpoint === undefined) return "";
  if (checkpoint === null) return "No checkpoint of this job is known: none was saved in a section named checkpointing.";
  const { at, step } = checkpoint;
  const lost = step === null || iteration === null || iteration <= step ? "" : `; up to ${plural(iteration - step, "step")} are lost`;
  return `The last checkpoint was saved ${step === null ? "" : `after step ${count(step)}, `}${ago(at, now)}${lost}.`;
}
