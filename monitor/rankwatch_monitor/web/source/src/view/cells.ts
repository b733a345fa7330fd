// What the grid of ranks and the map of nodes share: their width, their picture, and where the keys lead.

import { useEffect, useState } from "preact/hooks";
import { glyph, paint } from "../logic/glyphs";
import { cell, type Direction, type Layout, neighbour, rankAt, type Rectangle } from "../logic/layout";
import type { Cell } from "../logic/levels";
import { isTrouble } from "../logic/severity";
import { palette } from "./palette";

const ARROWS: Record<string, Direction> = { ArrowLeft: "left", ArrowRight: "right", ArrowUp: "up", ArrowDown: "down" };

/** The width of an element in whole pixels; 0 until it is known. */
export function useWidth(holder: { readonly current: HTMLElement | null }): number {
  const [width, setWidth] = useState(0);
  useEffect(() => {
    const resized = new ResizeObserver(([entry]) => setWidth(Math.floor(entry!.contentRect.width)));
    resized.observe(holder.current!);
    return () => resized.disconnect();
  }, []);
  return width;
}

/** Draw all cells; those of another state than `filter` are dimmed. */
export function drawCells(canvas: HTMLCanvasElement, placed: Layout, codes: Uint8Array, legend: readonly Cell[], filter: string | null): CanvasRenderingContext2D {
  const context = canvas.getContext("2d")!;
  const colours = palette();
  const picture = new ImageData(placed.width, placed.height);
  paint(new Uint32Array(picture.data.buffer), placed.width, placed.corners, placed.cell, codes, legend.map((state) => glyph(state, placed.cell, colours, filter !== null && filter !== state)));
  context.putImageData(picture, 0, 0);
  return context;
}

/** The cell under the pointer; null: none. */
export function cellUnder(event: MouseEvent, canvas: HTMLCanvasElement, placed: Layout | null, scale: number): number | null {
  if (placed === null) return null;
  const box = canvas.getBoundingClientRect();
  return rankAt(placed, (event.clientX - box.left) * scale, (event.clientY - box.top) * scale);
}

/** Where a key leads: arrows to the next cell, N to the next one in trouble or slow; undefined: nowhere. */
export function movedBy(event: KeyboardEvent, placed: Layout, from: number | null, codes: Uint8Array, legend: readonly Cell[], slow: (at: number) => boolean): number | null | undefined {
  const { key, shiftKey } = event;
  if (event.ctrlKey || event.metaKey || event.altKey) return undefined;
  const last = codes.length - 1;
  const arrow = ARROWS[key];
  if (arrow) return from === null ? 0 : neighbour(placed, from, arrow);
  if (key === "Home") return 0;
  if (key === "End") return last;
  if (key === "Escape") return null;
  if (key.toLowerCase() !== "n") return undefined;
  const step = shiftKey ? last : 1; // one step back, modulo the number of cells
  for (let i = 0, at = from ?? (shiftKey ? 0 : last); i <= last; i++) {
    at = (at + step) % codes.length;
    if (isTrouble(legend[codes[at]!]!) || slow(at)) return at;
  }
  return from;
}

/** The place of one cell. */
export const cellBox = (placed: Layout, at: number, scale: number) => cssBox(cell(placed, at), scale);

export function cssBox(box: Rectangle, scale: number) {
  return { left: `${box.x / scale}px`, top: `${box.y / scale}px`, width: `${box.width / scale}px`, height: `${box.height / scale}px` };
}
