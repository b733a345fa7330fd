// What is lost by a restart: the steps since the last checkpoint.

import type { JobSummary } from "../api/types";
import { ago, capital, clock, count, elapsed, plural, wholeDuration } from "./text";

/** What is known of a job's steps. */
export type Known = Pick<JobSummary, "checkpoint" | "iteration"> & Partial<Pick<JobSummary, "steps_lost" | "steps_at_risk" | "iterations_per_second" | "step_seconds" | "goodput" | "started_at" | "ended_at">>;

/** What an action costs in steps, as a sentence. */
export function loss(what: "A restart" | "The restart" | "A stop", job: Known, now: number): string {
  const { checkpoint, iteration } = job;
  if (checkpoint === null) {
    if (what === "A stop") return "No checkpoint is known: all steps may be lost.";
    return `No checkpoint is known: if there is none, training restarts from step 0${iteration === null ? "" : `: ${plural(iteration, "step")}${ofTraining(kept(job, now))}`}.`;
  }
  const { step, at } = checkpoint;
  const steps = step === null || iteration === null || iteration < step ? "the steps" : iteration === step ? "no step" : `up to ${plural(iteration - step, "step")}${ofTraining(Math.min((iteration - step) * stepTime(job), elapsed(at, now)))}`;
  return `${what} loses ${steps} since the ${step === null ? "last checkpoint" : `checkpoint at step ${count(step)}`}.`;
}

/** Where the ranks go on that were started again: "Attempt 2 repeats steps from 850 or later on."; empty: it is not known. */
export function repeats({ checkpoint, attempt }: Pick<JobSummary, "checkpoint" | "attempt">): string {
  return checkpoint?.step == null ? "" : `Attempt ${attempt} repeats steps from ${count(checkpoint.step + 1)}${checkpoint.exact ? "" : " or later"} on.`;
}

/** " (39 s of training)"; empty: it is not known. */
const ofTraining = (seconds: number): string => (seconds ? ` (${wholeDuration(seconds)} of training)` : "");

/** Seconds of a step at the present speed, while none completes the usual ones; 0: not known. */
const stepTime = ({ iterations_per_second: speed, step_seconds: usual }: Known): number => (speed ? 1 / speed : usual ?? 0);

/** Seconds that the steps so far have taken, waiting for slow ranks included; 0: not known. */
const kept = ({ goodput, started_at: began, ended_at: ended }: Known, now: number): number => (goodput && began != null ? Math.floor(goodput * elapsed(began, ended ?? now)) : 0);

type Checkpoint = NonNullable<JobSummary["checkpoint"]>;

const saved = ({ at, ...checkpoint }: Pick<Checkpoint, "step" | "at" | "exact">, now: number): string => `${ago(at, now)}${checkpoint.step === null ? "" : `, at ${stepOf(checkpoint)}`}`;

/** An attempt that loaded it shows its step; before that its step is the least that it can be. */
const stepOf = ({ step, exact }: Pick<Checkpoint, "step" | "exact">): string => `step ${count(step)}${exact ? "" : " or later"}`;

const range = (from: number, to: number): string => (from === to ? `step ${count(to)}` : `steps ${count(from)}–${count(to)}`);

/** When the last checkpoint was saved; of an ended job how long before its end, and which steps may not be in it. */
export function checkpointFact(job: Known & Pick<JobSummary, "state" | "ended_at" | "last_heard">, now: number): { value: string; note?: string } {
  const { iteration, ended_at: ended, last_heard: heard } = job;
  const checkpoint = job.checkpoint!;
  const { at, step } = checkpoint;
  const later = ended !== null && step !== null && iteration !== null && iteration > step ? range(step + 1, iteration) : "";
  const notes = [
    ...(step === null ? [] : [stepOf(checkpoint)]),
    ...(job.state === "lost" && heard != null ? [`known until ${clock(heard, now)}`] : []),
    ...(later === "" || job.state === "finished" ? [] : [`a restart repeats ${later}${checkpoint.exact ? "" : " unless the script's folder has a newer one"}`]),
  ];
  return {
    value: ended === null ? ago(at, now) : `${wholeDuration(elapsed(at, ended))} before the end`,
    ...(notes.length === 0 ? {} : { note: notes.join(", ") }),
  };
}

/** Where a job goes on that is launched again. */
export function resumesAfter({ state, checkpoint, iteration, steps_lost, steps_at_risk, steps_thrown_away: thrown }: Known & Pick<JobSummary, "state" | "steps_thrown_away">, now: number): string {
  if (checkpoint === null) return "No checkpoint of this job is known: none was saved in a section named checkpointing.";
  const { step, exact } = checkpoint;
  const known = `The last checkpoint${state === "lost" ? " known" : ""} was saved ${saved(checkpoint, now)}.`;
  if (iteration === null || step === null) return known;
  const ofSteps = exact ? `(${plural(steps_at_risk ?? 0, "step")})` : `(up to ${plural(steps_at_risk ?? 0, "step")})`;
  const again = `repeats ${range(step + 1, iteration)} ${ofSteps}`;
  const parts = [
    ...(steps_at_risk ? [state === "lost" ? `if the job has ended, a restart ${again}, fewer if a later save was not heard` : `a restart ${again}`] : []),
    ...(steps_lost ? [`the run had reached step ${count(iteration + steps_lost)}`] : []),
    ...(thrown ? [`restarts have thrown away ${plural(thrown, "step")} in all`] : []),
  ];
  return parts.length === 0 ? known : `${known} ${capital(parts.join("; "))}.`;
}
