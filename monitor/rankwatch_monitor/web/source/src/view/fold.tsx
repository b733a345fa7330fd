// A section that can be folded on a phone, where its heading stays.

import type { ComponentChildren } from "preact";
import { narrow } from "./preferences";

interface Props {
  /** Its CSS class. */
  name: string;
  label?: string;
  heading: ComponentChildren;
  /** Whether a phone shows it open at first. */
  open?: boolean;
  children: ComponentChildren;
}

export function Fold({ name, label, heading, open = false, children }: Props) {
  if (!narrow.value) return <section class={name} aria-label={label}><h2>{heading}</h2>{children}</section>;
  return <details class={`${name} section`} aria-label={label} open={open}><summary><h2>{heading}</h2></summary>{children}</details>;
}
