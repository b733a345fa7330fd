// Ranks grouped by node, in the order of the nodes' first ranks, or by a parallel coordinate.

import type { Dimension } from "../api/types";
import { DIMENSIONS, groupName } from "./route";

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
export const NOWHERE = 0xffff;

/** Ranks by their coordinate in one dimension of the parallel layout, in its order; ranks without one come last. */
export function byCoordinate(worldSize: number, dimension: string, coordinates: Uint16Array): NodeGroup[] {
  const groups = new Map<number, NodeGroup>();
  for (let rank = 0; rank < worldSize; rank++) {
    const at = coordinates[rank] ?? NOWHERE;
    let group = groups.get(at);
    if (!group) groups.set(at, (group = { host: at === NOWHERE ? `no ${groupName(dimension)}` : groupName(dimension, at), ranks: [] }));
    group.ranks.push(rank);
  }
  return [...groups].sort(([a], [b]) => a - b).map(([, group]) => group);
}

const sizes = new WeakMap<Uint16Array, ReadonlyMap<number, number>>();

/** How many ranks each group of a dimension has. Kept as long as the coordinates are. */
export function groupSizes(coordinates: Uint16Array): ReadonlyMap<number, number> {
  const known = sizes.get(coordinates);
  if (known) return known;
  const found = new Map<number, number>();
  for (const number of coordinates) if (number !== NOWHERE) found.set(number, (found.get(number) ?? 0) + 1);
  sizes.set(coordinates, found);
  return found;
}

/** Whether ranks share a coordinate: where none do, the groups are the ranks. */
export function isShared(coordinates: Uint16Array): boolean {
  return [...groupSizes(coordinates).values()].some((ranks) => ranks > 1);
}

/** The groups of one rank by dimension; only those it has reported, and none that it is alone in. */
export function coordinatesOf(coordinates: Readonly<Record<string, Uint16Array>>, rank: number): Partial<Record<Dimension, number>> {
  const known = DIMENSIONS.filter((dimension) => {
    const numbers = coordinates[dimension];
    return numbers !== undefined && (groupSizes(numbers).get(numbers[rank] ?? NOWHERE) ?? 0) > 1;
  });
  return Object.fromEntries(known.map((dimension) => [dimension, coordinates[dimension]![rank]!]));
}
