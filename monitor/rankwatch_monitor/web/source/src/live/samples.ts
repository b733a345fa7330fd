// Speed over time, collected while the page is open. Kept outside the views, so that switching views loses nothing.

import { signal } from "@preact/signals";
import type { JobSummary } from "../api/types";

export interface Samples {
  time: number[];
  rate: (number | null)[];
}

/** An hour at one a second; a chart this wide cannot show more. */
const MOST = 3600;

const kept = new Map<string, Samples>();
/** Incremented with every new sample. */
export const sampled = signal(0);

export function samplesOf(job: string): Samples {
  let samples = kept.get(job);
  if (!samples) kept.set(job, (samples = { time: [], rate: [] }));
  return samples;
}

export function sample(job: JobSummary, at: number): void {
  const samples = samplesOf(job.id);
  if (at - (samples.time.at(-1) ?? 0) < 0.9) return;
  samples.time.push(at);
  samples.rate.push(job.iterations_per_second);
  if (samples.time.length > MOST) {
    samples.time.shift();
    samples.rate.shift();
  }
  sampled.value++;
}
