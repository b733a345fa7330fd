// Speed over time, collected while the page is open. Kept outside the views, so that switching views loses nothing.

import { signal } from "@preact/signals";
import { now, stale } from "../api/connection";
import type { JobSummary } from "../api/types";

export interface Samples {
  time: number[];
  rate: (number | null)[];
}

/** An hour at one a second; a chart this wide cannot show more. */
const MOST = 3600;
/** Seconds without a sample that are a gap in the line. */
const GAP = 10;

const kept = new Map<string, Samples>();
/** Incremented with every new sample. */
export const sampled = signal(0);

export function samplesOf(job: string): Samples {
  let samples = kept.get(job);
  if (!samples) kept.set(job, (samples = { time: [], rate: [] }));
  return samples;
}

/** Steps per second now; null: not known. */
export function speed(job: JobSummary): number | null {
  return stale.value === null ? job.iterations_per_second : null;
}

export function sample(job: JobSummary): void {
  addSample(samplesOf(job.id), now.peek(), stale.peek() === null ? job.iterations_per_second : null);
}

/** Times without samples become a gap. */
export function addSample({ time, rate }: Samples, at: number, value: number | null): void {
  const last = time.at(-1);
  if (last !== undefined && at - last < 0.9) return;
  if (last !== undefined && at - last > GAP) add(last + 1, null);
  add(at, value);
  sampled.value++;

  function add(when: number, what: number | null): void {
    time.push(when);
    rate.push(what);
    if (time.length > MOST) {
      time.shift();
      rate.shift();
    }
  }
}
