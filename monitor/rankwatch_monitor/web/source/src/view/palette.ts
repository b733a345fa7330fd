// The colours of rank states, from CSS to canvas words.

import type { RankState } from "../api/shapes";
import { WORST_FIRST } from "../logic/severity";
import { type Palette, word } from "../logic/stamps";
import { colour } from "./theme";

/** Faint enough to step back, strong enough to keep the shape of the whole. */
const DIMMED = 0.22;

export function palette(): Palette {
  const each = (opacity: number) =>
    Object.fromEntries(WORST_FIRST.map((state) => [state, word(colour(`rank-${state}`), opacity)])) as Record<RankState, number>;
  return { fill: each(1), dimmed: each(DIMMED), mark: word(colour("rank-mark")) };
}
