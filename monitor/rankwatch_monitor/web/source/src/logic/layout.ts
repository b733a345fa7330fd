// Positions of the ranks' cells in the grid, in device pixels, so that cells stay sharp at every zoom.

import type { NodeGroup } from "./nodes";

export interface Box {
  width: number;
  maxHeight: number;
  /** Device pixels per CSS pixel: gaps keep their apparent size. */
  scale: number;
}

export interface Layout {
  width: number;
  height: number;
  cell: number;
  /** Top left corner of each rank's cell: x at 2 * rank, y at 2 * rank + 1. */
  corners: Int32Array;
  /** True: one line per node, with its name; false: tiled blocks. */
  lines: boolean;
  /** Where each node begins, in the order of the groups. */
  nodes: { host: string; x: number; y: number }[];
  /** Room above each block for its name, of this width and height; 0: there is none. */
  head: { width: number; height: number };
}

/** CSS pixels; cells of larger jobs are smaller, so that the rest of the page stays in view. */
const LARGEST_CELL = { few: 54, many: 36 };
const FEW = 16;
const SMALLEST_CELL = 2;
/** With more nodes than this, names are shown on hover only. */
const MOST_LINES = 12;
/** Of a name above a block. */
const [HEAD, NARROWEST_HEAD] = [28, 96];

/** The layout with the largest cells that fits; if none does, the smallest cells and as much height as they need. */
export function layout(groups: readonly NodeGroup[], worldSize: number, box: Box): Layout {
  const largest = Math.max(1, ...groups.map((group) => group.ranks.length));
  const named = groups.every((group) => group.host !== "");
  if (named && groups.length <= MOST_LINES && largest <= 16) {
    const inLines = attempt(groups, worldSize, box, largest, true, 12);
    if (inLines) return inLines;
  }
  return (
    attempt(groups, worldSize, box, blockColumns(largest), false, SMALLEST_CELL) ??
    place(groups, worldSize, box, blockColumns(largest), false, Math.max(1, Math.round(SMALLEST_CELL * box.scale)))
  );
}

/** A block a little wider than high, with a power of two of columns: 8 ranks are 4 x 2, 72 are 16 x 5. */
function blockColumns(ranks: number): number {
  return 2 ** Math.ceil(Math.log2(ranks) / 2);
}

function attempt(groups: readonly NodeGroup[], worldSize: number, box: Box, columns: number, lines: boolean, smallest: number): Layout | null {
  const largest = worldSize <= FEW ? LARGEST_CELL.few : LARGEST_CELL.many;
  for (let cell = Math.round(largest * box.scale); cell >= smallest * box.scale; cell--) {
    const placed = place(groups, worldSize, box, columns, lines, cell);
    if (placed.height <= box.maxHeight && placed.width <= box.width) return placed;
  }
  return null;
}

function place(
  groups: readonly NodeGroup[], worldSize: number, box: Box, columns: number, lines: boolean, cell: number,
): Layout {
  const apparent = cell / box.scale;
  // Below 4 pixels a gap between ranks would eat a quarter of the picture; the one between nodes must stay.
  const gap = Math.round((apparent >= 16 ? 3 : apparent >= 9 ? 2 : apparent >= 4 ? 1 : 0) * box.scale);
  const nodeGap = Math.round((lines ? 8 : apparent >= 16 ? 12 : apparent >= 9 ? 7 : apparent >= 5 ? 4 : 2) * box.scale);
  const pitch = cell + gap;
  // Nodes not known (yet): one block as wide as there is room.
  if (!lines && groups.length === 1) columns = Math.max(1, Math.floor((box.width + gap) / pitch));
  const label = lines ? Math.round(labelWidth(groups) * box.scale) : 0;
  const corners = new Int32Array(2 * worldSize);
  const nodes: Layout["nodes"] = [];
  const blockWidth = columns * pitch - gap;
  const perLine = lines ? 1 : Math.max(1, Math.floor((box.width + nodeGap) / (blockWidth + nodeGap)));
  const headed = !lines && groups.length > 1 && groups.length <= MOST_LINES && blockWidth >= NARROWEST_HEAD * box.scale;
  const head = headed ? Math.round(HEAD * box.scale) : 0;
  let y = 0;
  let width = 0;
  for (let first = 0; first < groups.length; first += perLine) {
    let rows = 1;
    groups.slice(first, first + perLine).forEach((group, index) => {
      const x = label + index * (blockWidth + nodeGap);
      nodes.push({ host: group.host, x: lines ? 0 : x, y });
      group.ranks.forEach((rank, i) => {
        corners[2 * rank] = x + (i % columns) * pitch;
        corners[2 * rank + 1] = y + head + Math.floor(i / columns) * pitch;
      });
      rows = Math.max(rows, Math.ceil(group.ranks.length / columns));
      width = Math.max(width, x + Math.min(columns, group.ranks.length) * pitch - gap);
    });
    y += head + rows * pitch - gap + nodeGap;
  }
  return { width, height: Math.max(cell, y - nodeGap), cell, corners, lines, nodes, head: { width: blockWidth, height: head } };
}

