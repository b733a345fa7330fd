// What the rank grid can show besides states: measures quantised to a few levels, each with its own glyph.

import type { RankState } from "../api/types";

/** In the order of their codes: the higher, the worse. */
export const LEVELS = ["level-0", "level-1", "level-2", "level-3", "level-4", "level-unknown"] as const;
export type Level = (typeof LEVELS)[number];
/** Content of a grid cell; "slow": a rank that runs, and makes the others wait. */
export type Cell = RankState | Level | "slow";
/** What the grid is coloured by: states, or a measure. */
export type Look = "state" | Measure;
export type Measure = "lateness" | "robust" | "heartbeat_age" | "temperature";

/** The byte for "not known". */
const UNKNOWN = 255;
/** Increments of the byte per doubling of a heartbeat age. */
const OCTAVE = 16;

interface Scale {
  /** Bounds between the levels, as bytes of the monitor: shares and scores in 1/200, degrees as they are, ages by octaves. */
  bounds: readonly number[];
  words: readonly string[];
  /** True: lower values are worse. */
  falling?: true;
}

const SCALES: Record<Measure, Scale> = {
  lateness: { bounds: [2, 10, 20, 40], words: ["under 1 %", "1–5 %", "5–10 %", "10–20 %", "20 % and more"] },
  robust: { bounds: [196, 190, 180, 140], words: ["0.98 and more", "0.95–0.98", "0.90–0.95", "0.70–0.90", "under 0.70"], falling: true },
  heartbeat_age: { bounds: [10, 30, 120, 300].map(ageByte), words: ["under 10 s", "10–30 s", "30 s–2 min", "2–5 min", "5 min and more"] },
  temperature: { bounds: [60, 70, 80, 87], words: ["under 60 °C", "60–70 °C", "70–80 °C", "80–87 °C", "87 °C and more"] },
};

export function isLook(name: string): name is Look {
  return name === "state" || Object.hasOwn(SCALES, name);
}

/** The byte that stands for an age in seconds. */
export function ageByte(seconds: number): number {
  return Math.round(OCTAVE * Math.log2(1 + seconds));
}

/** Codes into `LEVELS` for each of `ranks` ranks, from the monitor's bytes; ranks without a byte are not known. */
export function levels(look: Measure, bytes: Uint8Array, ranks: number): Uint8Array {
  const codes = new Uint8Array(ranks).fill(LEVELS.indexOf("level-unknown"));
  const { bounds, falling } = SCALES[look];
  for (let rank = 0; rank < Math.min(ranks, bytes.length); rank++) {
    const byte = bytes[rank]!;
    if (byte !== UNKNOWN) codes[rank] = bounds.filter((bound) => (falling ? byte < bound : byte >= bound)).length;
  }
  return codes;
}

/** States with those of slow ranks that run as "slow": each code, and the meaning of the codes. */
export function withSlow(codes: Uint8Array, legend: readonly Cell[], slow: Iterable<number>): { codes: Uint8Array; legend: readonly Cell[] } {
  const [marked, running] = [codes.slice(), legend.indexOf("running")];
  for (const rank of slow) if (codes[rank] === running) marked[rank] = legend.length;
  return { codes: marked, legend: [...legend, "slow"] };
}

/** What the cell of a rank shows: its state, or that it runs and makes the others wait. */
export const cellOf = (state: RankState, slow: boolean): Cell => (slow && state === "running" ? "slow" : state);

export function isLevel(cell: Cell): cell is Level {
  return cell.startsWith("level-");
}

/** Label of a cell in the legend. */
export function cellWords(look: Look, cell: Cell): string {
  return look !== "state" && isLevel(cell) ? (SCALES[look].words[LEVELS.indexOf(cell)] ?? "not known") : cell;
}

/** The same ranks, the slowest first; those on one level keep their order, and those not known come last. */
export function slowestFirst(ranks: readonly number[], codes: Uint8Array): number[] {
  const unknown = LEVELS.indexOf("level-unknown");
  const key = (rank: number) => (codes[rank] === undefined || codes[rank] === unknown ? -1 : codes[rank]!);
  return [...ranks].sort((a, b) => key(b) - key(a));
}
