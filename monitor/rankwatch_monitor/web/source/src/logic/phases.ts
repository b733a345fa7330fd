// An incident as consecutive phases, each named for what happens until its end mark.

import type { Incident, JobSummary, Timeline } from "../api/types";
import { restartsRanks } from "./incidents";
import { clock, duration, plural, wholeDuration } from "./text";

export interface Phase {
  name: string;
  /** Label of its end mark: "detected", "first new step". */
  ends: string;
  from: number;
  /** Null while this phase is still going on. */
  to: number | null;
  seconds: number;
  /** Seconds of the detection in which the configured or learned limit was waited for. */
  limit?: number;
  /** What it is, where it has no end mark. */
  note?: string;
}

/** The mark that ends the current phase, by the phase of the incident. */
const ENDED_BY: Record<string, keyof Timeline> = { capturing: "captured", acting: "restarted", recovering: "first_step" };

const MARKS: readonly [keyof Timeline, string, string][] = [
  ["detected", "Detect", "detected"],
  ["decided", "Decide", "decided"],
  ["captured", "Capture", "captured"],
  ["restarted", "Restart", "restarted"],
  ["first_step", "Recover", "first new step"],
];

/** The stages of an incident, in the words of the stage bar, the goodput bar and the table. */
export const STAGES: readonly string[] = MARKS.map(([, name]) => name);
/** The time of the steps that a restart threw away: the first of them is done again before the incident is over. */
export const LOST = "Lost steps";
/** The same with those that few incidents have, in the order of the table. */
export const ALL_STAGES: readonly string[] = ["Detect", "Confirm", "Decide", "Capture", "Restart", "Stop", "Recover", "Unresolved", LOST];

/**
 * The phases that were reached, and the current one, or of an incident without a first new step that in which it was closed. Unreached
 * marks are left out. A suspicion is being confirmed once its stacks are captured. The lost steps come last: together they are the cost.
 * What has become of a lost job is not known: its phases end when it was last heard. `job`: its state and end; none: it runs.
 */
export function phases(incident: Incident, now: number, job: Pick<JobSummary, "state" | "ended_at" | "last_heard"> | null = null): Phase[] {
  const { closed_at: closedAt } = incident;
  const timeline = incident.confirmed ? withoutStaleCapture(incident) : { ...incident.timeline, decided: null, restarted: null, first_step: null };
  let from = timeline.since ?? timeline.detected;
  if (from === null) return [];
  const found: Phase[] = [];
  const heard = job?.state === "lost" && closedAt === null ? job.last_heard ?? now : null;
  MARKS.forEach(([key, name, ends]) => {
    const at = timeline[key];
    if (at === null) return;
    // Marks come from the clocks of several machines: one before its predecessor counts as simultaneous.
    const to = Math.max(Math.min(at, heard ?? at), from!);
    const limit = incident.elapsed === null ? null : incident.limit;
    // Detected before its limit: the record states another cause by now, which was found later.
    const waited = key === "detected" && timeline.since !== null && limit !== null && to - from! >= limit;
    found.push({ name, ends, from: from!, to, seconds: to - from!, ...(waited ? { limit } : {}) });
    from = to;
  });
  const last = heard === null ? null : Math.max(from, heard);
  if (!incident.confirmed) {
    const to = closedAt === null ? last : Math.max(closedAt, from);
    return [...found, { name: "Confirm", ends: "closed", from, to, seconds: Math.max(0, (to ?? now) - from) }];
  }
  if (closedAt === null) {
    const [name, ends] = current(incident);
    found.push({ name, ends: last === null ? ends : "last heard", from, to: last, seconds: Math.max(0, (last ?? now) - from) });
  } else if (timeline.first_step === null && closedAt > from) {
    const [name, ends] = lastly(incident, job);
    found.push({ name, ends, from, to: closedAt, seconds: closedAt - from });
  }
  const { lost_steps_s: lost, steps_lost: steps } = incident;
  if (lost) found.push({ name: LOST, ends: "", from, to: from, seconds: lost, note: steps ? `${plural(steps, "step")}, the first counts as Recover` : "" });
  return found;
}

