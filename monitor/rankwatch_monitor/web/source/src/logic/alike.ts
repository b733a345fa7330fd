// Which ranks of a table are alike, so that one line stands for them.

import type { PlacedRank, RankReport } from "../api/types";
import { grouped } from "./nodes";
import { secondsIn, sectionWords } from "./severity";
import { median } from "./timeline";

/** A rank in a table; its device is known on the page of its node. */
export type Placed = RankReport & Partial<Pick<PlacedRank, "device" | "straggler">>;

/** Fewer are shown one by one. */
const FEWEST = 3;

/** Figures in which a rank may differ from the middle of the others, and by how much. */
const FIGURES: readonly (readonly [of: Figure, most: (middle: number) => number])[] = [
  [(rank) => rank.iteration, () => 1],
  [secondsIn, (middle) => 2 + middle / 2],
  [(rank) => rank.heartbeat_age, (middle) => 2 + middle / 2],
  [(rank) => rank.report_age, (middle) => 5 + middle / 2],
  [(rank) => rank.scores.lateness_share, () => 0.05],
  [(rank) => rank.scores.gpu_robust, () => 0.1],
  [(rank) => rank.device?.temperature, () => 10],
  [(rank) => rank.device?.utilization, () => 0.25],
  [(rank) => rank.device?.power, (middle) => 20 + middle / 4],
];

/** The ranks in their order, in groups that are alike; a rank that is slow, or stands out in a figure, is alone. */
export function alike<T extends Placed>(ranks: readonly T[]): T[][] {
  return grouped(ranks, (rank) => (rank.straggler ? `slow ${rank.rank}` : keyOf(rank))).flatMap(([, group]) => {
    const middles = FIGURES.map(([of]) => median(group.map(of).filter((value) => value != null)));
    const apart = (rank: Placed) => FIGURES.some(([of, most], i) => differs(of(rank), middles[i]!, most));
    const same = group.filter((rank) => !apart(rank));
    if (same.length < FEWEST) return group.map((rank) => [rank]);
    return [...group.filter(apart).map((rank) => [rank]), same.sort((a, b) => a.rank - b.rank)];
  });
}

function keyOf(rank: Placed): string {
  const { throttled = [], errors = {} } = rank.device ?? {};
  return JSON.stringify([rank.state, sectionWords(rank), rank.reason, throttled, Object.entries(errors).filter(([, number]) => number > 0)]);
}

type Figure = (rank: Placed) => number | null | undefined;

function differs(value: number | null | undefined, middle: number, most: (middle: number) => number): boolean {
  return value != null && Math.abs(value - middle) > most(middle);
}
