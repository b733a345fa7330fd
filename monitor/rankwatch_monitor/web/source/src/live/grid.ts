// Data for colouring and grouping the grid that the event stream does not carry; polled only while shown.

import type { Signal } from "@preact/signals";
import { useEffect, useMemo } from "preact/hooks";
import { get } from "../api/client";
import type { GridBytes, Layout } from "../api/types";
import type { Look } from "../logic/levels";
import { poll, usePolled } from "./poll";

const EVERY_MS = 2000;
const LAYOUT_EVERY_MS = 60_000;
/** Carried by the event stream. */
const STREAMED: ReadonlySet<Look> = new Set<Look>(["state", "lateness", "robust"]);

/** Coordinates of each rank by the name of the dimension, of those that ranks report. The bytes of the chosen look are merged into `looks`. */
export function useGrid(path: string, chosen: Look, looks: Signal<Record<string, Uint8Array | null>>): Record<string, Uint16Array> {
  const layout = usePolled(LAYOUT_EVERY_MS, (ended) => get<Layout>(`${path}/layout`, ended), [path]);
  useEffect(() => {
    if (layout) looks.value = { ...Object.fromEntries(layout.looks.map((name) => [name, null])), ...looks.value };
  }, [layout, looks]);
  useEffect(() => {
    if (STREAMED.has(chosen)) return;
    return poll(EVERY_MS, async (ended) => {
      const answer = await get<GridBytes>(`${path}/grid/${chosen}`, ended);
      looks.value = { ...looks.value, [chosen]: bytesOf(answer.bytes) };
    });
  }, [path, chosen, looks]);
  return useMemo(() => Object.fromEntries(Object.entries(layout?.coordinates ?? {}).map(([name, text]) => [name, new Uint16Array(bytesOf(text).buffer)])), [layout]);
}

export function bytesOf(base64: string): Uint8Array {
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes;
}

