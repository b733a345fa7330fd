// Polling that pauses while the tab is hidden.

import { useEffect, useState } from "preact/hooks";
import { Problem } from "../api/client";

/** The first pause after a read that failed; each further one is twice as long, up to the usual one. */
const RETRY_MS = 1000;

export interface Poll {
  /** Read within so many milliseconds; what is asked for until then, or during a read, is one further read. */
  soon(ms?: number): void;
  close(): void;
}

/** Call `read` when asked to, so many milliseconds after each answer, sooner after a failure, and when the tab is seen again. One read at a time. */
export function poller(everyMs: () => number, read: (ended: AbortSignal) => Promise<unknown>): Poll {
  const ended = new AbortController();
  let timer = 0;
  let reading = false;
  let failures = 0;
  /** When the next read is due, by the page's clock. */
  let due = Infinity;

  async function turn(): Promise<void> {
    [reading, due] = [true, Infinity];
    // Failures are shown by the connection bar.
    if (!document.hidden) failures = await read(ended.signal).then(() => 0, () => failures + 1);
    reading = false;
    const asked = Math.max(0, due - performance.now());
    due = Infinity;
    soon(Math.min(asked, everyMs(), failures > 0 ? RETRY_MS * 2 ** (failures - 1) : Infinity));
  }

  function soon(ms = 0): void {
    const at = performance.now() + ms;
    if (at >= due || ended.signal.aborted) return;
    due = at;
    clearTimeout(timer);
    if (!reading) timer = window.setTimeout(turn, ms);
  }

  const seen = () => void (document.hidden || soon());
  document.addEventListener("visibilitychange", seen);
  return {
    soon,
    close() {
      ended.abort();
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", seen);
    },
  };
}

/** Call `read` now and `everyMs` after each answer. Returns the function that stops it. */
export function poll(everyMs: number, read: (ended: AbortSignal) => Promise<unknown>): () => void {
  const each = poller(() => everyMs, read);
  each.soon();
  return each.close;
}

/** The last answer of a read that is polled, anew with `of`; null until the first. An answer that is the same is not drawn again. */
export function usePolled<T>(everyMs: number, read: (ended: AbortSignal) => Promise<T>, of: readonly unknown[]): T | null {
  const [answer, take] = useState<T | null>(null);
  useEffect(() => poll(everyMs, async (ended) => {
    const next = await read(ended);
    take((before) => (JSON.stringify(before) === JSON.stringify(next) ? before : next));
  }), of);
  return answer;
}

/** The last answer, or why the monitor has none; both null until the first. */
export interface Answer<T> {
  answer: T | null;
  problem: Pick<Problem, "status" | "message"> | null;
}

/** Statuses of what the monitor does not know, cannot read, or does not own at the moment. Others are failures, after which it is asked again. */
const REFUSALS: readonly number[] = [404, 422, 503];

/** The same of a read that the monitor may refuse. */
export function useAnswer<T>(everyMs: number, read: (ended: AbortSignal) => Promise<T>, of: readonly unknown[]): Answer<T> {
  return usePolled(everyMs, (ended) => read(ended).then((answer) => ({ answer, problem: null }), refused), of) ?? { answer: null, problem: null };
}

function refused(problem: unknown) {
  if (!(problem instanceof Problem) || !REFUSALS.includes(problem.status)) throw problem;
  return { answer: null, problem: { status: problem.status, message: problem.message } };
}
