// Speed over the last hour: the stored trends, then what is collected while the page is open. Kept outside the views, so that
// switching views loses nothing.

import { signal } from "@preact/signals";
import { now, stale } from "../api/connection";
import type { JobSummary, Trends } from "../api/types";

export interface Samples {
  time: number[];
  rate: (number | null)[];
}

/** Seconds that are kept. */
export const KEPT_S = 3600;
/** Seconds without a sample that are a gap in the line. */
const GAP = 10;
/** The same after the last stored point, since they are 15 s apart. */
const STORED_GAP = 45;

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
  return stale.value === null && job.state !== "lost" ? job.iterations_per_second : null;
}

/** A job that has ended has no speed any more; that of a lost one is not known. */
export function sample(job: JobSummary): void {
  if (job.ended_at !== null) return;
  addSample(samplesOf(job.id), now.peek(), stale.peek() === null && job.state !== "lost" ? job.iterations_per_second : null);
}

/** Times without samples become a gap. */
export function addSample({ time, rate }: Samples, at: number, value: number | null): void {
  const last = time.at(-1);
  if (last !== undefined && at - last < 0.9) return;
  if (last !== undefined && at - last > GAP) {
    time.push(last + 1);
    rate.push(null);
  }
  time.push(at);
  rate.push(value);
  forget(time, rate, at - KEPT_S);
  sampled.value++;
}

/** Add the stored points of times without samples: before the page opened, and while it was not connected. */
export function seed({ time, rate }: Samples, trends: Trends): void {
  const live = time.map((at, i) => ({ at, value: rate[i]!, apart: GAP })).filter(({ value }) => value !== null);
  let next = 0;
  const stored = trends.at.map((at, i) => ({ at, value: trends.speed?.[i] ?? null, apart: STORED_GAP })).filter(({ at, value }) => {
    while (next < live.length && live[next]!.at < at - GAP) next++;
    return value !== null && !(next < live.length && live[next]!.at <= at + GAP);
  });
  if (stored.length === 0) return;
  const unknown = time.length > 0 && rate.at(-1) === null ? time.at(-1)! : null;
  const rows = [...stored, ...live].sort((a, b) => a.at - b.at);
  time.length = rate.length = 0;
  rows.forEach(({ at, value, apart }, i) => {
    const before = rows[i - 1];
    if (before && at - before.at > Math.max(apart, before.apart)) add(before.at + 1, null);
    add(at, value);
  });
  if (unknown !== null && unknown > rows.at(-1)!.at) add(unknown, null);
  sampled.value++;

  function add(at: number, value: number | null): void {
    time.push(at);
    rate.push(value);
  }
}

function forget(time: number[], rate: (number | null)[], before: number): void {
  const first = time.findIndex((at) => at >= before);
  if (first <= 0) return;
  time.splice(0, first);
  rate.splice(0, first);
}
