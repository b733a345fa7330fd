// A row of small labelled figures.

import type { ComponentChildren } from "preact";

export interface Fact {
  label: string;
  value: ComponentChildren;
  /** What the figure is measured against or in: shown quieter. */
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
