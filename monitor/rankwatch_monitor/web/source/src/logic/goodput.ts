// Goodput: buckets of seconds as slices of one bar, with their labels.

import type { Goodput, Incident, JobSummary, LedgerEntry } from "../api/types";
import { LOST, phases, STAGES } from "./phases";
import { clock, percent, wholeDuration, words } from "./text";

/** In the order of the bar: new steps, other necessary work, lost time, unknown. */
const BUCKETS: Record<string, string> = {
  productive: "kept steps",
  waiting: "waiting",
  evaluation: "evaluation",
  checkpointing: "checkpoints",
  startup: "start-up",
  shutdown: "shutdown",
  lost_steps: "lost steps",
  stalled: "stalled",
  hang: "hang",
  Detect: "Detect",
  Unresolved: "Unresolved",
  Confirm: "Confirm",
  handling: "handling incidents",
  Capture: "Capture",
  Restart: "Restart",
  Stop: "Stop",
  restart: "restarts",
  Recover: "Recover",
  down: "between runs",
  unseen: "not monitored",
  unmeasured: "runs without steps",
};
const ORDER = Object.keys(BUCKETS);

/** What stands beside the goodput of a job: of a lost one until when it is known. What a finished one may not have saved stands in its account. */
export function goodputNotes({ goodput_notes: notes = [], last_heard: heard, state }: Pick<JobSummary, "goodput_notes" | "last_heard" | "state">, now: number): string {
  return [...(state === "lost" && heard != null ? [`until ${clock(heard, now)}`] : []), ...notes.filter((note) => !isUnsaved(note))].join(", ");
}

/** Whether words about a finished job are of steps that may not be saved. */
export const isUnsaved = (words: string): boolean => words.includes("known save");

export interface Slice {
  bucket: string;
  /** Its label. */
  name: string;
  seconds: number;
  /** Of all seconds, from 0 to 1. */
  share: number;
}

function totalSeconds(buckets: Readonly<Record<string, number>>): number {
  return Object.values(buckets).reduce((sum, seconds) => sum + seconds, 0);
}

/** Smaller buckets are left out. */
const LEAST_S = 0.05;

/** The non-empty buckets in the order of the bar; buckets without a label come last, by name. */
export function slices(buckets: Readonly<Record<string, number>>, waitedFor = "slow ranks"): Slice[] {
  const total = totalSeconds(buckets);
  const place = (bucket: string) => (BUCKETS[bucket] === undefined ? ORDER.length : ORDER.indexOf(bucket));
  return Object.entries(buckets)
    .filter(([, seconds]) => seconds >= LEAST_S)
    .map(([bucket, seconds]) => ({ bucket, name: bucket === "waiting" ? `waiting for ${waitedFor}` : bucket === "productive" && buckets.waiting ? "kept steps, not waiting" : BUCKETS[bucket] ?? words(bucket), seconds, share: seconds / total }))
    .sort((a, b) => place(a.bucket) - place(b.bucket));
}

/** What a stage of an incident has taken. */
export interface Stage {
  seconds: number;
  /** It is going on. */
  open: boolean;
}

/** The stages of an incident by name; from whichever of its two answers is the newer one: over, as only one may state. */
export function stages(entry: LedgerEntry, incident: Incident | undefined, now: number): Record<string, Stage> {
  const found: Record<string, Stage> = {};
  const newest = incident === undefined || entry.cost.since === null ? entry : incident;
  phases(newest, now).forEach(({ name, seconds, to }) => (found[name] = { seconds: seconds + (found[name]?.seconds ?? 0), open: to === null }));
  return found;
}

/** The stages that the monitor counts in one bucket. */
const STAGES_IN: Record<string, readonly string[]> = { hang: ["Detect", "Unresolved"], handling: ["Confirm", "Capture", "Restart", "Stop"], restart: ["Recover"] };
/** Seconds by which a bucket may differ from its stages: the monitor counts about once a second. */
const SAME_S = 0.5;
/** Seconds that the answer may be older than what is shown. */
const LATE_S = 60;

