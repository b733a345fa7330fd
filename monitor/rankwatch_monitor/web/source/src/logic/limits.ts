// Limits as rows of a table: what is limited, by how much, and the source.

import type { Timeout } from "../api/types";
import { words } from "./text";

const NAMES: Record<string, string> = {
  out_of_section: "outside sections",
  heartbeat: "between heartbeats",
  initial_heartbeat: "first heartbeat",
  silence: "silence",
  first_time: "first time",
};

const SOURCES: Record<string, string> = {
  configured: "configured",
  learned: "learned",
  loaded: "learned earlier",
  first_time: "first time",
};

/** Label of what is limited: a section by its own name, anything else in words. */
export function limited(timeout: Timeout): string {
  return timeout.section ?? NAMES[timeout.what] ?? words(timeout.what);
}

/** Where the limit in force comes from. */
export function origin(timeout: Timeout): string {
  if (timeout.source === null) return "no limit";
  if (timeout.source === "learned" && timeout.loaded !== null) return "mean of learned and loaded";
  return SOURCES[timeout.source] ?? words(timeout.source);
}

/** Sections first, those with a limit of their own before those that are new; the rest as the monitor lists it. */
export function ordered(timeouts: readonly Timeout[]): Timeout[] {
  const place = (timeout: Timeout) => (timeout.section === null ? 2 : timeout.source === "first_time" || timeout.source === null ? 1 : 0);
  return [...timeouts].sort((a, b) => place(a) - place(b));
}
