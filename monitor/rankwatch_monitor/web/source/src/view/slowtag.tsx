// The tag of a slow rank, and what its figure is.

import { slowBasis, slowTag } from "../logic/stragglers";
import type { Straggler } from "../api/types";

type Slow = Pick<Straggler, "share" | "score">;

export function SlowTag({ of }: { of: Slow }) {
  return <span class="tag slow" title={slowBasis(of)}>{slowTag(of)}</span>;
}

/** Below a table with tags: what the figure of the first is; a phone shows no titles. */
export function SlowNote({ of }: { of: Slow | null | undefined }) {
  const basis = of ? slowBasis(of) : "";
  return basis === "" ? null : <p class="basis">slow {basis}.</p>;
}
