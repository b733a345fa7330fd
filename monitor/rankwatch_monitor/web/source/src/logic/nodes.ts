// Ranks grouped by node, in the order of the nodes' first ranks, or by a parallel coordinate.

import type { Dimension } from "../api/types";
import { DIMENSIONS, groupName } from "./route";

export interface NodeGroup {
  host: string;
  ranks: number[];
}

/** What has the same key, in the order in which the keys come. */
export function grouped<T, K>(items: Iterable<T>, keyOf: (item: T) => K): [key: K, items: T[]][] {
  const found = new Map<K, T[]>();
  for (const item of items) {
    const key = keyOf(item);
    const group = found.get(key);
    if (group) group.push(item);
    else found.set(key, [item]);
  }
  return [...found];
}

export const byNode = (worldSize: number, hostOf: (rank: number) => string | undefined): NodeGroup[] =>
  grouped(Array(worldSize).keys(), (rank) => hostOf(rank) ?? "").map(([host, ranks]) => ({ host, ranks }));

/** The coordinate for "not reported". */
export const NOWHERE = 0xffff;

/** Ranks by their coordinate in one dimension of the parallel layout, in its order; ranks without one come last. */
export function byCoordinate(worldSize: number, dimension: string, coordinates: Uint16Array): NodeGroup[] {
  const nameOf = (at: number) => (at === NOWHERE ? `no ${groupName(dimension)}` : groupName(dimension, at));
  return grouped(Array(worldSize).keys(), (rank) => coordinates[rank] ?? NOWHERE).sort(([a], [b]) => a - b).map(([at, ranks]) => ({ host: nameOf(at), ranks }));
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
