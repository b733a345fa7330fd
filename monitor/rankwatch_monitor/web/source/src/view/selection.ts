// What the reader points at: shared by the grid and the table.

import { signal } from "@preact/signals";
import type { Cell, Look } from "../logic/levels";

/** The rank told about below the grid. */
export const selected = signal<number | null>(null);
/** Only ranks in this state, or on this level, matter now; the others step back. */
export const only = signal<Cell | null>(null);
/** What the grid shows. */
export const look = signal<Look>("state");

export function forgetSelection(): void {
  selected.value = null;
  only.value = null;
  look.value = "state";
}