/** The buckets as of now: what has passed since the answer belongs to the stage that is going on. `age`: seconds of the job. */
export function asOfNow(buckets: Readonly<Record<string, number>>, all: readonly Record<string, Stage>[], age: number): Record<string, number> {
  const open = all.flatMap((each) => Object.keys(each).filter((name) => each[name]!.open))[0];
  const bucket = Object.keys(STAGES_IN).find((name) => open !== undefined && STAGES_IN[name]!.includes(open));
  const late = age - totalSeconds(buckets);
  return bucket === undefined || late <= 0 || late > LATE_S ? { ...buckets } : { ...buckets, [bucket]: (buckets[bucket] ?? 0) + late };
}

/**
 * Buckets of incidents as their stages, where both are the same seconds; `apart`: the names of those that are not. Seconds that one
 * bucket has more and another one has less are those of a stage between them: all buckets are then shown as stages.
 */
export function byStage(buckets: Readonly<Record<string, number>>, all: readonly Record<string, Stage>[]): { buckets: Record<string, number>; apart: string[] } {
  const shown = { ...buckets };
  const apart: string[] = [];
  const found = Object.entries(STAGES_IN).map(([bucket, names]) => {
    const seconds = buckets[bucket] ?? 0;
    const parts = names.map((name) => [name, all.reduce((sum, each) => sum + (each[name]?.seconds ?? 0), 0)] as const);
    return { bucket, seconds, parts, differs: parts.reduce((sum, [, each]) => sum + each, 0) - seconds };
  });
  const differs = Math.abs(found.reduce((sum, each) => sum + each.differs, 0)) > SAME_S;
  for (const { bucket, seconds, parts, differs: by } of found) {
    if (differs && Math.abs(by) > SAME_S) {
      if (seconds >= LEAST_S) apart.push(BUCKETS[bucket]!);
      continue;
    }
    delete shown[bucket];
    parts.forEach(([name, each]) => each > 0 && (shown[name] = each));
  }
  return { buckets: shown, apart };
}

/** The bar as text, for screen readers. */
export function inWords(found: readonly Slice[]): string {
  return found.map(({ name, share }) => `${name} ${percent(share)}`).join("; ");
}

/** What goodput counts. */
export const COUNTED = "share of all time since the start that went into steps that were kept; start-up, evaluation, checkpoints, lost steps, hangs, waiting for slow ranks and restarts are the rest";

/** The time of a job as of now, by bucket and by stage of each incident. */
export interface Spent {
  buckets: Record<string, number>;
  /** Names of buckets of incidents that are not the sum of the stages. */
  apart: string[];
  /** Stages by incident. */
  taken: ReadonlyMap<string, Record<string, Stage>>;
  /** The stage that is going on; null: none is. */
  open: string | null;
  /** The stages that incidents of this job have, in the order of the table. */
  columns: readonly string[];
}

export function spent(job: JobSummary, goodput: Goodput, incidents: readonly Incident[], now: number): Spent {
  const byId = new Map(incidents.map((incident) => [incident.id, incident]));
  const taken = new Map(goodput.incidents.map((entry) => [entry.id, stages(entry, byId.get(entry.id), now)]));
  const all = [...taken.values()];
  const age = job.ended_at !== null || job.state === "lost" || job.started_at === null ? 0 : now - job.started_at;
  const open = all.flatMap((each) => Object.keys(each).filter((name) => each[name]!.open))[0] ?? null;
  const columns = [...STAGES, LOST].filter((name) => all.some((each) => each[name] !== undefined));
  return { ...byStage(asOfNow(goodput.buckets, all, age), all), taken, open, columns };
}

const HOUR = 3600;

/** Whether a run is so young that its last hour is the whole of it. */
export function isYoung(job: Pick<JobSummary, "started_at" | "ended_at">, now: number): boolean {
  return job.started_at !== null && (job.ended_at ?? now) - job.started_at <= HOUR + 60;
}

/** Whether the sliding window covers less than the whole run; until then both figures are the same. */
export function windowDiffers({ buckets, window }: Goodput): boolean {
  return totalSeconds(buckets) > window.seconds + 60;
}

/** Label of the sliding window; up to two minutes short of an hour count as an hour. */
export function windowName(seconds: number): string {
  return seconds > HOUR - 120 ? "Last hour" : `Last ${wholeDuration(seconds)}`;
}
