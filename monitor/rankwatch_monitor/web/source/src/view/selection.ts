// The selection, shared by grid, table and timeline.

import { signal } from "@preact/signals";
import type { Cell, Look } from "../logic/levels";
import type { Prepared } from "../logic/nextaction";
import type { Overlay } from "../logic/overlay";
import { type Range, USUAL } from "../logic/range";
import type { Grouping, Sight } from "../logic/route";
import { SCORES } from "../logic/stragglers";

/** The rank described below the grid. */
export const selected = signal<number | null>(null);
/** Filter: ranks in this state or on this level; the others are dimmed. */
export const only = signal<Cell | null>(null);
/** An order that an incident calls for, until the form has taken it. */
export const prepared = signal<Prepared | null>(null);
/** What the grid is coloured by. */
export const look = signal<Look>("state");

/** What the grid is grouped by. */
export const grouping = signal<Grouping>("node");

/** The time that the charts show. */
export const range = signal<Range>(USUAL);

/** What the charts compare the job with; null: nothing. */
export const overlay = signal<Overlay | null>(null);

/** What the charts of scores compare the ranks with. */
export const reference = signal<string>(SCORES[0][0]);

export function forgetSelection(): void {
  overlay.value = null;
  range.value = USUAL;
  selected.value = null;
  only.value = null;
  look.value = "state";
  grouping.value = "node";
}

/** Apply the selection of an address; what it does not name stays unchanged. */
export function takeSight(sight: Sight): void {
  if (sight.rank !== undefined) selected.value = sight.rank;
  if (sight.look !== undefined) look.value = sight.look;
  if (sight.group !== undefined) grouping.value = sight.group;
  if (sight.range !== undefined) range.value = sight.range;
  if (sight.overlay !== undefined) overlay.value = sight.overlay;
}
