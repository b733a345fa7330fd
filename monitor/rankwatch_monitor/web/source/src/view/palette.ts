// Colours of rank states and levels, from CSS to canvas pixels.

import { type Cell, isLevel, LEVELS } from "../logic/levels";
import { CELLS_WORST_FIRST } from "../logic/severity";
import { type Palette, abgr } from "../logic/glyphs";
import { colour } from "./theme";

/** Opacity of cells outside the selected state. */
const DIMMED = 0.22;

/** The name of a cell's colour in CSS, without its dashes. */
export function tone(cell: Cell): string {
  return isLevel(cell) ? cell : `rank-${cell}`;
}

export function palette(): Palette {
  const cells: readonly Cell[] = [...CELLS_WORST_FIRST, ...LEVELS];
  const each = (opacity: number) => Object.fromEntries(cells.map((cell) => [cell, abgr(colour(tone(cell)), opacity)])) as Record<Cell, number>;
  return { fill: each(1), dimmed: each(DIMMED), mark: abgr(colour("rank-mark")) };
}
