// Data for colouring and grouping the grid that the event stream does not carry; polled only while shown.

import { type Signal, effect, signal, untracked } from "@preact/signals";
import { get } from "../api/client";
import type { GridBytes, Layout } from "../api/types";
import type { Look } from "../logic/levels";
import { poll } from "./poll";

const EVERY_MS = 2000;
const LAYOUT_EVERY_MS = 60_000;
/** Carried by the event stream. */
const STREAMED: ReadonlySet<Look> = new Set<Look>(["state", "lateness", "robust"]);

export interface GridExtras {
  /** Coordinates of each rank by the name of the dimension; only dimensions that ranks report. */
  coordinates: Signal<Record<string, Uint16Array>>;
  close(): void;
}

/** Poll the bytes of the chosen look and merge them into `looks`. */
export function watchGrid(path: string, look: Signal<Look>, looks: Signal<Record<string, Uint8Array | null>>): GridExtras {
  const coordinates = signal<Record<string, Uint16Array>>({});
  const stopLayout = poll(LAYOUT_EVERY_MS, async (ended) => {
    const answer = await get<Layout>(`${path}/layout`, ended);
    coordinates.value = Object.fromEntries(
      Object.entries(answer.coordinates).map(([name, text]) => [name, new Uint16Array(bytesOf(text).buffer)]),
    );
    looks.value = { ...Object.fromEntries(answer.looks.map((name) => [name, null])), ...looks.value };
  });
  const stopLook = effect(() => {
    const chosen = look.value;
    if (STREAMED.has(chosen)) return;
    return untracked(() =>
      poll(EVERY_MS, async (ended) => {
        const answer = await get<GridBytes>(`${path}/grid/${chosen}`, ended);
        looks.value = { ...looks.value, [chosen]: bytesOf(answer.bytes) };
      }),
    );
  });
  return {
    coordinates,
    close() {
      stopLayout();
      stopLook();
    },
  };
}

export function bytesOf(base64: string): Uint8Array {
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes;
}

