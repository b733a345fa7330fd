// Ranks grouped by node, in the order of the nodes' first ranks, or by a parallel coordinate.

import type { Dimension } from "../api/types";
import { DIMENSIONS } from "./route";

export interface NodeGroup {
  host: string;
  ranks: number[];
}

export function byNode(worldSize: number, hostOf: (rank: number) => string | undefined): NodeGroup[] {
  const groups = new Map<string, NodeGroup>();
  for (let rank = 0; rank < worldSize; rank++) {
    const host = hostOf(rank) ?? "";
    let group = groups.get(host);
    if (!group) groups.set(host, (group = { host, ranks: [] }));
    group.ranks.push(rank);
  }
  return [...groups.values()];
}

/** The coordinate for "not reported". */
const NOWHERE = 0xffff;

/** Ranks by their coordinate in one dimension of the parallel layout, in its order; ranks without one come last. */
export function byCoordinate(worldSize: number, dimension: string, coordinates: Uint16Array): NodeGroup[] {
  const groups = new Map<number, NodeGroup>();
  for (let rank = 0; rank < worldSize; rank++) {
    const at = coordinates[rank] ?? NOWHERE;
    let group = groups.get(at);
    if (!group) groups.set(at, (group = { host: at === NOWHERE ? `no ${dimension} rank` : `${dimension} ${at}`, ranks: [] }));
    group.ranks.push(rank);
  }
  return [...groups].sort(([a], [b]) => a - b).map(([, group]) => group);
}

/** The coordinates of one rank by dimension; only those it has reported. */
export function coordinatesOf(coordinates: Readonly<Record<string, Uint16Array>>, rank: number): Partial<Record<Dimension, number>> {
  const known = DIMENSIONS.filter((dimension) => (coordinates[dimension]?.[rank] ?? NOWHERE) !== NOWHERE);
  return Object.fromEntries(known.map((dimension) => [dimension, coordinates[dimension]![rank]!]));
}
