// The list of jobs: what stands first, what the headline counts, which rows are shown.

import type { Digest, DigestLink, JobElsewhere, JobState, JobSummary, Tone } from "../api/types";
import { clock, elapsed, roughly } from "./text";

export type Listed = JobSummary | JobElsewhere;

export function isElsewhere(job: Listed): job is JobElsewhere {
  return "monitor" in job;
}

const HOUR = 3600;

/** A failure counts for the hours of the digest. */
const isOld = (job: JobSummary, now: number, hours: number): boolean => job.state === "failed" && now - (job.ended_at ?? now) > hours * HOUR;

/** How urgent a job is: its tone; a failure of long ago is as calm as any end. */
export function urgencyOf(job: Listed, now: number, hours: number): Tone {
  if (isElsewhere(job)) return "calm";
  return isOld(job, now, hours) ? "over" : job.tone;
}

/** Whether the job waits for a person. */
export function needsPerson(job: Listed, now: number, hours: number): boolean {
  return !isElsewhere(job) && job.advice !== null && !job.advice.waits && !isOld(job, now, hours);
}

/** The names that several jobs have: these are told apart by their ids. */
export function sharedNames(jobs: readonly Listed[]): ReadonlySet<string> {
  const names = jobs.map(({ name }) => name);
  return new Set(names.filter((name, i) => names.indexOf(name) !== i));
}

/** How long the job has been in trouble, or has been over: "12 min", "12 min ago"; empty: it is well, or that is not known. */
export function ageOf({ since, ended_at: ended }: Pick<JobSummary, "since" | "ended_at">, now: number): string {
  if (since === null) return "";
  const age = elapsed(since, now) < 1 ? "now" : roughly(elapsed(since, now));
  return ended === null || age === "now" ? age : `${age} ago`;
}

const TONES: readonly Tone[] = ["bad", "warns", "waits", "calm", "over"];

/** What waits for a person, then what is in trouble while Rankwatch acts, then the others. */
function urgency(job: Listed, now: number, hours: number): number {
  return (TONES.indexOf(urgencyOf(job, now, hours)) + (needsPerson(job, now, hours) ? 0 : TONES.length)) * LABELS.length + LABELS.indexOf(job.state);
}

export const SORTS = ["urgency", "newest", "name", "most ranks", "lowest goodput"] as const;
export type Sort = (typeof SORTS)[number];

export function sorted(jobs: readonly Listed[], by: Sort, now: number, hours: number): Listed[] {
  const newest = (a: Listed, b: Listed) => b.started_at - a.started_at;
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

/** The states in the order of the filter. */
export const LABELS: readonly JobState[] = ["hung", "lost", "failed", "no step", "slow", "suspected", "restarting", "starting", "running", "stopping", "stopped", "finished"];

/** How many jobs need a person, and how many are being taken care of: "6 need you · 3 recovering". */
export function headline(jobs: readonly Listed[], now: number, hours: number): string {
  const needing = jobs.filter((job) => needsPerson(job, now, hours));
  const rest = jobs.filter((job) => !needing.includes(job));
  const number = (tone: Tone) => rest.filter((job) => urgencyOf(job, now, hours) === tone).length;
  const trains = number("calm");
  const parts = [
    needing.length > 0 && `${needing.length} ${needing.length === 1 ? "needs" : "need"} you`,
    number("waits") > 0 && `${number("waits")} recovering`,
    number("warns") > 0 && `${number("warns")} slow`,
  ].filter(Boolean);
  if (parts.length > 0) return parts.join(" · ");
  return trains === 0 ? "No job is running" : trains === 1 ? "One job, no trouble" : `${trains} jobs, no trouble`;
}

/** "12 h", "7 days", as the digest is headed. */
export function span(hours: number): string {
  return hours >= 72 ? `${hours / 24} days` : hours === 1 ? "hour" : `${hours} h`;
}

/** What happened, one list, the newest first; what has no time comes last, in its own words. */
export function events({ lines }: Digest, now: number): { time: string; text: string; link: DigestLink | null }[] {
  const dated = lines.flatMap(({ links }) => links.filter(({ at }) => at !== null)).sort((a, b) => b.at! - a.at!);
  const others = lines.filter(({ links }) => links.every(({ at }) => at === null));
  return [
    ...dated.map((link) => ({ time: clock(link.at, now), text: link.text, link })),
    ...others.map(({ text, links }) => ({ time: "", text, link: links[0] ?? null })),
  ];
}
