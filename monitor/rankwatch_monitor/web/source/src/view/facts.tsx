// A row of small labelled figures.

import type { ComponentChildren } from "preact";

export interface Fact {
  label: string;
  value: ComponentChildren;
  /** Unit or reference of the figure. */
  note?: ComponentChildren;
}

export function Facts({ facts, kind }: { facts: Fact[]; kind: string }) {
  return (
    <dl class={kind}>
      {facts.map(({ label, value, note }) => (
        <div key={label}>
          <dt>{label}</dt>
          <dd>
            {value}
            {note !== undefined && <small>{note}</small>}
          </dd>
        </div>
      ))}
    </dl>
  );
}
