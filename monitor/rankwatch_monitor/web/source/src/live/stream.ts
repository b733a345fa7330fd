// An event stream that reconnects with backoff.

import { markContact, retryAt } from "../api/connection";

const FIRST_RETRY_S = 1;
const LONGEST_RETRY_S = 10;

export interface Stream {
  close(): void;
}

let wake: (() => void) | null = null;

/** Reconnect now instead of after the backoff. */
export function retryNow(): void {
  wake?.();
}

/**
 * Subscribe to named events. `opened` is called after every connect, `broken` after every failure: an EventSource does not
 * expose the HTTP status, so the caller reads over plain HTTP to distinguish a wrong token from an unknown job.
 */
export function listen(
  path: string,
  events: Record<string, (data: unknown) => void>,
  opened: () => void,
  broken: () => void,
): Stream {
  let source: EventSource | null = null;
  let timer: ReturnType<typeof setTimeout> | undefined;
  let pause = FIRST_RETRY_S;

  function connect(): void {
    clearTimeout(timer);
    source?.close();
    source = new EventSource(`/api/v1${path}`);
    source.onopen = () => {
      pause = FIRST_RETRY_S;
      retryAt.value = null;
      markContact();
      opened();
    };
    source.onerror = () => {
      // Browsers stop reconnecting after an HTTP error, so reconnects are scheduled here.
      source?.close();
      retryAt.value = Date.now() / 1000 + pause;
      timer = setTimeout(connect, pause * 1000);
      pause = Math.min(LONGEST_RETRY_S, pause * 2);
      broken();
    };
    for (const [name, handle] of Object.entries(events)) {
      source.addEventListener(name, (event: MessageEvent<string>) => {
        markContact();
        handle(JSON.parse(event.data));
      });
    }
  }

  wake = connect;
  connect();
  return {
    close() {
      if (wake === connect) wake = null;
      clearTimeout(timer);
      source?.close();
      retryAt.value = null;
    },
  };
}
