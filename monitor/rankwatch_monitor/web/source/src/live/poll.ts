// Polling that pauses while the tab is hidden.

import { useEffect, useState } from "preact/hooks";

/** Call `read` now and `everyMs` after each response, except while the tab is hidden. Returns the function that stops it. */
export function poll(everyMs: number, read: (ended: AbortSignal) => Promise<unknown>): () => void {
  const ended = new AbortController();
  let timer = 0;
  async function turn(): Promise<void> {
    // Failures are shown by the connection bar.
    if (!document.hidden) await read(ended.signal).catch(() => undefined);
    if (!ended.signal.aborted) timer = window.setTimeout(turn, everyMs);
  }
  void turn();
  return () => {
    ended.abort();
    clearTimeout(timer);
  };
}

/** The last answer of a read that is polled, anew with `of`; null until the first. */
export function usePolled<T>(everyMs: number, read: (ended: AbortSignal) => Promise<T>, of: readonly unknown[]): T | null {
  const [answer, take] = useState<T | null>(null);
  useEffect(() => poll(everyMs, async (ended) => take(await read(ended))), of);
  return answer;
}
