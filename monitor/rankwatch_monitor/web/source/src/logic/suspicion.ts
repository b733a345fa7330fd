// Suspicions: incidents raised by a learned limit, which await confirmation.

import type { Incident } from "../api/types";
import { clock, wholeDuration, words } from "./text";

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

/** What a suspicion leads to, and when. */
export function whatFollows(incident: Incident, now: number, lead = (at: string) => `At ${at} `): string {
  const held = HELD[incident.proof ?? ""];
  if (held !== undefined) return `No action follows while ${held}.`;
  if (incident.proof === "uninterruptible" || incident.proof === "stalled")
    return "No action follows by itself: a restart may not help. Order one if it would.";
  if (incident.kind === "stalled") return "Rankwatch acts only if looks at the ranks prove that they hang.";
  const at = incident.acts_at ?? null;
  // Evaluation takes place about once a second, and a rank that makes progress meanwhile puts it off.
  if (at === null || now > at + LATE_S) return `${incident.action === "log" ? "Counts as a hang" : "Rankwatch acts"} unless the ranks make progress.`;
  const acts = ACTS[incident.action] ?? `Rankwatch acts (${words(incident.action)})`;
  const left = at - now >= 1 ? ` (in ${wholeDuration(at - now)})` : "";
  return `${lead(clock(at, now) + left)}${acts} unless ${incident.action === "restart" ? "they" : "the ranks"} make progress; sooner if samples prove the hang.`;
}

/** The same as what is waited for. */
export function waited(incident: Incident, now: number): string {
  const then = whatFollows(incident, now, (at) => `Wait until ${at}: `);
  return /^Wait/.test(then) ? then : `Wait: ${/^Rankwatch/.test(then) ? then : then.charAt(0).toLowerCase() + then.slice(1)}`;
}

const LATE_S = 3;

/** By what the looks show. */
const HELD: Record<string, string> = {
  busy: "a rank is busy",
  debugged: "a rank is in a debugger",
  suspended: "the ranks are stopped",
};

const ACTS: Record<string, string> = {
  log: "it counts as a hang, without an action,",
  capture: "Rankwatch captures stacks",
  restart: "Rankwatch restarts the ranks",
  restart_excluding_node: "Rankwatch restarts without the suspect's node",
  save_and_stop: "Rankwatch saves and stops the job",
  stop: "Rankwatch stops the job",
};
