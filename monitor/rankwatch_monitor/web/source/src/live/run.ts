// The trends of one run, a job or one attempt of it, for a comparison: coarsely as a whole, and the part that is looked at.

import { type Signal, signal } from "@preact/signals";
import { useEffect, useMemo } from "preact/hooks";
import { get, Problem } from "../api/client";
import type { HistorySample, Trends, Why } from "../api/types";
import { poll } from "./poll";

const EVERY_MS = 60_000;
/** Points of a range; a chart has about as many pixels. */
const POINTS = 800;

export interface Run {
  trends: Trends;
  samples: HistorySample[];
  /** A change of the step time within the whole run; null: none was found, or this is a part. */
  change: Why | null;
}

export interface RunRead {
  /** Null until the first answer. */
  run: Signal<Run | null>;
  /** The monitor does not know the job, or another one owns it. */
  problem: Signal<Problem | null>;
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

/** The whole run. */
export function useRun(job: string, attempt: number | null): RunRead {
  const found: RunRead = useMemo(() => ({ run: signal(null), problem: signal(null) }), [job, attempt]);
  useEffect(
    () =>
      poll(EVERY_MS, async (ended) => {
        try {
          found.run.value = await read(job, attempt, null, ended);
          found.problem.value = null;
        } catch (problem) {
          if (!(problem instanceof Problem)) throw problem;
          found.problem.value = problem;
        }
      }),
    [found],
  );
  return found;
}

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
