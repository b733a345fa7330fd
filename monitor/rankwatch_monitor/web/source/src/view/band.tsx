// What is wrong with a job, on a coloured band across the page, above its tabs.

import type { ComponentChildren } from "preact";

interface Props {
  /** Classes of its colour. */
  kind: string;
  label: string;
  /** In one line; empty: it stands above. */
  title: string;
  /** What stands above the title. */
  kicker?: ComponentChildren;
  /** The title alone, which opens to the rest: what is looked at is below. */
  brief: boolean;
  children: ComponentChildren;
}

export function Band({ kind, label, title, kicker, brief, children }: Props) {
  const name = `verdict ${kind}`;
  if (brief) return <details class={`${name} brief`} aria-label={label}><summary><h2>{title || label}</h2></summary>{kicker}{children}</details>;
  return <section class={name} aria-label={label}>{kicker}{title !== "" && <h2>{title}</h2>}{children}</section>;
}
