// The jobs of a node as rows of one table, and its launchers in words.

import type { NodeDetail, PlacedLauncher, PlacedRank } from "../api/types";
import { deviceFacts } from "./device";
import { clock, duration, elapsed, range, wholeDuration, wholePercent, words } from "./text";

export type Part = NodeDetail["jobs"][number];

export const isGone = (launcher: PlacedLauncher): boolean => launcher.silent || launcher.lost !== null;

/** "Launcher n1, process 10: active; last message 0 s ago." A state that is not heard any more is the last one. */
export function launcherWords(launcher: PlacedLauncher, now: number): string {
  const { silent, last_seen: seen } = launcher;
  const gone = silent;
  const ended = launcher.ended === null ? "" : `ended: ${launcher.ended_reason || words(launcher.ended)}`;
  return `Launcher ${launcher.node}, process ${launcher.launcher_pid}: ${[
    gone ? `last state ${launcher.role}, not heard for ${wholeDuration(elapsed(seen, now))} (since ${clock(seen, now)})` : launcher.role,
    launcher.role_reason || launcher.unfit,
    launcher.lost === null ? "" : `lost: ${launcher.lost}`,
    ended || (gone ? "" : `last message ${duration(launcher.last_seen_age)} ago`),
  ].filter(Boolean).join("; ")}.`;
}

/** Launchers that are not heard, unless what is wrong with the job states that already. */
export function goneBesides(part: Part): PlacedLauncher[] {
  return part.verdict.quiet_host !== null || part.verdict.state === "lost" ? [] : part.launchers.filter(isGone);
}

/** What is known of ranks besides their state and how slow they are: "the others wait 27 % of a step, GPU score 1.00, 61 °C". */
export function factsOf(same: readonly PlacedRank[]): string {
  const waits = range(same.map((rank) => rank.scores.lateness_share), (share) => wholePercent(Math.max(0, share)));
  const notable = same.some(({ scores, straggler }) => straggler == null && (scores.lateness_share ?? 0) >= NOTABLE);
  const scores = range(same.map((rank) => rank.scores.gpu_robust), (score) => score.toFixed(2));
  return [
    notable && `the others wait for it for ${waits} of a step`,
    scores !== "" && `GPU score ${scores}`,
    deviceFacts(...same.map(({ device }) => device)),
  ].filter(Boolean).join(", ");
}

const NOTABLE = 0.05;
