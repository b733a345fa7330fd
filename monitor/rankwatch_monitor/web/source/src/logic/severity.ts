// The order of ranks by severity.

import type { RankReport, RankState } from "../api/types";
import type { Cell } from "./levels";
import { clock, duration, range, wholeDuration } from "./text";

/** Worst first. "unseen" stands before "waiting": the others may wait for a rank that never reported. */
export const WORST_FIRST: readonly RankState[] = [
  "dead", "hung", "suspected", "stopped", "silent", "unseen", "waiting", "running", "ended", "finished",
];

/** What a cell of a grid or a map shows besides measures, worst first: slow ranks stand below all trouble and above the rest. */
export const CELLS_WORST_FIRST: readonly Cell[] = WORST_FIRST.flatMap((state): Cell[] => (state === "unseen" ? ["slow", state] : [state]));

const ORDER = new Map(WORST_FIRST.map((state, index) => [state, index]));
const TROUBLE: ReadonlySet<Cell> = new Set<Cell>(["dead", "hung", "suspected", "stopped", "silent", "level-3", "level-4"]);

export function isTrouble(cell: Cell): boolean {
  return TROUBLE.has(cell);
}

/** How many ranks are in each state, or on each level. */
export function tally<T extends Cell>(states: Uint8Array, legend: readonly T[]): Map<T, number> {
  const counts = new Uint32Array(256);
  for (const byte of states) counts[byte]!++;
  return new Map(legend.map((state, byte) => [state, counts[byte]!]));
}

const ADVANCING: ReadonlySet<RankState> = new Set<RankState>(["running", "finished", "ended", "unseen"]);

/** Whether what a rank in this state is doing changes between two readings: its ages are then known as of the last one only. */
export const moves = (state: RankState): boolean => ADVANCING.has(state);

/** What a rank has reported, `since` seconds ago, as of now: while nothing moves in it, its ages grow; a silent one reports no more. */
export function asOfNow<T extends RankReport>(report: T, since: number): T {
  if (moves(report.state)) return report;
  const grown = (age: number | null): number | null => (age === null ? null : Math.max(0, age + since));
  const open_sections = Object.fromEntries(Object.entries(report.open_sections).map(([name, age]) => [name, grown(age)!]));
  const heard = report.state !== "silent" && report.state !== "dead";
  return { ...report, open_sections, idle: grown(report.idle), heartbeat_age: grown(report.heartbeat_age), report_age: heard ? report.report_age : grown(report.report_age) };
}

/**
 * Rank numbers ordered for the table: culprits, then states of trouble, then slow ranks in the order of `slow`, then by
 * state, then the furthest behind, then by number. Running ranks are ordered by number alone: differences of a step
 * between reports are noise, and rows should not move.
 */
export function worstFirst(
  states: readonly RankState[],
  reports: readonly (RankReport | undefined)[],
  culprits: ReadonlySet<number>,
  slow: Iterable<number> = [],
): number[] {
  const slowness = new Map(Array.from(slow, (rank, place) => [rank, place]));
  const calm = ORDER.get("unseen")!;
  const place = (rank: number) => {
    const state = ORDER.get(states[rank]!)!;
    return state < calm ? state : slowness.has(rank) ? calm - 1 + (1 + slowness.get(rank)!) / (2 + slowness.size) : state;
  };
  const iteration = (rank: number) => reports[rank]?.iteration ?? Number.POSITIVE_INFINITY;
  return Array.from(states.keys()).sort((a, b) => {
    const blame = Number(culprits.has(b)) - Number(culprits.has(a));
    if (blame !== 0) return blame;
    const state = place(a) - place(b);
    if (state !== 0) return state;
    const [x, y] = states[a] === "running" ? [0, 0] : [iteration(a), iteration(b)];
    return x === y ? a - b : x - y;
  });
}

/** "step › load_batch": the section of a rank, and the function in which it hangs or waits; "outside" sections; "–": not known. */
export const sectionWords = (rank: RankReport): string => [openSection(rank)?.name ?? (rank.idle != null ? "outside" : rank.function ? "" : "–"), rank.function].filter(Boolean).join(" › ");

/** How long a rank has been in its section, or outside of all; of one that is silent: if it is still there. */
export const secondsIn = (rank: RankReport | undefined): number | null => openSection(rank)?.seconds ?? rank?.idle ?? null;

/** How long ranks that are alike have been there; "unknown since 14:01:15": they are silent; "exited 14:01:32", "–": it is over, or not known. */
export function timeIn(same: readonly RankReport[], now: number, exited: number | null = null): string {
  const { state, report_age: age } = same[0]!;
  if (state === "dead") return exited === null ? "–" : `exited ${clock(exited, now)}`;
  const known = figures(same, secondsIn, moves(state) ? duration : wholeDuration);
  return known !== "–" && state === "silent" && age != null ? `unknown since ${clock(now - age, now)}` : known;
}

/** A figure of ranks that are alike, from the least to the most; "–": not known of any. */
export const figures = <T extends RankReport>(same: readonly T[], of: (rank: T) => number | null | undefined, text: (value: number) => string): string => range(same.map(of), text) || "–";

/** The section a rank has been in longest: the outermost one that is open. */
export function openSection(report: RankReport | undefined): { name: string; seconds: number } | null {
  let found: { name: string; seconds: number } | null = null;
  for (const [name, seconds] of Object.entries(report?.open_sections ?? {})) {
    if (found === null || seconds > found.seconds) found = { name, seconds };
  }
  return found;
}
