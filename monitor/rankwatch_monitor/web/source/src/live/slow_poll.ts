// Slowly changing data of a job: its detail and its goodput. Polled while the tab is visible, and soon after an incident event.

import { type Signal, signal } from "@preact/signals";
import { get } from "../api/client";
import type { Goodput, JobDetail } from "../api/types";

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
  const ended = new AbortController();
  let timer: ReturnType<typeof setTimeout> | undefined;
  let hurried = false;

  async function turn(): Promise<void> {
    hurried = false;
    if (!document.hidden) {
      // Each may fail on its own; failures are shown by the connection bar.
      await Promise.allSettled([
        get<JobDetail>(path, ended.signal).then((answer) => (detail.value = answer)),
        get<Goodput>(`${path}/goodput`, ended.signal).then((answer) => (goodput.value = answer)),
      ]);
    }
    if (!hurried) plan(over() ? ENDED_EVERY_MS : EVERY_MS);
  }

  function plan(wait: number): void {
    clearTimeout(timer);
    if (!ended.signal.aborted) timer = setTimeout(turn, wait);
  }

  function refreshSoon(): void {
    if (hurried) return;
    hurried = true;
    plan(SOON_MS);
  }

  const seen = () => void (document.hidden || refreshSoon());
  document.addEventListener("visibilitychange", seen);
  return {
    detail, goodput, refreshSoon,
    close() {
      ended.abort();
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", seen);
    },
  };
}
