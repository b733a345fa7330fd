// Which incident the page shows first, and its texts.

import type { Culprit, CulpritClass, Incident, JobSummary, LimitSource, QuietHost, RankState, StackGroup, VerdictKind } from "../api/types";
import { clock, count, elapsed, runs, wholeDuration, zoned } from "./text";

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

/** Whether a later attempt runs than that of the incident: its culprits are processes that have ended. */
export function isFormer(job: Pick<JobSummary, "attempt">, incident: Pick<Incident, "attempt">): boolean {
  return job.attempt > incident.attempt;
}

/** The host that is not heard and may have caused the incident; null: another cause, or it is over. */
export function quietOf(job: Pick<JobSummary, "quiet_host">, { closed_at }: Pick<Incident, "closed_at">): QuietHost | null {
  return closed_at === null ? (job.quiet_host ?? null) : null;
}

/** The incident in one line: while a whole host is silent, that host. */
export function titleOf(job: Pick<JobSummary, "quiet_host">, incident: Incident, now: number): string {
  const quiet = quietOf(job, incident);
  return quiet === null ? incident.title : zoned(quiet.headline, now);
}

/** What an incident is, in a table: its kind, or the host that is not heard. */
export function lineOf(job: Pick<JobSummary, "quiet_host">, incident: Incident, now: number): string {
  const quiet = quietOf(job, incident);
  return quiet === null ? incident.label : zoned(quiet.headline, now);
}

/** What kind of fault an incident is: while a whole host is silent, that. */
export function faultOf(job: Pick<JobSummary, "quiet_host">, incident: Incident): string {
  const quiet = quietOf(job, incident);
  if (quiet === null) return kindWords(incident);
  return quiet.other_jobs > 0 ? "silent on a node that is up" : "node not heard";
}

/** Insert or replace an incident; newest first, those of one moment in the order they had. */
export function merged(incidents: readonly Incident[], changed: Incident): Incident[] {
  const known = incidents.some(({ id }) => id === changed.id);
  const next = known ? incidents.map((incident) => (incident.id === changed.id ? changed : incident)) : [changed, ...incidents];
  return next.sort((a, b) => b.opened_at - a.opened_at);
}

/** In their order; those next to each other that read the same are one group. */
export function repeats(incidents: readonly Incident[], title: (incident: Incident) => string): Incident[][] {
  const found: Incident[][] = [];
  incidents.forEach((each, i) => {
    const above = incidents[i - 1];
    if (above?.confirmed === each.confirmed && title(above) === title(each)) found.at(-1)!.push(each);
    else found.push([each]);
  });
  return found;
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

export function classes(culprits: readonly Culprit[]): string {
  return [...new Set(culprits.map(({ class: kind }) => CLASSES[kind]))].join(", ");
}

const CLASSES: Record<CulpritClass, string> = {
  dead: "dead", stopped: "stopped", never_started: "never started", behind: "behind", straggler: "straggler", wrong_result: "wrong result",
  host_silent: "silent", gil_held: "GIL held", device_or_network: "device or network stuck",
};

export const classWords = (kind: CulpritClass): string => CLASSES[kind];

export interface RanksThen {
  culprits: { rank: number; host: string; state: RankState; kind: CulpritClass }[];
  waiting: number[];
  others: number[];
}

const STATES: Partial<Record<CulpritClass, RankState>> = { dead: "dead", host_silent: "silent", stopped: "stopped", never_started: "unseen", straggler: "running", wrong_result: "running" };

/** The ranks when an incident was detected, by its record: culprits, affected ones and, where any is, the rest of so many. */
export function ranksThen({ affected, culprits }: Pick<Incident, "affected" | "culprits">, worldSize: number): RanksThen {
  const named = new Set(culprits.map(({ rank }) => rank));
  const waiting = [...new Set(affected)].filter((rank) => !named.has(rank)).sort((a, b) => a - b);
  const held = new Set(waiting);
  return {
    culprits: culprits.map(({ rank, host, class: kind }) => ({ rank, host, state: STATES[kind] ?? "hung", kind })),
    waiting,
    others: affected.length === 0 ? [] : Array.from({ length: worldSize }, (_, rank) => rank).filter((rank) => !named.has(rank) && !held.has(rank)),
  };
}

/** The hosts of ranks at an incident. Its record has those of its culprits; if they are still there, the others are too. Empty: not known. */
export function hostsThen(ranks: readonly number[], culprits: RanksThen["culprits"], hostNow: (rank: number) => string | undefined): string[] {
  const hosts = new Set(ranks.map((rank) => hostNow(rank) ?? ""));
  return hosts.has("") || culprits.some(({ rank, host }) => host !== hostNow(rank)) ? [] : [...hosts];
}

/** The functions in which stacks of these ranks were; empty: none was captured. */
export function innermost(groups: readonly StackGroup[], ranks: readonly number[]): string {
  const among = new Set(ranks);
  return [...new Set(groups.filter((group) => group.ranks.some((rank) => among.has(rank))).map(({ frames }) => frames[0]?.function))].filter(Boolean).join(", ");
}

const KINDS: Record<VerdictKind, string> = {
  section_overrun: "section over its limit",
  out_of_section_overrun: "outside sections for too long",
  heartbeat_overrun: "no heartbeat",
  silent: "no report",
  stalled: "no step completes",
  process_exited: "crash",
  never_started: "never started",
  node_lost: "node lost",
  ordered: "ordered",
  straggler: "straggler",
  wrong_result: "wrong result",
  restarted_in_process: "restarted in process",
};

const LIMITS: Record<LimitSource, string> = {
  configured: "configured limit",
  default: "default limit",
  learned: "learned limit",
  loaded: "limit learned in an earlier run:",
  first_time: "limit until one is learned:",
};

/** What a limit is called by its source. */
export const limitName = ({ limit_source: source }: Pick<Incident, "limit_source">): string => (source === null ? "limit" : LIMITS[source]);

/** What kind of fault it is. */
export const kindWords = ({ kind }: { kind: VerdictKind }): string => KINDS[kind];

/** Whether its action restarts the ranks. */
export const restartsRanks = ({ action }: Incident): boolean => action === "restart" || action === "restart_excluding_node";

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

/** One in a list, in words: what distinguishes it first, and what it has in common with the one above it only there. */
export function listWords(incident: Incident, above: Incident | undefined): string {
  const what = (of: Incident) => of.title;
  return `${placeWords(incident)}: ${above !== undefined && what(above) === what(incident) ? "the same" : what(incident)}`;
}
