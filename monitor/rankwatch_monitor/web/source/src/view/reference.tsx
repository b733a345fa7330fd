// What the scores in the charts compare the ranks with.

import { SCORES } from "../logic/stragglers";
import { reference } from "./selection";

/** Chooses one of the scores that are known, by what they compare with. */
export function Reference({ known, name }: { known: Readonly<Record<string, unknown>>; name: string }) {
  return (
    <select aria-label="Reference of the score" value={name} onChange={(event) => (reference.value = event.currentTarget.value)}>
      {SCORES.filter(([each]) => known[each] !== undefined).map(([each, , against]) => <option key={each} value={each}>{against}</option>)}
    </select>
  );
}
