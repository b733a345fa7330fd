// An incident as consecutive phases, each named for what happens until its end mark.

import type { Incident } from "../api/types";
import { capital, duration, plural, wholeDuration } from "./text";

export interface Phase {
  name: string;
  /** Label of its end mark: "detected", "first new step". */
  ends: string;
  from: number;
  /** Null while this phase is still going on. */
  to: number | null;
  seconds: number;
  /** Seconds of the detection in which a limit was waited for. */
  limit: number | null;
  /** What it is, where it has no end mark. */
  note?: string;
}

const MARKS: Record<string, string> = { first_step: "first new step", given_up: "given up", last_heard: "last heard", failed: "job failed", stopped: "stopped", finished: "job finished" };

/** The time of the steps that a restart threw away: the first of them is done again before the incident is over. */
const LOST = "Lost steps";

/** Shorter ones would be shown as 0 s. */
const LEAST_S = 0.05;

/** The phases as the monitor has them, as of now; the lost steps come last: together they are the cost. */
export function phases({ phases: all, lost_steps_s: lost, steps_lost: steps }: Pick<Incident, "phases" | "lost_steps_s" | "steps_lost">, now: number): Phase[] {
  const found: Phase[] = all.map(({ name, begin, end, mark, limit }) => ({
    name: capital(name), ends: MARKS[mark] ?? mark, from: begin, to: end, seconds: Math.max(0, (end ?? now) - begin), limit,
  }));
  const to = found.at(-1)?.to ?? now;
  if (lost) found.push({ name: LOST, ends: "", from: to, to, seconds: lost, limit: null, note: steps ? `${plural(steps, "step")}, the first counts as Recover` : "" });
  return found.filter(({ to, seconds }) => to === null || seconds >= LEAST_S);
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

/** When an incident ceased to cost time: its first new step, else its closing; null: not yet. */
export function over({ timeline, closed_at: closedAt }: Pick<Incident, "timeline" | "closed_at">): number | null {
  return closedAt === null ? null : timeline.first_step ?? closedAt;
}

/** What an incident has cost the job in time, as of now. */
export const costOf = ({ cost: { seconds, since } }: Pick<Incident, "cost">, now: number): number => seconds + (since === null ? 0 : Math.max(0, now - since));

/** How long something took, or has taken so far. */
export const took = (seconds: number, goesOn: boolean): string => (goesOn ? wholeDuration(seconds) : duration(seconds));

/** What an incident has cost in time: "13.5 s", "13 s so far". */
export function costText(incident: Pick<Incident, "cost">, now: number): string {
  const open = incident.cost.since !== null;
  return `${took(costOf(incident, now), open)}${open ? " so far" : ""}`;
}

/** Changes when an incident begins, when its first new step completes, and when it is closed. */
export const eventsOf = (incidents: readonly Incident[]): string => incidents.map(({ id, timeline, closed_at }) => `${id} ${timeline.first_step !== null} ${closed_at !== null}`).join();
