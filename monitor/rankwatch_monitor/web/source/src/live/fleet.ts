// The list of jobs, kept current by the event stream, and what stands beside it.

import { useEffect, useState } from "preact/hooks";
import { get } from "../api/client";
import type { FleetEvents, Jobs, NodeMap, Sparklines } from "../api/types";
import type { Listed } from "../logic/fleet";
import { usePolled } from "./poll";
import { listen } from "./stream";

const NODES_EVERY_MS = 5_000;
const SPARKLINES_EVERY_MS = 60_000;

/** Null until the first answer. */
export function useJobs(): Listed[] | null {
  const [jobs, setJobs] = useState<Listed[] | null>(null);
  useEffect(() => {
    let taken = 0;
    const take = (answer: Jobs) => {
      taken++;
      setJobs(answer.jobs);
    };
    const read = () => {
      const asked = taken; // an event that comes before the answer is newer
      get<Jobs>("/jobs").then(
        (answer) => asked === taken && take(answer),
        () => undefined, // shown by the connection bar
      );
    };
    return listen<FleetEvents>("/events", { jobs: take }, read, read).close;
  }, []);
  return jobs;
}

export const useNodes = (): NodeMap | null => usePolled(NODES_EVERY_MS, (ended) => get<NodeMap>("/nodes", ended, { unchanged: true }), []);

export const useSparklines = (): Sparklines | null =>
  usePolled(SPARKLINES_EVERY_MS, (ended) => get<Sparklines>("/sparklines", ended, { optional: true, unchanged: true }), []);
