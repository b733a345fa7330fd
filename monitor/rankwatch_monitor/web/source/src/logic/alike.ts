// Which ranks of a table are alike, so that one line stands for them.

import type { PlacedRank } from "../api/types";
import { openSection } from "./severity";

/** Fewer are shown one by one. */
const FEWEST = 3;

/** Figures in which a rank may differ from the middle of the others, and by how much. */
const FIGURES: readonly (readonly [(rank: PlacedRank) => number | null | undefined, (middle: number) => number])[] = [
  [(rank) => rank.iteration, () => 1],
  [(rank) => openSection(rank)?.seconds ?? rank.idle, (middle) => 2 + middle / 2],
  [(rank) => rank.heartbeat_age, (middle) => 2 + middle / 2],
  [(rank) => rank.scores?.lateness_share, () => 0.05],
  [(rank) => rank.scores?.gpu_robust, () => 0.1],
  [(rank) => rank.device?.temperature, () => 10],
  [(rank) => rank.device?.utilization, () => 0.25],
  [(rank) => rank.device?.power, (middle) => 20 + middle / 4],
];

/** The ranks in their order, in groups that are alike; a rank that is slow, or stands out in a figure, is alone. */
export function alike(ranks: readonly PlacedRank[]): PlacedRank[][] {
  const found = new Map<string, PlacedRank[]>();
  for (const rank of ranks) {
    const key = rank.straggler ? `slow ${rank.rank}` : keyOf(rank);
    found.set(key, [...(found.get(key) ?? []), rank]);
  }
  return [...found.values()].flatMap((group) => {
    const apart = new Set(group.filter((rank) => FIGURES.some(([of, most]) => differs(rank, group, of, most))));
    const same = group.filter((rank) => !apart.has(rank));
    const alone = [...apart, ...(same.length < FEWEST ? same : [])];
    const single = group.filter((rank) => alone.includes(rank)).map((rank) => [rank]);
    return same.length < FEWEST ? single : [...single, same.sort((a, b) => a.rank - b.rank)];
  });
}

function keyOf(rank: PlacedRank): string {
  const { throttled = [], errors = {} } = rank.device ?? {};
  return JSON.stringify([rank.state, openSection(rank)?.name, rank.idle === null, rank.reason, throttled, Object.entries(errors).filter(([, number]) => number > 0)]);
}

function differs(rank: PlacedRank, group: readonly PlacedRank[], of: (rank: PlacedRank) => number | null | undefined, most: (middle: number) => number): boolean {
  const values = group.map(of).filter((value) => value != null).sort((a, b) => a - b);
  const [value, middle] = [of(rank), values[values.length >> 1]];
  return value != null && middle !== undefined && Math.abs(value - middle) > most(middle);
}
