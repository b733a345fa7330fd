// Ranks grouped by the node they run on, in the order in which the nodes' first ranks come.

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
