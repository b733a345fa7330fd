// Suspicions: incidents raised by a learned limit, which await confirmation.

import type { Incident } from "../api/types";

/** Open and not confirmed: no action is taken yet. */
export function isSuspected(incident: Incident): boolean {
  return !incident.confirmed && incident.closed_at === null;
}

/** How an incident ended without confirmation; null if it was confirmed or is open. */
export function unconfirmedEnd(incident: Incident): string | null {
  if (incident.confirmed || incident.closed_at === null) return null;
  return incident.ended === "went_on" ? "resumed by itself" : "never confirmed";
}

/** Label of the named ranks: "culprit" only once the incident is confirmed. */
export function blame(incident: Incident): string {
  return incident.confirmed ? "culprit" : "suspect";
}
