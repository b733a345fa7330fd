// Tables that scroll sideways if they have to, and the first rows of long lists.

import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";

/** A heading: its text, or with a class and a title. */
export type Head = string | readonly [text: ComponentChildren, kind: string, title?: string] | false;

export function Table({ name, heads, children }: { name: string; heads: readonly Head[]; children: ComponentChildren }) {
  const shown = heads.filter((head) => head !== false).map((head) => (typeof head === "string" ? [head] as const : head));
  return (
    <div class="scroll" role="region" aria-label={name} tabIndex={0}>
      <table>
        <thead>
          <tr>{shown.map(([text, kind, title], i) => <th key={i} scope="col" class={kind} title={title}>{text}</th>)}</tr>
        </thead>
        <tbody>{children}</tbody>
      </table>
    </div>
  );
}

/** The first rows, and a button for all that there are here. */
export function useFew<T>(rows: readonly T[], few: number, which = "all"): [readonly T[], ComponentChildren] {
  const [all, showAll] = useState(false);
  if (all || rows.length <= few) return [rows, null];
  return [rows.slice(0, few), <button type="button" class="quiet" onClick={() => showAll(true)}>Show {which} {rows.length}</button>];
}
