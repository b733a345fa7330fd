// An incident as consecutive phases, each named for what happened until its end mark.

import type { Incident, Timeline } from "../api/types";
import { restartsRanks } from "./incidents";

export interface Phase {
  name: string;
  /** Label of its end mark: "detected", "first new step". */
  ends: string;
  from: number;
  /** Null while this phase is still going on. */
  to: number | null;
  seconds: number;
}

const MARKS: readonly [keyof Timeline, string, string][] = [
  ["detected", "Detecting", "detected"],
  ["decided", "Deciding", "decided"],
  ["captured", "Capturing stacks", "captured"],
  ["restarted", "Restarting", "restarted"],
  ["first_step", "Recovering", "first new step"],
];

/**
 * The phases that were reached, and while the incident is open the current one. Unreached marks are left out. A suspicion
 * has one phase after its detection: confirming.
 */
export function phases(incident: Incident, now: number): Phase[] {
  const { closed_at: closedAt } = incident;
  const timeline = incident.confirmed ? withoutStaleCapture(incident) : { ...NOTHING, since: incident.timeline.since, detected: incident.timeline.detected };
  const restarts = restartsRanks(incident);
  let from = timeline.since ?? timeline.detected;
  if (from === null) return [];
  const found: Phase[] = [];
  let last = -1;
  MARKS.forEach(([key, name, ends], index) => {
    const at = timeline[key];
    if (at === null) return;
    // Marks come from the clocks of several machines: one before its predecessor counts as simultaneous.
    const to = Math.max(at, from!);
    if (key === "detected" && timeline.since !== null && incident.limit !== null && incident.elapsed !== null) {
      // Waiting for the limit is as configured or learned: only what comes on top of it is detection.
      const passed = Math.min(to, from! + incident.limit);
      found.push({ name: "Limit", ends: "passed", from: from!, to: passed, seconds: passed - from! });
      from = passed;
    }
    found.push({ name, ends, from: from!, to, seconds: to - from! });
    from = to;
    last = index;
  });
  if (!incident.confirmed) {
    const to = closedAt === null ? null : Math.max(closedAt, from);
    return [...found, { name: "Confirming", ends: "closed", from, to, seconds: Math.max(0, (to ?? now) - from) }];
  }
  const next = MARKS.slice(last + 1).find(([key]) => restarts || (key !== "restarted" && key !== "first_step"));
  if (closedAt === null && next) {
    found.push({ name: next[1], ends: next[2], from, to: null, seconds: Math.max(0, now - from) });
  }
  return found;
}

const NOTHING: Timeline = { since: null, detected: null, decided: null, captured: null, restarted: null, first_step: null };

/** Stacks are captured again once a suspicion is confirmed; until then the earlier capture does not count. */
function withoutStaleCapture({ timeline, phase }: Incident): Timeline {
  const stale = phase === "capturing" && timeline.captured !== null && timeline.captured < (timeline.decided ?? 0);
  return stale ? { ...timeline, captured: null } : timeline;
}

/** Downtime of the job: from the last progress to the first new step, else to its closing, else to now. */
export function downtime(timeline: Timeline, closedAt: number | null, now: number): number | null {
  const start = timeline.since ?? timeline.detected;
  if (start === null) return null;
  return Math.max(0, (timeline.first_step ?? closedAt ?? now) - start);
}
