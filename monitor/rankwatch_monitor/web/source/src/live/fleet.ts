// All jobs, live.

import { type Signal, signal } from "@preact/signals";
import { get } from "../api/client";
import type { JobSummary } from "../api/shapes";
import { listen, type Stream } from "./stream";

export interface FleetWatch extends Stream {
  /** Null until the first answer. */
  jobs: Signal<JobSummary[] | null>;
}

export function watchFleet(): FleetWatch {
  const jobs = signal<JobSummary[] | null>(null);
  const read = () => {
    get<{ jobs: JobSummary[] }>("/jobs").then(
      (answer) => (jobs.value = answer.jobs),
      () => undefined, // the connection line tells it
    );
  };
  const stream = listen("/events", { jobs: (data) => (jobs.value = (data as { jobs: JobSummary[] }).jobs) }, read, read);
  return { jobs, close: () => stream.close() };
}
