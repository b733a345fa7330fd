// The trends of one run, a job or one attempt of it, for a comparison.

import { type Signal, signal } from "@preact/signals";
import { useEffect, useMemo } from "preact/hooks";
import { get, Problem } from "../api/client";
import type { HistorySample, Trends } from "../api/types";
import { poll } from "./poll";

const EVERY_MS = 60_000;

export interface Run {
  trends: Trends;
  samples: HistorySample[];
}

export interface RunRead {
  /** Null until the first answer. */
  run: Signal<Run | null>;
  /** The monitor does not know the job, or another one owns it. */
  problem: Signal<Problem | null>;
}

export function useRun(job: string, attempt: number | null): RunRead {
  const read: RunRead = useMemo(() => ({ run: signal(null), problem: signal(null) }), [job, attempt]);
  useEffect(() => {
    const path = `/jobs/${encodeURIComponent(job)}`;
    return poll(EVERY_MS, async (ended) => {
      try {
        const trends = await get<Trends>(`${path}/trends?since=0${attempt === null ? "" : `&attempt=${attempt}`}`, ended);
        const [from, to] = [trends.at[0], trends.at.at(-1)];
        const samples = from === undefined ? [] : (await get<{ samples: HistorySample[] }>(`${path}/history?since=${Math.floor(from)}&until=${Math.ceil(to!)}`, ended)).samples;
        read.run.value = { trends, samples: attempt === null ? samples : samples.filter((sample) => sample.attempt === attempt) };
        read.problem.value = null;
      } catch (problem) {
        if (!(problem instanceof Problem)) throw problem;
        read.problem.value = problem;
      }
    });
  }, [read]);
  return read;
}
