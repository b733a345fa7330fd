// The map of all nodes: one cell each, in blocks by job.

import type { NodeMap } from "../api/types";
import type { Box, Layout } from "./layout";
import type { Cell } from "./levels";
import type { NodeGroup } from "./nodes";
import { WORST_FIRST } from "./severity";

/** Meaning of the codes as cells: the last stands for a node without ranks. */
export function cells(map: NodeMap): Cell[] {
  return map.legend.map((state, code) => (code === map.legend.length - 1 ? "level-unknown" : state)) as Cell[];
}

/** Nodes by their first job, the job with the worst node first; those without a job come last. Within a job by name. */
export function blocks(map: NodeMap): NodeGroup[] {
  const groups = new Map<number, NodeGroup>();
  const order = map.hosts.map((_, at) => at).sort((a, b) => map.hosts[a]![0].localeCompare(map.hosts[b]![0], "en", { numeric: true }));
  for (const at of order) {
    const job = map.hosts[at]![4][0] ?? map.jobs.length;
    let group = groups.get(job);
    if (!group) groups.set(job, (group = { host: map.jobs[job]?.name ?? "no job", ranks: [] }));
    group.ranks.push(at);
  }
  const severity = new Map(cells(map).map((state, code) => [code, WORST_FIRST.indexOf(state as never)]));
  const worst = (group: NodeGroup) => Math.min(...group.ranks.map((at) => severity.get(map.hosts[at]![1]) ?? -1).filter((each) => each >= 0), WORST_FIRST.length);
  const idle = map.jobs.length;
  return [...groups]
    .map(([job, group]) => ({ job, group, order: job === idle ? Number.POSITIVE_INFINITY : worst(group) }))
    .sort((a, b) => a.order - b.order || a.job - b.job)
    .map(({ group }) => group);
}

/** A layout with the name of each block above it. */
export interface MapLayout extends Layout {
  labels: { text: string; x: number; y: number; width: number }[];
}

/** CSS pixels. */
const [LARGEST, SMALLEST, LABEL, NARROWEST, BETWEEN] = [22, 3, 24, 92, 18];
/** Width of a block in cells for each one of its height. */
const FLAT = 4;

/** Blocks side by side, each as wide as it needs, in lines from the left; the largest cells that fit. */
export function mapLayout(groups: readonly NodeGroup[], size: number, box: Box): MapLayout {
  for (let cell = LARGEST; cell > SMALLEST; cell--) {
    const placed = flow(groups, size, box, cell);
    if (placed.height <= box.maxHeight) return placed;
  }
  return flow(groups, size, box, SMALLEST);
}

function flow(groups: readonly NodeGroup[], size: number, { width, scale }: Box, apparent: number): MapLayout {
  const [cell, label, between] = [apparent, LABEL, BETWEEN].map((each) => Math.round(each * scale)) as [number, number, number];
  const gap = Math.round((apparent >= 16 ? 3 : apparent >= 9 ? 2 : 1) * scale);
  const pitch = cell + gap;
  const most = Math.max(1, Math.floor((width + gap) / pitch));
  const corners = new Int32Array(2 * size);
  const labels: MapLayout["labels"] = [];
  let [x, y, tallest, widest] = [0, 0, 0, 0];
  for (const { host, ranks } of groups) {
    const columns = Math.min(most, ranks.length, Math.max(Math.ceil(Math.sqrt(ranks.length * FLAT)), Math.floor((NARROWEST * scale) / pitch)));
    const own = Math.min(width, Math.max(columns * pitch - gap, Math.round(NARROWEST * scale)));
    if (x > 0 && x + own > width) [x, y, tallest] = [0, y + tallest + between, 0];
    labels.push({ text: host, x, y, width: own });
    ranks.forEach((rank, i) => {
      corners[2 * rank] = x + (i % columns) * pitch;
      corners[2 * rank + 1] = y + label + Math.floor(i / columns) * pitch;
    });
    tallest = Math.max(tallest, label + Math.ceil(ranks.length / columns) * pitch - gap);
    widest = Math.max(widest, x + own);
    x += own + between;
  }
  return { width: widest, height: Math.max(cell, y + tallest), cell, corners, lines: false, nodes: [], labels };
}

/** The nodes that incidents have named, the most often named first. */
export function named(map: NodeMap): number[] {
  return map.hosts.map((_, at) => at).filter((at) => map.hosts[at]![3] > 0).sort((a, b) => map.hosts[b]![3] - map.hosts[a]![3]);
}

/** The nodes with ranks that are slow now, those with the most first. */
export function slowNodes({ hosts, slow = {} }: NodeMap): number[] {
  return hosts.flatMap(([host], at) => (slow[host] ? [at] : [])).sort((a, b) => slow[hosts[b]![0]]! - slow[hosts[a]![0]]!);
}
