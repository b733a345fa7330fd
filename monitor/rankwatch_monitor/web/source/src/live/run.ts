// The trends of one run, a job or one attempt of it, for a comparison: coarsely as a whole, and the part that is looked at.

import { signal } from "@preact/signals";
import { useEffect, useMemo } from "preact/hooks";
import { get } from "../api/client";
import type { HistorySample, Trends, Why } from "../api/types";
import { type Answer, useAnswer } from "./poll";

const EVERY_MS = 60_000;
/** Points of a range; a chart has about as many pixels. */
const POINTS = 800;

export interface Run {
  trends: Trends;
  samples: HistorySample[];
  /** A change of the step time within the whole run; null: none was found, or this is a part. */
  change: Why | null;
}

/** `range`: first and last second; null: the whole run. */
async function read(job: string, attempt: number | null, range: readonly [number, number] | null, ended: AbortSignal): Promise<Run> {
  const path = `/jobs/${encodeURIComponent(job)}`;
  const only = `&points=${POINTS}${attempt === null ? "" : `&attempt=${attempt}`}`;
  const trends = await get<Trends>(`${path}/trends?${query(range ?? [0, null])}${only}`, ended);
  const [from, to] = range ?? [trends.at[0], trends.at.at(-1)];
  if (from === undefined || to === undefined) return { trends, samples: [], change: null };
  const [{ samples }, why] = await Promise.all([
    get<{ samples: HistorySample[] }>(`${path}/history?${query([from, to])}${only}&brief=true&slowest=true`, ended),
    range === null ? get<Why>(`${path}/why`, ended) : null,
  ]);
  const changed = why?.kind === "change" && why.since !== null && why.since > from && why.since < to;
  return { trends, samples, change: changed ? why : null };
}

const query = ([from, to]: readonly [number, number | null]) => `since=${Math.floor(from)}${to === null ? "" : `&until=${Math.ceil(to)}`}`;

/** The whole run; refused where the monitor does not know the job, or another one owns it. */
export const useRun = (job: string, attempt: number | null): Answer<Run> => useAnswer(EVERY_MS, (ended) => read(job, attempt, null, ended), [job, attempt]);

/** Its part between two moments; null: none was asked for, or it is not read yet. */
export function usePart(job: string, attempt: number | null, range: readonly [number, number] | null): Run | null {
  const [from, to] = range ?? [null, null];
  const part = useMemo(() => signal<Run | null>(null), [job, attempt, from, to]);
  useEffect(() => {
    if (range === null) return;
    const ended = new AbortController();
    // Without it the part of the whole run is drawn, which is coarser.
    read(job, attempt, range, ended.signal).then((run) => (part.value = run), () => undefined);
    return () => ended.abort();
  }, [part]);
  return part.value;
}
