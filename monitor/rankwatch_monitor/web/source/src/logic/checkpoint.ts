// What is lost by a restart: the steps since the last checkpoint.

import type { JobSummary } from "../api/types";
import { ago, count, elapsed, plural, roughly, wholeDuration } from "./text";

type Known = Pick<JobSummary, "checkpoint" | "iteration" | "steps_lost" | "steps_at_risk"> & Partial<Pick<JobSummary, "goodput" | "started_at">>;

/** What an action costs in steps. `checkpoint` is undefined with older monitors; its step is the least that it can be. */
export function loss(what: string, { checkpoint, iteration, goodput, started_at: started }: Known, now: number): string {
  if (checkpoint === null) {
    if (iteration === null) return "No checkpoint is known: training may begin at step 0.";
    const took = goodput && started ? `, ${roughly(goodput * elapsed(started, now))} of training` : "";
    return `No checkpoint is known: training from step 0 repeats all steps up to ${count(iteration)}${took}.`;
  }
  if (checkpoint === undefined) return `${what} loses the steps since the last checkpoint.`;
  const { at, step } = checkpoint;
  const steps = step === null || iteration === null || iteration < step ? "the steps since then" : iteration === step ? "no step" : `up to ${plural(iteration - step, "step")}`;
  return `${what} loses ${steps}: the last checkpoint was saved ${saved(at, step, now)}.`;
}

const saved = (at: number, step: number | null, now: number): string => `${ago(at, now)}${step === null ? "" : `, at step ${count(step)} or later`}`;

/** When the last checkpoint was saved; of an ended job how long before its end, and which steps may not be in it. */
export function checkpointFact({ checkpoint, iteration, ended_at: ended }: Known & Pick<JobSummary, "ended_at">, now: number): { value: string; note?: string } {
  const { at, step } = checkpoint!;
  const unsaved = ended === null || step === null || iteration === null || iteration <= step ? "" : `; unless the script's folder has a newer one, a restart repeats ${iteration - step === 1 ? `step ${count(iteration)}` : `steps ${count(step + 1)}–${count(iteration)}`}`;
  return {
    value: ended === null ? ago(at, now) : `${wholeDuration(elapsed(at, ended))} before the end`,
    ...(step === null ? {} : { note: `step ${count(step)} or later${unsaved}` }),
  };
}

/** Where a job goes on that is launched again; empty: an older monitor does not know. */
export function resumesAfter({ checkpoint, steps_lost, steps_at_risk }: Known, now: number): string {
  if (checkpoint === undefined) return "";
  if (checkpoint === null) return "No checkpoint of this job is known: none was saved in a section named checkpointing.";
  const { at, step } = checkpoint;
  const since = steps_at_risk ? `; up to ${plural(steps_at_risk, "step")} since then are lost` : "";
  const before = steps_lost ? `; earlier restarts lost ${count(steps_lost)}${steps_at_risk ? " more" : ""}` : "";
  const lost = since + before;
  return `The last checkpoint was saved ${saved(at, step, now)}${lost}.`;
}