/** CSS pixels for the longest node name at the label's size; names beyond 18 letters are cut there. */
function labelWidth(groups: readonly NodeGroup[]): number {
  return 16 + 7 * Math.min(18, Math.max(0, ...groups.map((group) => group.host.length)));
}

/** The rank whose cell is under a point or within a gap of it, or null. */
export function rankAt(grid: Layout, x: number, y: number): number | null {
  const near = Math.max(1, Math.min(3, grid.cell / 4));
  for (let rank = 0; 2 * rank < grid.corners.length; rank++) {
    const dx = x - grid.corners[2 * rank]!;
    const dy = y - grid.corners[2 * rank + 1]!;
    if (dx >= -near && dy >= -near && dx < grid.cell + near && dy < grid.cell + near) return rank;
  }
  return null;
}

export type Direction = "left" | "right" | "up" | "down";

/** The nearest cell in a direction, as arrow keys expect; the same rank when there is none. */
export function neighbour(grid: Layout, rank: number, direction: Direction): number {
  const [x, y] = [grid.corners[2 * rank]!, grid.corners[2 * rank + 1]!];
  const sideways = direction === "left" || direction === "right";
  const sign = direction === "left" || direction === "up" ? -1 : 1;
  let best = rank;
  let least = Number.POSITIVE_INFINITY;
  for (let other = 0; 2 * other < grid.corners.length; other++) {
    const dx = grid.corners[2 * other]! - x;
    const dy = grid.corners[2 * other + 1]! - y;
    const ahead = sign * (sideways ? dx : dy);
    if (ahead <= 0) continue;
    // Cells straight ahead are preferred over nearer ones to the side.
    const cost = ahead + 8 * Math.abs(sideways ? dy : dx);
    if (cost < least) [best, least] = [other, cost];
  }
  return best;
}

export interface Rectangle {
  x: number;
  y: number;
  width: number;
  height: number;
}

/** The rectangle of one rank's cell. */
export function cell(grid: Layout, rank: number): Rectangle {
  return { x: grid.corners[2 * rank]!, y: grid.corners[2 * rank + 1]!, width: grid.cell, height: grid.cell };
}

/** Limit on rings: more would not guide the eye. */
const MOST_RINGS = 24;

/** Rings to draw around ranks: one for a node all of whose ranks are included, else one per rank. */
export function rings(grid: Layout, groups: readonly NodeGroup[], ranks: readonly number[]): (Rectangle & { label: string })[] {
  const meant = new Set(ranks);
  const found: (Rectangle & { label: string })[] = [];
  for (const group of groups) {
    const inside = group.ranks.filter((rank) => meant.has(rank));
    if (inside.length === group.ranks.length && inside.length > 1 && group.host !== "") {
      found.push({ ...around(inside.map((rank) => cell(grid, rank))), label: group.host });
    } else {
      for (const rank of inside) found.push({ ...cell(grid, rank), label: `rank ${rank}` });
    }
    if (found.length >= MOST_RINGS) break;
  }
  return found.slice(0, MOST_RINGS);
}

function around(cells: readonly Rectangle[]): Rectangle {
  const x = Math.min(...cells.map((c) => c.x));
  const y = Math.min(...cells.map((c) => c.y));
  const right = Math.max(...cells.map((c) => c.x + c.width));
  const bottom = Math.max(...cells.map((c) => c.y + c.height));
  return { x, y, width: right - x, height: bottom - y };
}

/** CSS pixels: the height of a label, and about the width of one letter and of its margins. */
const [LABEL, LETTER, MARGIN] = [20, 7.4, 20];

/** The texts of the labels that can be read: one that would cover another before it is left out. In CSS pixels. */
export function readable(labels: readonly { x: number; y: number; text: string; before: boolean }[]): ReadonlySet<string> {
  const boxes: { left: number; right: number; y: number }[] = [];
  const kept = new Set<string>();
  for (const { x, y, text, before } of labels) {
    const width = LETTER * text.length + MARGIN;
    const [left, right] = before ? [x - width, x] : [x, x + width];
    if (boxes.some((box) => left < box.right && right > box.left && Math.abs(y - box.y) < LABEL)) continue;
    boxes.push({ left, right, y });
    kept.add(text);
  }
  return kept;
}
