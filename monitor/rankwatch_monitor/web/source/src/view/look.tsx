// What the grid is coloured and grouped by, and the choice of it.

import { useMemo } from "preact/hooks";
import type { Grid, JobWatch } from "../live/job";
import { type Cell, type Level, LEVELS, levels, type Look, withSlow } from "../logic/levels";
import { isShared } from "../logic/nodes";
import { CELLS_WORST_FIRST } from "../logic/severity";
import { groupName, type Grouping } from "../logic/route";
import { capital } from "../logic/text";
import { grouping, look, only } from "./selection";

/** What the grid draws: a code per rank, the meaning of the codes, and the order of the legend. */
export interface Shown {
  look: Look;
  codes: Uint8Array;
  legend: readonly Cell[];
  order: readonly Cell[];
}

const SLOWEST_FIRST: readonly Level[] = ["level-4", "level-3", "level-2", "level-1", "level-0", "level-unknown"];

/** Bytes of each look by name; null: available, not read. */
export type Looks = Readonly<Record<string, Uint8Array | null>>;

/** The looks to choose from: ranks that have ended send no heartbeats. */
export function useLooks({ job, looks }: JobWatch): Looks {
  const [all, over] = [looks.value, job.value?.ended_at != null];
  return useMemo(() => {
    const { heartbeat_age, ...others } = all;
    return over ? others : all;
  }, [all, over]);
}

/** The chosen look if its bytes are there, else the states, in which slow ranks that run have a cell of their own. */
export function shownBy(grid: Grid | null, chosen: Look, looks: Looks, slow: Iterable<number>): Shown | null {
  if (grid === null) return null;
  const bytes = looks[chosen];
  if (chosen === "state" || !bytes) return { look: "state", ...withSlow(grid.states, grid.legend, slow), order: CELLS_WORST_FIRST };
  return { look: chosen, codes: levels(chosen, bytes, grid.states.length), legend: LEVELS, order: SLOWEST_FIRST };
}

const CHOICES: readonly (readonly [Look, string])[] = [
  ["state", "State"],
  ["lateness", "Others wait"],
  ["robust", "GPU score"],
  ["heartbeat_age", "Heartbeat age"],
  ["temperature", "Temperature"],
];
const GROUPINGS: readonly Grouping[] = ["node", "pipeline", "tensor", "data", "expert"];

/** Empty while only the states are available. */
export function LookChoice({ looks }: { looks: Looks }) {
  const there = CHOICES.filter(([name]) => name === "state" || looks[name] !== undefined);
  const choose = (name: Look) => {
    look.value = name;
    only.value = null;
  };
  return <Choice label="Coloured by" choices={there} chosen={look.value} choose={choose} />;
}

/** Empty while no rank reports a parallel layout in which ranks share a coordinate. */
export function GroupChoice({ dimensions }: { dimensions: Readonly<Record<string, Uint16Array>> }) {
  const shared = (name: string) => dimensions[name] !== undefined && isShared(dimensions[name]);
  const there = GROUPINGS.filter((name) => name === "node" || name === grouping.value || shared(name));
  const choices = there.map((name) => [name, capital(name === "node" ? name : groupName(name))] as const);
  return <Choice label="Grouped by" choices={choices} chosen={grouping.value} choose={(name) => (grouping.value = name)} />;
}

interface Choosing<T extends string> {
  label: string;
  choices: readonly (readonly [T, string])[];
  chosen: T;
  choose: (name: T) => void;
}

function Choice<T extends string>({ label, choices, chosen, choose }: Choosing<T>) {
  if (choices.length < 2) return null;
  return (
    <label class="looks">
      {label}{" "}
      <select value={chosen} onChange={(event) => choose(event.currentTarget.value as T)}>
        {choices.map(([value, words]) => <option key={value} value={value}>{words}</option>)}
      </select>
    </label>
  );
}
