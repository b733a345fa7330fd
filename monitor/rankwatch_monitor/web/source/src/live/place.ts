// One answer of the API, polled while the page is visible; the event stream of all jobs shows whether the monitor is alive.

import { batch, type Signal, signal } from "@preact/signals";
import { exactNow } from "../api/connection";
import { get, Problem } from "../api/client";
import { poll } from "./poll";
import { listen, type Stream } from "./stream";

const EVERY_MS = 2000;

export interface PlaceWatch<T> extends Stream {
  /** Null until the first answer. */
  answer: Signal<T | null>;
  /** When it came, by the monitor's clock: its ages are as of then. */
  at: Signal<number>;
  /** Set if the monitor knows no such place. */
  unknown: Signal<Problem | null>;
}

export function watchPlace<T>(path: string): PlaceWatch<T> {
  const answer = signal<T | null>(null);
  const at = signal(0);
  const unknown = signal<Problem | null>(null);
  const stream = listen("/events", {}, () => undefined, () => undefined);
  const stop = poll(EVERY_MS, async (ended) => {
    try {
      const next = await get<T>(path, ended);
      batch(() => ((answer.value = next), (at.value = exactNow())));
      unknown.value = null;
    } catch (problem) {
      if (!(problem instanceof Problem) || ![404, 422, 503].includes(problem.status)) throw problem;
      unknown.value = problem;
    }
  });
  return {
    answer, at, unknown,
    close() {
      stop();
      stream.close();
    },
  };
}
