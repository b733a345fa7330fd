// The list of jobs: what stands first, what the headline counts, which rows are shown.

import type { JobElsewhere, JobState, JobSummary, Labelled, NamedHost } from "../api/types";
import { capital, clock, elapsed, roughly } from "./text";

export type Listed = JobSummary | JobElsewhere;

export function isElsewhere(job: Labelled | Listed): job is JobElsewhere {
  return "monitor" in job;
}

const HOUR = 3600;
const OVER: ReadonlySet<JobState> = new Set<JobState>(["failed", "stopped", "finished"]);

export const isTroubled = ({ state }: Pick<Listed, "state">): boolean => state === "hung" || state === "lost" || state === "restarting";
const hasFailed = (job: Labelled | Listed, now: number, hours: number): boolean => !isElsewhere(job) && job.state === "failed" && now - (job.ended_at ?? now) <= hours * HOUR;

/** Whether the job waits for a person: there is a next action, and a failure is within the hours of the digest. */
export function needsPerson(job: Labelled | Listed, now: number, hours: number): boolean {
  return "advice" in job && job.advice !== null && !job.advice.waits && (job.state !== "failed" || hasFailed(job, now, hours));
}

/** The names that several jobs have: these are told apart by their ids. */
export function sharedNames(jobs: readonly Listed[]): ReadonlySet<string> {
  const names = jobs.map(({ name }) => name);
  return new Set(names.filter((name, i) => names.indexOf(name) !== i));
}

/** A host with its incidents of the last day. */
export type Often = NamedHost & Required<Pick<NamedHost, "lately">>;

/** The hosts that several incidents of the last day are about, the most first. */
export function namedOften(hosts: readonly NamedHost[]): Often[] {
  const often = hosts.filter((each): each is Often => each.lately !== undefined && each.lately.incidents + each.lately.suspicions > 1);
  return often.sort((a, b) => b.lately.incidents - a.lately.incidents || b.lately.suspicions - a.lately.suspicions);
}

/** What is wrong with the job, or why it ended. A silence is as old as the label beside it. */
export function whyOf(job: Labelled, now: number): string {
  if (job.state === "lost" && job.trouble_since != null) return `Nothing was received from any rank or launcher for ${troubleAge(job, now)}`;
  return job.headline || capital(job.reason);
}

/** How long the job has been in trouble: "12 min", of a restarting one "down 12 min"; empty: it is well, or that is not known. */
export function troubleAge(job: Labelled | Listed, now: number): string {
  if (isElsewhere(job) || job.trouble_since == null) return "";
  const age = roughly(elapsed(job.trouble_since, now));
  return job.state === "failed" ? `${age} ago` : job.state === "restarting" ? `down ${age}` : age;
}

/** Since when the job is as its label states: "since 14:01:15"; empty: that is not known. */
export function sinceWords(job: Listed, now: number): string {
  if (isElsewhere(job)) return "";
  const since = job.trouble_since ?? job.ended_at;
  if (since === null) return "";
  return `${job.ended_at !== null ? "at" : "since"} ${clock(since, now)}`;
}

/** How urgent a row is, for its colour; empty: it is not. `hours`: in which a failure counts, those of the digest. */
export function alarm(job: Labelled | Listed, now: number, hours: number): "failed" | "suspected" | "slow" | "" {
  if (hasFailed(job, now, hours)) return "failed";
  return job.state === "suspected" ? "suspected" : COSTS.has(job.state) ? "slow" : "";
}

/** As in the headline: what needs a person, then what is in trouble while Rankwatch acts, each by its label; then the others by state. */
function urgency(job: Listed, now: number, hours: number): number {
  const severity = COUNTED.indexOf(job.state);
  const troubled = severity >= 0 && (job.state !== "failed" || hasFailed(job, now, hours));
  if (!troubled) return 2 * COUNTED.length + CALM.indexOf(job.state);
  return needsPerson(job, now, hours) ? severity : COUNTED.length + severity;
}

export const SORTS = ["urgency", "newest", "name", "most ranks", "lowest goodput"] as const;
export type Sort = (typeof SORTS)[number];

