// Slowly changing data of a job: limits, policy, goodput, launchers. Polled while the tab is visible, and soon after an incident event.

import { type Signal, signal } from "@preact/signals";
import { get } from "../api/client";
import type { Clause, Goodput, JobDetail, Launcher, Place, Timeout, Vitals } from "../api/types";

const EVERY_MS = 10_000;
/** A job that has ended may be launched again. */
const ENDED_EVERY_MS = 60_000;
/** Debounces bursts of incident events. */
const SOON_MS = 400;

export interface SlowPoll {
  /** Null until the first response. */
  timeouts: Signal<Timeout[] | null>;
  goodput: Signal<Goodput | null>;
  launchers: Signal<Launcher[]>;
  /** Null until the first response. */
  vitals: Signal<Vitals | null>;
  account: Signal<readonly Clause[]>;
  unsavedLog: Signal<Place | null>;
  /** Take the data from a job detail that was read elsewhere. */
  update(detail: JobDetail): void;
  /** Read again shortly, since something has changed. */
  refreshSoon(): void;
  close(): void;
}

export function startSlowPoll(path: string, over: () => boolean): SlowPoll {
  const timeouts = signal<Timeout[] | null>(null);
  const goodput = signal<Goodput | null>(null);
  const launchers = signal<Launcher[]>([]);
  const vitals = signal<Vitals | null>(null);
  const account = signal<readonly Clause[]>([]);
  const unsavedLog = signal<Place | null>(null);
  const ended = new AbortController();
  let timer: ReturnType<typeof setTimeout> | undefined;
  let hurried = false;

  function update(detail: JobDetail): void {
    timeouts.value = detail.timeouts;
    launchers.value = detail.nodes;
    vitals.value = detail.vitals;
    account.value = detail.account;
    unsavedLog.value = detail.unsaved_log;
  }

  async function turn(): Promise<void> {
    hurried = false;
    if (!document.hidden) {
      // Each may fail on its own; failures are shown by the connection bar.
      await Promise.allSettled([
        get<JobDetail>(path, ended.signal).then(update),
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
    timeouts, goodput, launchers, vitals, account, unsavedLog, update, refreshSoon,
    close() {
      ended.abort();
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", seen);
    },
  };
}
