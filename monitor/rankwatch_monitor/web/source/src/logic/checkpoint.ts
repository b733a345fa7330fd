// What is lost by a restart: the steps since the last checkpoint.

import type { JobSummary } from "../api/types";
import { ago, count, plural } from "./text";

type Known = Pick<JobSummary, "checkpoint" | "iteration" | "steps_lost" | "steps_at_risk">;

/** What an action costs in steps. `checkpoint` is undefined with older monitors; its step is the least that it can be. */
export function loss(what: string, { checkpoint, iteration }: Known, now: number): string {
  if (checkpoint == null) return `${what} loses the steps since the last checkpoint${checkpoint === null ? "; none is known of this job" : ""}.`;
  const { at, step } = checkpoint;
  const steps = step === null || iteration === null || iteration < step ? "the steps since then" : iteration === step ? "no step" : `up to ${plural(iteration - step, "step")}`;
  return `${what} loses ${steps}: the last checkpoint was saved ${saved(at, step, now)}.`;
}

const saved = (at: number, step: number | null, now: number): string => `${ago(at, now)}${step === null ? "" : `, at step ${count(step)} or later`}`;

/** Where a job goes on that is launched again; empty: an older monitor does not know. */
export function resumesAfter({ checkpoint, steps_lost, steps_at_risk }: Known, now: number): string {
  if (checkpoint === undefined) return "";
  if (checkpoint === null) return "No checkpoint of this job is known: none was saved in a section named checkpointing.";
  const { at, step } = checkpoint;
  const steps = (steps_lost ?? 0) + (steps_at_risk ?? 0);
  const lost = steps === 0 ? "" : `; up to ${plural(steps, "step")} are lost`;
  return `The last checkpoint was saved ${saved(at, step, now)}${lost}.`;
}