export function sorted(jobs: readonly Listed[], by: Sort, now: number, hours: number): Listed[] {
  const newest = (a: Listed, b: Listed) => (b.started_at ?? 0) - (a.started_at ?? 0);
  const goodput = (job: Listed) => (isElsewhere(job) ? null : job.goodput) ?? 2;
  const order: Record<Sort, (a: Listed, b: Listed) => number> = {
    urgency: (a, b) => urgency(a, now, hours) - urgency(b, now, hours),
    newest,
    name: (a, b) => a.name.localeCompare(b.name, "en", { numeric: true }),
    "most ranks": (a, b) => b.world_size - a.world_size,
    "lowest goodput": (a, b) => goodput(a) - goodput(b),
  };
  return [...jobs].sort((a, b) => order[by](a, b) || newest(a, b));
}

/** Jobs with a label ("": any) whose name, id, label, reason or nodes, by its id, contain all words. */
export function matching(jobs: readonly Listed[], text: string, label: string, nodes: ReadonlyMap<string, string> = new Map()): Listed[] {
  const wanted = text.toLowerCase().split(/\s+/).filter(Boolean);
  return jobs.filter((job) => {
    const found = [job.name, job.id, job.state, nodes.get(job.id), ...(isElsewhere(job) ? [] : [job.headline, job.reason])].join(" ").toLowerCase();
    return (label === "" || job.state === label) && wanted.every((word) => found.includes(word));
  });
}

/** What is wrong with a job, the most urgent first: nothing trains, then what costs a part of each step, then what ends by itself. */
const COUNTED: readonly JobState[] = ["hung", "lost", "failed", "no step", "slow", "suspected", "restarting"];
const COSTS: ReadonlySet<JobState> = new Set<JobState>(["no step", "slow"]);
const CALM: readonly JobState[] = ["starting", "running", "stopping", "failed", "stopped", "finished"];
/** In the order of the headline, then those that are well. */
export const LABELS: readonly JobState[] = [...new Set([...COUNTED, ...CALM])];

/** How many jobs wait for a person, which are the rows with a next action; then the others in trouble. */
export function headline(jobs: readonly Listed[], now: number, hours: number): string {
  const counted = (which: readonly Listed[]) => COUNTED.flatMap((label) => {
    const number = which.filter(({ state }) => state === label).length;
    return number === 0 ? [] : [`${number} ${label}`];
  });
  const needing = jobs.filter((job) => needsPerson(job, now, hours));
  const others = jobs.filter((job) => !needing.includes(job) && (job.state !== "failed" || hasFailed(job, now, hours)));
  const by = counted(needing).join(", ");
  const rest = counted(others).join(", ");
  const troubled = needing.length > 0 || others.some(({ state }) => COUNTED.includes(state) && !COSTS.has(state));
  const number = (state: JobState) => jobs.filter((job) => job.state === state).length;
  if (!troubled) return calm(jobs.filter(({ state }) => !OVER.has(state)).length, number("no step"), number("slow"));
  if (needing.length === 0) return rest.replace(/^\d+/, (first) => `${first} ${first === "1" ? "job" : "jobs"}`);
  return `${needing.length} ${needing.length === 1 ? "job needs" : "jobs need"} you${by && ` (${by})`}${rest && `; nothing for you to do yet: ${rest}`}`;
}

/** "12 h", "7 days", as the digest is headed. */
export function span(hours: number): string {
  return hours >= 72 ? `${hours / 24} days` : hours === 1 ? "hour" : `${hours} h`;
}

function calm(active: number, unproven: number, slow: number): string {
  if (unproven > 0) return active === 1 ? "One job, no step completed yet" : `${unproven} of ${active} active jobs have completed no step yet`;
  if (slow > 0) return active === 1 ? "One job, slower than it could be" : `${slow} of ${active} active jobs slower than they could be`;
  if (active > 0) return active === 1 ? "One job, no trouble" : `${active} jobs, no trouble`;
  return "No job is running";
}
