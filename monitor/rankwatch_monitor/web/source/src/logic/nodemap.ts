// The map of all nodes: one cell each, in blocks by the jobs that they run.

import type { NodeMap } from "../api/types";
import type { Box, Layout } from "./layout";
import { type Cell, withSlow } from "./levels";
import type { NodeGroup } from "./nodes";
import { CELLS_WORST_FIRST } from "./severity";

/** What the cells show, worst first; the last stands for a node without ranks. */
export const ORDER: readonly Cell[] = [...CELLS_WORST_FIRST, "level-unknown"];

/** What each node's cell shows, as a code, and the meaning of the codes: the worst state of its ranks, or that a rank that runs is slow. */
export function cells(map: NodeMap): { codes: Uint8Array; legend: readonly Cell[] } {
  const legend = map.legend.map((state, code) => (code === map.legend.length - 1 ? "level-unknown" : state)) as Cell[];
  return withSlow(Uint8Array.from(map.hosts, ([, state]) => state), legend, slowNodes(map));
}

/** The names of a node's jobs, each once: "gpt ×10, slowed"; none: "no job". */
export function jobNames(map: NodeMap, jobs: readonly number[]): string {
  const counts = new Map<string, number>();
  for (const job of jobs) counts.set(map.jobs[job]!.name, (counts.get(map.jobs[job]!.name) ?? 0) + 1);
  return [...counts].map(([name, times]) => (times > 1 ? `${name} ×${times}` : name)).join(", ") || "no job";
}

/** Combinations of jobs on one node that have a block each; nodes of more of them share one. */
const MOST_COMBINATIONS = 12;

/** Nodes that run the same jobs, the block with the worst node first; those without a job come last. Within a block by name. */
export function blocks(map: NodeMap): NodeGroup[] {
  const groups = new Map<string, NodeGroup & { first: number }>();
  const combined = new Set(map.hosts.filter(([, , , , jobs]) => jobs.length > 1).map(([, , , , jobs]) => `${jobs}`)).size > MOST_COMBINATIONS;
  const order = map.hosts.map((_, at) => at).sort((a, b) => map.hosts[a]![0].localeCompare(map.hosts[b]![0], "en", { numeric: true }));
  for (const at of order) {
    const jobs = map.hosts[at]![4];
    const several = combined && jobs.length > 1;
    const key = several ? "several" : `${jobs}`;
    let group = groups.get(key);
    if (!group) groups.set(key, (group = { host: several ? "several jobs" : jobNames(map, jobs), ranks: [], first: jobs[0] ?? map.jobs.length }));
    group.ranks.push(at);
  }
  const { codes, legend } = cells(map);
  const severity = legend.map((cell) => ORDER.indexOf(cell));
  const worst = (group: NodeGroup) => group.ranks.reduce((least, at) => Math.min(least, severity[codes[at]!]!), ORDER.length);
  return [...groups.values()]
    .map((group) => ({ group, order: group.first === map.jobs.length ? Number.POSITIVE_INFINITY : worst(group) }))
    .sort((a, b) => a.order - b.order || a.group.first - b.group.first)
    .map(({ group: { host, ranks } }) => ({ host, ranks }));
}

/** A layout with the name of each block above it; `named`: there is room for the name of each node below its cell, in so many pixels. */
export interface MapLayout extends Layout {
  labels: { text: string; x: number; y: number; width: number }[];
  named: number;
}

/** CSS pixels. */
const [LARGEST, SMALLEST, LABEL, NARROWEST, BETWEEN] = [22, 3, 24, 92, 18];
/** Width of a block in cells for each one of its height. */
const FLAT = 4;
/** So many nodes have their names below their cells, in a field of this width, with two lines below a cell. */
const [FEW, NAME, LINES] = [32, 132, 38];

/** Blocks side by side, each as wide as it needs, in lines from the left; the largest cells that fit. */
export function mapLayout(groups: readonly NodeGroup[], size: number, box: Box): MapLayout {
  if (size <= FEW) {
    const placed = flow(groups, size, box, LARGEST, [NAME, LARGEST + LINES]);
    if (placed.height <= box.maxHeight) return placed;
  }
  for (let cell = LARGEST; cell > SMALLEST; cell--) {
    const placed = flow(groups, size, box, cell);
    if (placed.height <= box.maxHeight) return placed;
  }
  return flow(groups, size, box, SMALLEST);
}

/** `field`: of a cell with its name, in CSS pixels; none: cells stand close together, without names. */
function flow(groups: readonly NodeGroup[], size: number, { width, scale }: Box, apparent: number, field?: readonly [number, number]): MapLayout {
  const [cell, label, between] = [apparent, LABEL, BETWEEN].map((each) => Math.round(each * scale)) as [number, number, number];
  const gap = field ? 0 : Math.round((apparent >= 16 ? 3 : apparent >= 9 ? 2 : 1) * scale);
  const [pitch, drop] = (field?.map((each) => Math.round(each * scale)) ?? [cell + gap, cell + gap]) as [number, number];
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
      corners[2 * rank + 1] = y + label + Math.floor(i / columns) * drop;
    });
    tallest = Math.max(tallest, label + Math.ceil(ranks.length / columns) * drop - gap);
    widest = Math.max(widest, x + own);
    x += own + between;
  }
  return { width: widest, height: Math.max(cell, y + tallest), cell, corners, lines: false, nodes: [], head: { width: 0, height: 0 }, labels, named: field ? pitch : 0 };
}

/** The nodes that incidents have named, the most often named first. */
export function named(map: NodeMap): number[] {
  return map.hosts.map((_, at) => at).filter((at) => map.hosts[at]![3] > 0).sort((a, b) => map.hosts[b]![3] - map.hosts[a]![3]);
}

/** Which jobs are slow on a node: "slow: throttled", by id where several have the name; empty: none. */
export const slowWords = (map: NodeMap, host: string): string => stateWords(map, "slow", map.slow_jobs[host]);

/** What is wrong on a node, the worst first: "dead: crashed; slow: slowed"; empty: nothing. */
export function illWords(map: NodeMap, at: number): string {
  const [host, code] = map.hosts[at]!;
  return [stateWords(map, map.legend[code]!, map.worst_jobs[host]), slowWords(map, host)].filter(Boolean).join("; ");
}

function stateWords({ jobs }: NodeMap, state: string, ids: readonly string[] = []): string {
  const names = ids.map((id) => {
    const name = jobs.find((job) => job.id === id)?.name ?? id;
    return jobs.filter((job) => job.name === name).length > 1 ? id : name;
  });
  return names.length > 0 ? `${state}: ${names.join(", ")}` : "";
}

/** The nodes of each job by its id, as one text to search in. */
export function nodesOf({ jobs, hosts }: NodeMap): ReadonlyMap<string, string> {
  const found = new Map<string, string>();
  for (const [host, , , , places] of hosts) for (const { id } of places.map((place) => jobs[place]!)) found.set(id, `${found.get(id) ?? ""} ${host}`);
  return found;
}

/** The nodes with ranks that are slow now, those with the most first. */
export function slowNodes({ hosts, slow }: NodeMap): number[] {
  return hosts.flatMap(([host], at) => (slow[host] ? [at] : [])).sort((a, b) => slow[hosts[b]![0]]! - slow[hosts[a]![0]]!);
}
