// Finds ranks, nodes and states of a job by what a person types.

import type { Cell } from "./levels";

export type Found =
  | { kind: "rank"; rank: number; note: string }
  | { kind: "node"; host: string; ranks: number }
  | { kind: "state"; state: Cell; ranks: number };

export interface Places {
  worldSize: number;
  /** By rank; empty: not known. */
  hosts: readonly string[];
  /** Number of ranks by state, the states that are present. */
  states: ReadonlyMap<Cell, number>;
}

const MOST = 8;

/** At most eight, the likeliest first. */
export function find(typed: string, { worldSize, hosts, states }: Places): Found[] {
  const text = typed.trim().toLowerCase();
  if (text === "") return [];
  const found: Found[] = [];
  const rank = /^(?:rank\s*)?(\d{1,7})$/.exec(text);
  if (rank && Number(rank[1]) < worldSize) found.push({ kind: "rank", rank: Number(rank[1]), note: hosts[Number(rank[1])] ?? "" });
  for (const [state, ranks] of states) if (ranks > 0 && state.startsWith(text)) found.push({ kind: "state", state, ranks });
  const nodes = new Map<string, number>();
  for (const host of hosts) if (host !== "" && host.toLowerCase().includes(text)) nodes.set(host, (nodes.get(host) ?? 0) + 1);
  const exact = (host: string) => Number(host.toLowerCase() !== text);
  for (const [host, ranks] of [...nodes].sort(([a], [b]) => exact(a) - exact(b)).slice(0, MOST)) found.push({ kind: "node", host, ranks });
  return found.slice(0, MOST);
}
