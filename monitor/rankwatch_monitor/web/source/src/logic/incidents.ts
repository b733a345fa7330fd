// Which incident the page shows first, and its texts.

import type { Culprit, Incident, JobSummary, StackGroup } from "../api/types";
import { clock, count, elapsed, runs, wholeDuration, words } from "./text";

/** The requested incident, else the open one, else the one with which a job failed. All others are in the list only. */
export function focus(incidents: readonly Incident[], requested: string | null, job: Pick<JobSummary, "state" | "ended_at"> | null): Incident | null {
  if (requested !== null) return incidents.find((incident) => incident.id === requested) ?? null;
  const failed = job?.state === "failed" ? job.ended_at : null;
  return incidents.find(({ closed_at: closed, confirmed }) => closed === null || (confirmed && closed === failed)) ?? null;
}

/** Whether a later attempt runs than that of the incident: its culprits are processes that have ended. */
export function isFormer(job: Pick<JobSummary, "attempt">, incident: Pick<Incident, "attempt">): boolean {
  return job.attempt > incident.attempt;
}

/** Insert or replace an incident; newest first, those of one moment in the order they had. */
export function merged(incidents: readonly Incident[], changed: Incident): Incident[] {
  const known = incidents.some(({ id }) => id === changed.id);
  const next = known ? incidents.map((incident) => (incident.id === changed.id ? changed : incident)) : [changed, ...incidents];
  return next.sort((a, b) => b.opened_at - a.opened_at);
}

/** "rank 2", "ranks 9208–9215", or "none identified". */
export function culpritRanks(culprits: readonly Culprit[]): string {
  if (culprits.length === 0) return "none identified";
  if (culprits.length === 1) return `rank ${count(culprits[0]!.rank)}`;
  return `ranks ${runs(culprits.map((culprit) => culprit.rank), 4)}`;
}

/** The hosts of the culprits, each once. */
export function hosts(culprits: readonly Culprit[]): string[] {
  return [...new Set(culprits.map((culprit) => culprit.host).filter((host) => host !== ""))];
}

/** What became of the culprits, each kind once. */
export const classes = (culprits: readonly Culprit[]): string => [...new Set(culprits.map((each) => words(each.class)))].join(", ");

/** Whether its action restarts the ranks. */
const restartsRanks = ({ action }: Incident): boolean => action === "restart" || action === "restart_excluding_node";

/** Whether its action was carried out. `job` has ended with it where that was the action. */
export function wasTaken(incident: Incident, jobEndedAt: number | null): boolean {
  const { action, timeline, closed_at: closedAt } = incident;
  if (restartsRanks(incident)) return timeline.restarted !== null;
  if (action === "capture") return timeline.captured !== null;
  return action !== "log" && closedAt !== null && jobEndedAt !== null && jobEndedAt <= closedAt;
}

/** The failed ranks of a crash of which no traceback was received; how each process ended stands in `reason`. */
export function withoutTraceback({ culprits }: Pick<Incident, "culprits">, groups: readonly StackGroup[]): Culprit[] {
  const known = new Set(groups.flatMap(({ ranks }) => ranks));
  return culprits.filter(({ class: kind, rank }) => kind === "dead" && !known.has(rank));
}

/** "captured 14:00:51, 11 s after the last progress; ": when its stacks were, and of a hang how long that was after it began. */
export function capturedWords({ kind, timeline: { captured, since } }: Pick<Incident, "kind" | "timeline">, now: number): string {
  if (captured === null) return "";
  const after = since === null || kind === "process_exited" ? "" : `, ${wholeDuration(elapsed(since, captured))} after the last progress`;
  return `captured ${clock(captured, now)}${after}; `;
}

/** Why an incident has no stacks, or when they come. */
export function withoutStacks({ action, action_reason: why, closed_at: closedAt, kind, phase, timeline, withheld }: Incident): string {
  if (phase === "capturing" && closedAt === null) return "Stacks are being captured.";
  if (kind === "process_exited") return "No traceback and no stack was received of this crash.";
  const asks = action !== "log" || (closedAt === null && withheld === "policy");
  return `Not captured: ${REASONS[kind] ?? (asks ? asked(timeline.decided !== null) : why || "nothing was ordered")}.`;
}

const REASONS: Record<string, string> = {
  node_lost: "the node does not answer",
  wrong_result: "the rank handled it by itself",
  restarted_in_process: "the rank handled it by itself",
};

const asked = (decided: boolean) => (decided ? "no launcher answered in time" : "nothing was ordered");

/** Where in the run it began: "attempt 3, after step 614". */
export const placeWords = ({ attempt, furthest_iteration: step }: Pick<Incident, "attempt" | "furthest_iteration">): string => `attempt ${attempt}${step == null ? "" : `, after step ${count(step)}`}`;

/** How an incident ended without confirmation; null if it was confirmed or is open. */
export function unconfirmedEnd({ confirmed, closed_at: closed, ended }: Incident): string | null {
  return confirmed || closed === null ? null : ended === "went_on" ? "resumed by itself" : "never confirmed";
}

const LAST_LINES = 8;
/** What torch prints before each line of a rank whose exception it shows. */
const PREFIX = /^\[rank\d+\]: ?/;

/** The end of a rank's log: from the traceback on, where that is among the last lines. */
export function lastLines(lines: readonly string[]): string[] {
  const last = lines.slice(-LAST_LINES).map((line) => line.replace(PREFIX, ""));
  return last.slice(Math.max(0, last.findIndex((line) => line.startsWith("Traceback"))));
}

/** Label of the named ranks: "culprit" only once the incident is confirmed. */
export const blame = ({ confirmed }: Pick<Incident, "confirmed">): string => (confirmed ? "culprit" : "suspect");

/** The attempts of a job that has failed, with the step after which each ended, and the incident with which it did. */
export function attempts(job: Pick<JobSummary, "attempt" | "iteration">, incidents: readonly Incident[]): { attempt: number; step: number | null; id: string | null; label: string }[] {
  return Array.from({ length: job.attempt }, (_, i) => {
    const found = incidents.find(({ attempt, confirmed }) => attempt === i + 1 && confirmed);
    return { attempt: i + 1, step: found?.furthest_iteration ?? (i + 1 === job.attempt ? job.iteration : null), id: found?.id ?? null, label: found?.title ?? "" };
  });
}
