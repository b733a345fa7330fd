// What the reader points at: shared by the grid and the table.

import { signal } from "@preact/signals";
import type { Cell, Look } from "../logic/levels";
import type { Grouping, Sight } from "../logic/route";

/** The rank told about below the grid. */
export const selected = signal<number | null>(null);
/** Only ranks in this state, or on this level, matter now; the others step back. */
export const only = signal<Cell | null>(null);
/** What the grid shows. */
export const look = signal<Look>("state");

/** What the grid is grouped by. */
export const grouping = signal<Grouping>("node");

export function forgetSelection(): void {
  selected.value = null;
  only.value = null;
  look.value = "state";
  grouping.value = "node";
}

/** Look at what an address asks for; what it does not name stays. */
export function takeSight(sight: Sight): void {
  if (sight.rank !== undefined) selected.value = sight.rank;
  if (sight.look !== undefined) look.value = sight.look;
  if (sight.group !== undefined) grouping.value = sight.group;
}
