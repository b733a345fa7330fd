// The list of jobs, kept current by the event stream.

import { type Signal, signal } from "@preact/signals";
import { get } from "../api/client";
import type { NodeMap, Sparklines } from "../api/types";
import type { Listed } from "../logic/fleet";
import { poll } from "./poll";
import { listen, type Stream } from "./stream";

const NODES_EVERY_MS = 5_000;
const SPARKLINES_EVERY_MS = 60_000;

export interface FleetWatch extends Stream {
  /** Null until the first answer. */
  jobs: Signal<Listed[] | null>;
  /** Null until the first answer. */
  nodes: Signal<NodeMap | null>;
  /** Null until the first answer. */
  sparklines: Signal<Sparklines | null>;
}

export function watchFleet(): FleetWatch {
  const jobs = signal<Listed[] | null>(null);
  const nodes = signal<NodeMap | null>(null);
  const sparklines = signal<Sparklines | null>(null);
  let before = "";
  let taken = 0;
  const take = (answer: { jobs: Listed[] }) => {
    taken++;
    jobs.value = answer.jobs;
  };
  const read = () => {
    const asked = taken; // an event that comes before the answer is newer
    get<{ jobs: Listed[] }>("/jobs").then(
      (answer) => asked === taken && take(answer),
      () => undefined, // shown by the connection bar
    );
  };
  const stream = listen("/events", { jobs: (data) => take(data as { jobs: Listed[] }) }, read, read);
  const stopNodes = poll(NODES_EVERY_MS, async (ended) => {
    const next = await get<NodeMap>("/nodes", ended, { unchanged: true });
    const text = JSON.stringify(next);
    if (text !== before) nodes.value = next;
    before = text;
  });
  const stopSparklines = poll(SPARKLINES_EVERY_MS, async (ended) => {
    sparklines.value = await get<Sparklines>("/sparklines", ended, { optional: true, unchanged: true });
  });
  return {
    jobs, nodes, sparklines,
    close() {
      stopSparklines();
      stopNodes();
      stream.close();
    },
  };
}
