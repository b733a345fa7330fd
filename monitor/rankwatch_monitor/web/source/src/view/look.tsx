// What the grid is coloured by: the states, or how slow each rank is.

import type { Grid } from "../live/job";
import { type Cell, type Level, LEVELS, levels, type Look } from "../logic/levels";
import { WORST_FIRST } from "../logic/severity";
import { look, only } from "./selection";

/** What the grid draws: a code for each rank, what the codes mean, and in which order the legend tells them. */
export interface Shown {
  look: Look;
  codes: Uint8Array;
  legend: readonly Cell[];
  order: readonly Cell[];
}

const SLOWEST_FIRST: readonly Level[] = ["level-4", "level-3", "level-2", "level-1", "level-0", "level-unknown"];

/** States, unless another look was chosen and there is something to draw it from. */
export function shownBy(grid: Grid | null, chosen: Look, looks: Readonly<Record<string, Uint8Array>>): Shown | null {
  if (grid === null) return null;
  const bytes = looks[chosen];
  if (chosen === "state" || bytes === undefined) return { look: "state", codes: grid.states, legend: grid.legend, order: WORST_FIRST };
  return { look: chosen, codes: levels(chosen, bytes, grid.states.length), legend: LEVELS, order: SLOWEST_FIRST };
}

const CHOICES: readonly (readonly [Look, string])[] = [
  ["state", "State"],
  ["lateness", "Others wait"],
  ["robust", "GPU score"],
];

/** Nothing to choose from while there are no scores. */
export function LookChoice({ looks }: { looks: Readonly<Record<string, Uint8Array>> }) {
  const there = CHOICES.filter(([name]) => name === "state" || looks[name] !== undefined);
  if (there.length < 2) return null;
  const choose = (name: Look) => {
    look.value = name;
    only.value = null;
  };
  return (
    <fieldset class="looks">
      <legend>Coloured by</legend>
      {there.map(([name, words]) => (
        <label key={name}>
          <input type="radio" name="look" checked={look.value === name} onChange={() => choose(name)} />
          {words}
        </label>
      ))}
    </fieldset>
  );
}
