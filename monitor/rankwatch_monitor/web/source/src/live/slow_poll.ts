// Slowly changing data of a job: its detail and its goodput. Polled while the tab is visible, and soon after an incident event.

import { type Signal, signal } from "@preact/signals";
import { get } from "../api/client";
import type { Goodput, JobDetail } from "../api/types";
import { poller } from "./poll";

const EVERY_MS = 10_000;
/** A job that has ended may be launched again. */
const ENDED_EVERY_MS = 60_000;
/** Debounces bursts of incident events. */
const SOON_MS = 400;

export interface SlowPoll {
  /** Null until the first response. */
  detail: Signal<JobDetail | null>;
  goodput: Signal<Goodput | null>;
  /** Read again shortly, since something has changed. */
  refreshSoon(): void;
  close(): void;
}

export function startSlowPoll(path: string, over: () => boolean): SlowPoll {
  const detail = signal<JobDetail | null>(null);
  const goodput = signal<Goodput | null>(null);
  const { soon, close } = poller(() => (over() ? ENDED_EVERY_MS : EVERY_MS), (ended) =>
    // Each may fail on its own.
    Promise.allSettled([
      get<JobDetail>(path, ended).then((answer) => (detail.value = answer)),
      get<Goodput>(`${path}/goodput`, ended).then((answer) => (goodput.value = answer)),
    ]),
  );
  return { detail, goodput, refreshSoon: () => soon(SOON_MS), close };
}
