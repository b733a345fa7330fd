// Incidents that are not sure yet: a limit that nobody configured was passed, and the ranks may still go on.

import type { Incident } from "../api/types";
import { clock, words } from "./text";

/** Open, and nothing is done about it before it is confirmed. */
export function isSuspected(incident: Incident): boolean {
  return !incident.confirmed && incident.closed_at === null;
}

/** What the list says of an incident that ended before it was confirmed; null if it was. */
export function unconfirmedEnd(incident: Incident): string | null {
  if (incident.confirmed || incident.closed_at === null) return null;
  return incident.outcome.includes("went on") || incident.outcome === "" ? "went on by itself" : "never confirmed";
}

/** What a named rank is called: nobody is a culprit on suspicion. */
export function blame(incident: Incident): string {
  return incident.confirmed ? "culprit" : "suspect";
}

/** What follows from a suspicion, and when; `window`: the policy's confirmation window in seconds, null: not known yet. */
export function whatFollows(incident: Incident, window: number | null, now: number): string {
  const then = incident.action === "log" ? "Counts as a hang" : "Acts";
  if (window === null) return `${then} if nothing moves for long enough.`;
  const at = incident.opened_at + window;
  // The monitor looks about once a second, and it may have been away for a part of the window.
  if (now > at + LATE_S) return `${then} as soon as a rank has stood still for ${window} s on end; none has yet.`;
  const what = incident.action === "log" ? "it is written down, nothing else is done" : words(incident.action);
  return `${then} at ${clock(at, now)} if nothing moves: ${what}.`;
}

const LATE_S = 3;
