// The list of jobs, kept current by the event stream.

import { type Signal, signal } from "@preact/signals";
import { get } from "../api/client";
import type { JobElsewhere, JobSummary } from "../api/types";
import { listen, type Stream } from "./stream";

export type Listed = JobSummary | JobElsewhere;

export interface FleetWatch extends Stream {
  /** Null until the first answer. */
  jobs: Signal<Listed[] | null>;
}

export function watchFleet(): FleetWatch {
  const jobs = signal<Listed[] | null>(null);
  const read = () => {
    get<{ jobs: Listed[] }>("/jobs").then(
      (answer) => (jobs.value = answer.jobs),
      () => undefined, // shown by the connection bar
    );
  };
  const stream = listen("/events", { jobs: (data) => (jobs.value = (data as { jobs: Listed[] }).jobs) }, read, read);
  return { jobs, close: () => stream.close() };
}