/** Durations for display, which add up to their sum as it is displayed: what one is rounded by, the next makes up for. */
export function addingUp(seconds: readonly number[]): number[] {
  let behind = 0;
  return seconds.map((each) => {
    if (each < 0.9995) return each;
    const perSecond = each < 59.95 ? 10 : 1;
    const shown = Math.round((each + behind) * perSecond) / perSecond;
    behind += each - shown;
    return shown;
  });
}

/** Name and end mark of the phase in which an incident was closed without a first new step. */
function lastly(incident: Incident, job: Pick<JobSummary, "state" | "ended_at"> | null): readonly [string, string] {
  if (job?.ended_at === incident.closed_at) return ["Stop", `job ${job!.state}`];
  if (!restartsRanks(incident)) return ["Unresolved", "closed"];
  return incident.timeline.restarted === null ? ["Restart", "given up"] : ["Recover", "closed"];
}

/** Name and end mark of what is going on: only what was ordered. */
function current(incident: Incident): readonly [string, string] {
  if (incident.phase === "detected") return incident.timeline.decided === null ? ["Decide", "decided"] : ["Unresolved", "closed"];
  if (incident.phase === "acting" && !restartsRanks(incident)) return ["Stop", "stopped"];
  const mark = MARKS.find(([key]) => key === ENDED_BY[incident.phase]);
  return mark ? [mark[1], mark[2]] : ["Unresolved", "closed"];
}

/** Stacks are captured again once a suspicion is confirmed; until then the earlier capture does not count. */
function withoutStaleCapture({ timeline, phase }: Incident): Timeline {
  const stale = phase === "capturing" && timeline.captured !== null && timeline.captured < (timeline.decided ?? 0);
  return stale ? { ...timeline, captured: null } : timeline;
}

/** When an incident ceased to cost time: its first new step, else its closing; null: not yet. */
export function over({ timeline, closed_at: closedAt }: Pick<Incident, "timeline" | "closed_at">): number | null {
  return closedAt === null ? null : timeline.first_step ?? closedAt;
}

/**
 * What an incident has cost the job in time: from the beginning of its trouble to the first new step, else to its closing, else
 * to the end of the job or the last that was heard of it, else to now; and the lost steps. The monitor counts the same
 * (core/views/downtime.py).
 */
export function costOf(incident: Incident, job: Pick<JobSummary, "ended_at" | "last_heard">, now: number): number {
  const { closed_at: closedAt, opened_at: openedAt, timeline } = incident;
  const until = timeline.first_step ?? closedAt ?? job.ended_at ?? job.last_heard ?? now;
  return Math.max(0, until - (timeline.since ?? openedAt)) + (incident.lost_steps_s ?? 0);
}

/** "detected 14:01:38", of trouble that began before; empty: it was detected at once. */
export function detectedWords(since: number, openedAt: number, now: number): string {
  const at = clock(openedAt, now);
  return at === clock(since, now) ? "" : `detected ${at}`;
}

/** How long something took, or has taken so far. */
export const took = (seconds: number, goesOn: boolean): string => (goesOn ? wholeDuration(seconds) : duration(seconds));

/** What an incident has cost in time: "13.5 s", "13 s so far". */
export function costText(incident: Incident, job: Pick<JobSummary, "ended_at" | "last_heard">, now: number): string {
  const open = over(incident) === null;
  return `${took(costOf(incident, job, now), open)}${open ? " so far" : ""}`;
}

/** Changes when an incident begins, when its first new step completes, and when it is closed. */
export const eventsOf = (incidents: readonly Incident[]): string => incidents.map(({ id, timeline, closed_at }) => `${id} ${timeline.first_step !== null} ${closed_at !== null}`).join();
