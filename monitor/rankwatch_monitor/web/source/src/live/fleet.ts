// The list of jobs, kept current by the event stream.

import { type Signal, signal } from "@preact/signals";
import { get } from "../api/client";
import { type Listed } from "../logic/fleet";
import { listen, type Stream } from "./stream";

export interface FleetWatch extends Stream {
  /** Null until the first answer. */
  jobs: Signal<Listed[] | null>;
}

export function watchFleet(): FleetWatch {
  const jobs = signal<Listed[] | null>(null);
  const take = (answer: { jobs: Listed[] }) => {
    jobs.value = answer.jobs;
  };
  const read = () => {
    get<{ jobs: Listed[] }>("/jobs").then(
      take,
      () => undefined, // shown by the connection bar
    );
  };
  const stream = listen("/events", { jobs: (data) => take(data as { jobs: Listed[] }) }, read, read);
  return { jobs, close: () => stream.close() };
}
