// What is lost by a restart: the steps since the last checkpoint.

import type { JobSummary } from "../api/types";
import { ago, clock, count, elapsed, wholeDuration } from "./text";

type Checkpoint = NonNullable<JobSummary["checkpoint"]>;

/** An attempt that loaded it shows its step; before that its step is the least that it can be. */
const stepOf = ({ step, exact }: Pick<Checkpoint, "step" | "exact">): string => `step ${count(step)}${exact ? "" : " or later"}`;

const range = (from: number, to: number): string => (from === to ? `step ${count(to)}` : `steps ${count(from)}–${count(to)}`);

/** When the last checkpoint was saved; of an ended job how long before its end, and which steps may not be in it. */
export function checkpointFact(job: Pick<JobSummary, "checkpoint" | "iteration" | "state" | "ended_at" | "last_heard">, now: number): { value: string; note?: string } {
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
