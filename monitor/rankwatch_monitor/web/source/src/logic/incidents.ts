// Which incident the page shows first, and its texts.

import type { Culprit, Incident, JobSummary } from "../api/types";
import { count, runs, words } from "./text";

/** Seconds after which the last incident of a healthy job is shown in the list only. */
const RECENT = 3600;

/**
 * The requested incident, else the open one, else the last confirmed one if it is recent or the job failed. Suspicions
 * that were never confirmed stay in the list only.
 */
export function focus(
  incidents: readonly Incident[], requested: string | null, job: JobSummary | null, now: number,
): Incident | null {
  if (requested !== null) return incidents.find((incident) => incident.id === requested) ?? null;
  const open = incidents.find((incident) => incident.closed_at === null);
  if (open) return open;
  const last = incidents.find((incident) => incident.confirmed);
  if (!last) return null;
  const ended = job !== null && ["failed", "lost"].includes(job.state);
  return ended || now - (last.closed_at ?? now) < RECENT ? last : null;
}

/** Insert or replace an incident; newest first. */
export function merged(incidents: readonly Incident[], changed: Incident): Incident[] {
  return [changed, ...incidents.filter((incident) => incident.id !== changed.id)].sort(
    (a, b) => b.opened_at - a.opened_at,
  );
}

/** "rank 2", "ranks 9208–9215", or "none identified". */
export function culpritRanks(culprits: readonly Culprit[]): string {
  if (culprits.length === 0) return "none identified";
  if (culprits.length === 1) return `rank ${count(culprits[0]!.rank)}`;
  return `ranks ${runs(culprits.map((culprit) => culprit.rank), 4)}`;
}

/** How many ranks besides the culprits are affected. */
export function otherRanks({ affected, culprits }: Incident, worldSize: number): number {
  const named = new Set(culprits.map((culprit) => culprit.rank));
  return Math.min(new Set(affected.filter((rank) => !named.has(rank))).size, Math.max(0, worldSize - named.size));
}

/** The hosts of the culprits, each once. */
export function hosts(culprits: readonly Culprit[]): string[] {
  return [...new Set(culprits.map((culprit) => culprit.host).filter((host) => host !== ""))];
}

export function classes(culprits: readonly Culprit[]): string {
  return [...new Set(culprits.map((culprit) => words(culprit.class)))].join(", ");
}

const DOING: Record<string, string> = {
  detected: "deciding what to do",
  capturing: "capturing stacks",
  confirming: "confirming that no rank makes progress",
  acting: "restarting",
  recovering: "waiting for the first new step",
};

/** Whether its action restarts the ranks. */
export const restartsRanks = ({ action }: Incident): boolean => action === "restart" || action === "restart_excluding_node";

/** What is being done now; empty once it is closed. */
export function doing(incident: Incident): string {
  if (incident.closed_at !== null) return "";
  if (incident.phase === "acting" && !restartsRanks(incident)) return words(incident.action);
  return DOING[incident.phase] ?? words(incident.phase);
}

/** Downtime multiplied by the number of ranks. */
export function rankTime(seconds: number, worldSize: number): string {
  const total = seconds * worldSize;
  if (total < 60) return `${total.toFixed(0)} rank-seconds`;
  if (total < 3600) return `${(total / 60).toFixed(1)} rank-minutes`;
  const hours = total / 3600;
  return `${hours < 100 ? hours.toFixed(1) : count(Math.round(hours))} rank-hours`;
}
