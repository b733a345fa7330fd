// Limits as rows of a table: what is limited, by how much, and the source.

import type { Timeout } from "../api/types";
import { words } from "./text";

const NAMES: Record<string, string> = {
  out_of_section: "outside sections",
  heartbeat: "between heartbeats",
  initial_heartbeat: "first heartbeat",
  silence: "silence",
  first_time: "first run of a section",
};

const SOURCES: Record<string, string> = {
  configured: "configured",
  learned: "learned",
  loaded: "learned earlier",
  first_time: "until durations are known",
};

/** Label of what is limited: a section by its own name, anything else in words. */
export function limited(timeout: Timeout): string {
  return timeout.section ?? NAMES[timeout.what] ?? words(timeout.what);
}

/** Where the limit in force comes from. */
export function origin(timeout: Timeout): string {
  if (timeout.source === null) return "no limit";
  if (timeout.source === "learned" && timeout.loaded !== null) return "mean of learned now and earlier";
  return SOURCES[timeout.source] ?? words(timeout.source);
}

/** Columns beside the limit in force. */
export const COLUMNS = [["configured", "Configured"], ["learned", "Learned"], ["loaded", "Learned earlier"]] as const;

/** Those of the columns in which a row has a value that is not the one in force: others are empty, or repeat it. */
export function columns(timeouts: readonly Timeout[]): readonly (typeof COLUMNS)[number][] {
  return COLUMNS.filter(([name]) => timeouts.some((timeout) => timeout[name] !== null && timeout[name] !== timeout.in_force));
}

/** Sections first, those with a limit of their own before those that are new; the rest as the monitor lists it. */
export function ordered(timeouts: readonly Timeout[]): Timeout[] {
  const place = (timeout: Timeout) => (timeout.section === null ? 2 : timeout.source === "first_time" || timeout.source === null ? 1 : 0);
  return [...timeouts].sort((a, b) => place(a) - place(b));
}
