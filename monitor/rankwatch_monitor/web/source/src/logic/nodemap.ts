// The map of all nodes: one cell each, in blocks by job.

import type { NodeMap } from "../api/types";
import type { Cell } from "./levels";
import type { NodeGroup } from "./nodes";

/** Meaning of the codes as cells: the last stands for a node without ranks. */
export function cells(map: NodeMap): Cell[] {
  return map.legend.map((state, code) => (code === map.legend.length - 1 ? "level-unknown" : state)) as Cell[];
}

/** Nodes by their first job; those without a job come last. Within a job by name. */
export function blocks(map: NodeMap): NodeGroup[] {
  const groups = new Map<number, NodeGroup>();
  const order = map.hosts.map((_, at) => at).sort((a, b) => map.hosts[a]![0].localeCompare(map.hosts[b]![0], "en", { numeric: true }));
  for (const at of order) {
    const job = map.hosts[at]![4][0] ?? map.jobs.length;
    let group = groups.get(job);
    if (!group) groups.set(job, (group = { host: map.jobs[job]?.name ?? "no job", ranks: [] }));
    group.ranks.push(at);
  }
  return [...groups].sort(([a], [b]) => a - b).map(([, group]) => group);
}

/** The nodes that incidents have named, the most often named first. */
export function named(map: NodeMap): number[] {
  return map.hosts.map((_, at) => at).filter((at) => map.hosts[at]![3] > 0).sort((a, b) => map.hosts[b]![3] - map.hosts[a]![3]);
}
