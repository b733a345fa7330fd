// The list of jobs, kept current by the event stream.

import { type Signal, signal } from "@preact/signals";
import { get } from "../api/client";
import type { NamedHost } from "../api/types";
import { type Listed } from "../logic/fleet";
import { poll } from "./poll";
import { listen, type Stream } from "./stream";

const HOSTS_EVERY_MS = 30_000;

export interface FleetWatch extends Stream {
  /** Null until the first answer. */
  jobs: Signal<Listed[] | null>;
  /** Hosts that incidents have named, the most frequent first. */
  hosts: Signal<NamedHost[]>;
}

export function watchFleet(): FleetWatch {
  const jobs = signal<Listed[] | null>(null);
  const hosts = signal<NamedHost[]>([]);
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
  const stop = poll(HOSTS_EVERY_MS, async (ended) => {
    hosts.value = (await get<{ hosts: NamedHost[] }>("/hosts", ended)).hosts;
  });
  return {
    jobs, hosts,
    close() {
      stop();
      stream.close();
    },
  };
}
