// A part that opens on demand. What was opened stays open, also on the next page and after a reload.

import { signal } from "@preact/signals";
import type { ComponentChildren } from "preact";

const KEY = "rankwatch.open";
const opened = signal<readonly string[]>((globalThis.localStorage?.getItem(KEY) ?? "").split(" "));

interface Props {
  /** Its CSS class, and under which name it is remembered. */
  name: string;
  title: ComponentChildren;
  /** It is what was asked for: open at first. */
  open?: boolean | undefined;
  children: ComponentChildren;
}

export function Folded({ name, title, open = false, children }: Props) {
  const shown = open || opened.value.includes(name);
  const toggle = (now: boolean) => {
    if (now === shown) return;
    opened.value = now ? [...opened.value, name] : opened.value.filter((each) => each !== name);
    globalThis.localStorage?.setItem(KEY, opened.value.join(" "));
  };
  return (
    <details class={`folded ${name}`} open={shown} onToggle={(event) => toggle(event.currentTarget.open)}>
      <summary>{title}</summary>
      {shown && children}
    </details>
  );
}
