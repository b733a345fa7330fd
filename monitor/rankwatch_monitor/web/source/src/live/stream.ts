// An event stream that reconnects with backoff.

import { markStream, retryAt, takeClock } from "../api/connection";
import type { Clock } from "../api/types";
import { SILENT_MS } from "../logic/serverclock";

const FIRST_RETRY_S = 1;
const LONGEST_RETRY_S = 10;
/** Time to open a stream: a frozen monitor accepts connections and stays silent. */
const OPENING_MS = 8000;

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
export function listen<Events extends object>(
  path: string,
  events: { [Name in keyof Events]?: (data: NonNullable<Events[Name]>) => void },
  opened?: () => void,
  broken?: () => void,
): Stream {
  let source: EventSource | null = null;
  let timer: ReturnType<typeof setTimeout> | undefined;
  let watchdog: ReturnType<typeof setTimeout> | undefined;
  let pause = FIRST_RETRY_S;

  /** The monitor sends clock events, so silence means that the connection or the monitor is dead. */
  function expectWithin(ms: number): void {
    clearTimeout(watchdog);
    watchdog = setTimeout(failed, ms);
  }

  function failed(): void {
    // Browsers stop reconnecting after an HTTP error, so reconnects are scheduled here.
    clearTimeout(watchdog);
    source?.close();
    retryAt.value = Date.now() / 1000 + pause;
    timer = setTimeout(connect, pause * 1000);
    pause = Math.min(LONGEST_RETRY_S, pause * 2);
    broken?.();
  }

  function connect(): void {
    clearTimeout(timer);
    source?.close();
    source = new EventSource(`/api/v1${path}`);
    source.onopen = () => {
      pause = FIRST_RETRY_S;
      retryAt.value = null;
      markStream(true);
      expectWithin(OPENING_MS);
      opened?.();
    };
    source.onerror = failed;
    source.addEventListener("clock", (event: MessageEvent<string>) => {
      takeClock(JSON.parse(event.data) as Clock);
      expectWithin(SILENT_MS);
    });
    expectWithin(OPENING_MS);
    for (const [name, handle] of Object.entries<((data: never) => void) | undefined>(events)) {
      source.addEventListener(name, (event: MessageEvent<string>) => {
        markStream(false);
        handle?.(JSON.parse(event.data) as never);
      });
    }
  }

  wake = connect;
  connect();
  return {
    close() {
      if (wake === connect) wake = null;
      clearTimeout(timer);
      clearTimeout(watchdog);
      source?.close();
      retryAt.value = null;
    },
  };
}
