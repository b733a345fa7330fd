// What the reader points at: shared by the grid and the table.

import { signal } from "@preact/signals";
import type { RankState } from "../api/shapes";

/** The rank told about below the grid. */
export const selected = signal<number | null>(null);
/** Only ranks in this state matter now; the others step back. */
export const only = signal<RankState | null>(null);

export function forgetSelection(): void {
  selected.value = null;
  only.value = null;
}
