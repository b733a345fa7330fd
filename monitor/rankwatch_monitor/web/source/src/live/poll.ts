// Reading again and again while somebody looks.

/** Call `read` now and `everyMs` after each answer, not while the tab is hidden, until what is returned is called. */
export function poll(everyMs: number, read: (ended: AbortSignal) => Promise<unknown>): () => void {
  const ended = new AbortController();
  let timer = 0;
  async function turn(): Promise<void> {
    // A reading that fails by itself is told by the connection line.
    if (!document.hidden) await read(ended.signal).catch(() => undefined);
    if (!ended.signal.aborted) timer = window.setTimeout(turn, everyMs);
  }
  void turn();
  return () => {
    ended.abort();
    clearTimeout(timer);
  };
}
