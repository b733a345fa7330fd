// What the rank grid can show besides states: how slow a rank is, in a few levels, each with a picture of its own.

import type { RankState } from "../api/shapes";

/** In the order of the code: the higher, the slower. */
export const LEVELS = ["level-0", "level-1", "level-2", "level-3", "level-4", "level-unknown"] as const;
export type Level = (typeof LEVELS)[number];
/** What a cell of the grid can be. */
export type Cell = RankState | Level;
/** What the grid shows: states, for how long the others wait, or how fast the kernels are. */
export type Look = "state" | "lateness" | "robust";

/** A byte that says: not known. */
const UNKNOWN = 255;
/** Bounds between the levels, in the monitor's units of 1/200. */
const LATENESS = [2, 10, 20, 40];
const ROBUST = [196, 190, 180, 140];

const WORDS: Record<Exclude<Look, "state">, Record<Level, string>> = {
  lateness: {
    "level-0": "under 1 %", "level-1": "1–5 %", "level-2": "5–10 %", "level-3": "10–20 %", "level-4": "20 % and more", "level-unknown": "not known",
  },
  robust: {
    "level-0": "0.98 and more", "level-1": "0.95–0.98", "level-2": "0.90–0.95", "level-3": "0.70–0.90", "level-4": "under 0.70", "level-unknown": "not known",
  },
};

/** Codes into `LEVELS` for each of `ranks` ranks, from the monitor's bytes; who has no byte is not known. */
export function levels(look: Exclude<Look, "state">, bytes: Uint8Array, ranks: number): Uint8Array {
  const codes = new Uint8Array(ranks).fill(LEVELS.indexOf("level-unknown"));
  for (let rank = 0; rank < Math.min(ranks, bytes.length); rank++) {
    const byte = bytes[rank]!;
    if (byte === UNKNOWN) continue;
    codes[rank] = look === "lateness" ? LATENESS.filter((bound) => byte >= bound).length : ROBUST.filter((bound) => byte < bound).length;
  }
  return codes;
}

export function isLevel(cell: Cell): cell is Level {
  return cell.startsWith("level-");
}

/** What a cell is called in the legend. */
export function cellWords(look: Look, cell: Cell): string {
  return look !== "state" && isLevel(cell) ? WORDS[look][cell] : cell;
}

/** The same ranks, the slowest first; those on one level keep their order, and those not known come last. */
export function slowestFirst(ranks: readonly number[], codes: Uint8Array): number[] {
  const unknown = LEVELS.indexOf("level-unknown");
  const key = (rank: number) => (codes[rank] === undefined || codes[rank] === unknown ? -1 : codes[rank]!);
  return [...ranks].sort((a, b) => key(b) - key(a));
}
