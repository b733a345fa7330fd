// What changes slowly: limits, policy, goodput. Read now and then while somebody looks, and soon after an incident moves.

import { type Signal, signal } from "@preact/signals";
import { get } from "../api/client";
import type { Goodput, JobDetail, Launcher, Timeout } from "../api/types";

const EVERY_MS = 10_000;
/** A job that has ended may still be launched anew. */
const EVERY_MS_AFTER_THE_END = 60_000;
/** An incident's own news come in groups; one reading after them is enough. */
const SOON_MS = 400;

export interface SlowPoll {
  /** Null until the first answer, and for a monitor that does not tell it. */
  timeouts: Signal<Timeout[] | null>;
  confirmationWindow: Signal<number | null>;
  goodput: Signal<Goodput | null>;
  launchers: Signal<Launcher[]>;
  /** What was read of the job anyway. */
  update(detail: JobDetail): void;
  /** Read again at once, for something has changed. */
  refreshSoon(): void;
  close(): void;
}

export function startSlowPoll(path: string, over: () => boolean): SlowPoll {
  const timeouts = signal<Timeout[] | null>(null);
  const confirmationWindow = signal<number | null>(null);
  const goodput = signal<Goodput | null>(null);
  const launchers = signal<Launcher[]>([]);
  const ended = new AbortController();
  let timer: ReturnType<typeof setTimeout> | undefined;
  let hurried = false;

  function update(detail: JobDetail): void {
    timeouts.value = detail.timeouts ?? null;
    launchers.value = detail.nodes ?? [];
    confirmationWindow.value = detail.policy?.confirmation_window ?? null;
  }

  async function turn(): Promise<void> {
    hurried = false;
    if (!document.hidden) {
      // Each may fail by itself: the connection line tells it.
      await Promise.allSettled([
        get<JobDetail>(path, ended.signal).then(update),
        get<Goodput>(`${path}/goodput`, ended.signal).then((answer) => (goodput.value = answer)),
      ]);
    }
    if (!hurried) plan(over() ? EVERY_MS_AFTER_THE_END : EVERY_MS);
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
    timeouts, confirmationWindow, goodput, launchers, update, refreshSoon,
    close() {
      ended.abort();
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", seen);
    },
  };
}
