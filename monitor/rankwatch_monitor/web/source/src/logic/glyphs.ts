// The glyph of a rank's cell: a small bitmap per state and level, so that neither depends on colour alone.

import type { Cell } from "./levels";

/** Colours as 32-bit words in canvas byte order (ABGR on every machine that browsers run on). */
export interface Palette {
  fill: Record<Cell, number>;
  /** Drawn over a fill: the page's background or its opposite, depending on the theme. */
  mark: number;
  dimmed: Record<Cell, number>;
}

/** Smaller cells have no pattern; only hollow states keep their shape. */
const SMALLEST_PATTERN = 7;
/** From this size on a cell has room for a number. */
export const NUMBERED = 24;

/** The glyph of a state as size * size pixels, row by row; 0 is transparent. */
export function glyph(state: Cell, size: number, palette: Palette, dimmed = false): Uint32Array {
  const words = new Uint32Array(size * size);
  const colour = (dimmed ? palette.dimmed : palette.fill)[state];
  for (let y = 0; y < size; y++) {
    for (let x = 0; x < size; x++) {
      const ink = size >= SMALLEST_PATTERN ? pattern(state, x, y, size) : plain(state, x, y, size);
      words[y * size + x] = ink === FILL ? colour : ink === MARK ? palette.mark : 0;
    }
  }
  return words;
}

const NONE = 0;
const FILL = 1;
const MARK = 2;

function plain(state: Cell, x: number, y: number, size: number): number {
  const edge = x === 0 || y === 0 || x === size - 1 || y === size - 1;
  if ((state === "unseen" || state === "level-unknown") && size >= 4) return edge ? FILL : NONE;
  if (state === "silent" && size >= 4) return edge ? FILL : MARK;
  return FILL;
}

function pattern(state: Cell, x: number, y: number, size: number): number {
  const line = Math.max(1, Math.round(size / 9));
  const inset = Math.min(x, y, size - 1 - x, size - 1 - y);
  // Large cells carry the rank's number at the top, so the mark moves down.
  const middle = ((size - 1) / 2) * (size >= NUMBERED ? 1.18 : 1);
  const [cx, cy] = [Math.abs(x - (size - 1) / 2), Math.abs(y - middle)];
  switch (state) {
    case "level-0":
    case "level-1":
    case "level-2":
    case "level-3":
    case "level-4":
      return pips(Number(state.slice(-1)), x - (size - 1) / 2, y - (size - 1) / 2, size, line) ? MARK : FILL;
    case "level-unknown":
    case "unseen":
      return inset < Math.max(1, line / 2) ? FILL : NONE;
    case "running":
      return FILL;
    case "waiting": // a dash
      return cy < line * 0.8 && cx < size * 0.28 ? MARK : FILL;
    case "suspected": // the outline of a diamond
      return cx + cy < size * 0.34 && cx + cy >= size * 0.34 - 1.5 * line ? MARK : FILL;
    case "slow": // an hourglass
      return cx <= cy && cy < size * 0.21 ? MARK : FILL;
    case "hung": // a diamond
      return cx + cy < size * 0.3 ? MARK : FILL;
    case "silent": // an empty frame
      return inset < silentFrame(size) ? FILL : MARK;
    case "stopped": // the two bars of a pause
      return cy < size * 0.28 && cx > size * 0.06 && cx < size * 0.06 + line * 1.8 ? MARK : FILL;
    case "dead": // a cross
      return Math.abs(cx - cy) < line * 0.75 && cx < size * 0.25 ? MARK : FILL;
    case "ended": // a square, as on a stop key
      return cx < size * 0.16 && cy < size * 0.16 ? MARK : FILL;
    case "finished": // half of a cell
      return x + y < size - 1 ? NONE : FILL;
  }
}

/** Pixels of the frame of a silent rank; in large cells it leaves room for the rank's number. */
export function silentFrame(size: number): number {
  const line = Math.max(1, Math.round(size / 9));
  return Math.round(Math.min(line * 1.5, Math.max(2, size / 10)));
}

/** As many as the level: as on a die, or side by side below a number. */
const PIPS: readonly (readonly (readonly [number, number])[])[] = [
  [],
  [[0, 0]],
  [[-1, 1], [1, -1]],
  [[-1, 1], [0, 0], [1, -1]],
  [[-1, -1], [-1, 1], [1, -1], [1, 1]],
];

function pips(level: number, dx: number, dy: number, size: number, line: number): boolean {
  const [apart, half] = [size * 0.22, Math.max(0.75, line * 0.75)];
  if (size >= NUMBERED) {
    return Math.abs(dy - size * 0.24) < half && PIPS[level]!.some((_, i) => Math.abs(dx - (i - (level - 1) / 2) * apart) < half);
  }
  return PIPS[level]!.some(([x, y]) => Math.abs(dx - x * apart) < half && Math.abs(dy - y * apart) < half);
}

/** Copy each rank's glyph to its corner. Only rows are copied, so 16,384 ranks take a few milliseconds. */
export function paint(
  target: Uint32Array, width: number, corners: Int32Array, size: number,
  states: Uint8Array, glyphs: readonly Uint32Array[],
): void {
  const ranks = Math.min(states.length, corners.length / 2);
  for (let rank = 0; rank < ranks; rank++) {
    const picture = glyphs[states[rank]!];
    if (!picture) continue;
    let at = corners[2 * rank + 1]! * width + corners[2 * rank]!;
    for (let row = 0; row < size; row++, at += width) target.set(picture.subarray(row * size, (row + 1) * size), at);
  }
}

/** "#1f6f8b" to a canvas word, `opacity` from 0 to 1. */
export function abgr(hex: string, opacity = 1): number {
  const rgb = Number.parseInt(hex.trim().slice(1), 16);
  const alpha = Math.round(opacity * 255);
  return ((alpha << 24) | ((rgb & 0xff) << 16) | (rgb & 0xff00) | (rgb >> 16)) >>> 0;
}

/** Black or white, whichever is read more easily on a fill. Relative luminance as in WCAG 2. */
export function readableOn(hex: string): string {
  const [r, g, b] = [1, 3, 5].map((at) => (Number.parseInt(hex.slice(at, at + 2), 16) / 255) ** 2.2) as [number, number, number];
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.18 ? "#000000" : "#ffffff";
}
