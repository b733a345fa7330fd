// Where a job's time went: buckets of seconds as slices of one bar, and the words for them.

import type { Goodput } from "../api/types";
import { percent, wholeDuration, words } from "./text";

/** In the order of the bar: what moves training, what it needs besides, what was lost, what nobody knows. */
const BUCKETS: Record<string, string> = {
  productive: "new steps",
  evaluation: "evaluation",
  checkpointing: "checkpoints",
  startup: "start-up",
  shutdown: "shutdown",
  recomputed: "steps done again",
  stalled: "stalled, went on",
  hang: "hung",
  handling: "handling incidents",
  restart: "restarts",
  down: "between runs",
  unseen: "not watched",
  unmeasured: "runs without steps",
};
const ORDER = Object.keys(BUCKETS);

export interface Slice {
  bucket: string;
  /** What it is called on the page. */
  name: string;
  seconds: number;
  /** Of all seconds, from 0 to 1. */
  share: number;
}

function lived(buckets: Readonly<Record<string, number>>): number {
  return Object.values(buckets).reduce((sum, seconds) => sum + seconds, 0);
}

/** Below this a bucket would be read as "0 ms"; it is left out. */
const LEAST_S = 0.05;

/** The buckets that hold any time, in the order of the bar; what this page has no word for comes last. */
export function slices(buckets: Readonly<Record<string, number>>): Slice[] {
  const total = lived(buckets);
  const place = (bucket: string) => (BUCKETS[bucket] === undefined ? ORDER.length : ORDER.indexOf(bucket));
  return Object.entries(buckets)
    .filter(([, seconds]) => seconds >= LEAST_S)
    .map(([bucket, seconds]) => ({ bucket, name: BUCKETS[bucket] ?? words(bucket), seconds, share: seconds / total }))
    .sort((a, b) => place(a.bucket) - place(b.bucket));
}

/** The bar in one sentence, for those who do not see it. */
export function inWords(found: readonly Slice[]): string {
  return found.map(({ name, share }) => `${name} ${percent(share)}`).join("; ");
}

const HOUR = 3600;

/** Whether the sliding ratio is about less than the whole run; until then it would be the same figure twice. */
export function windowDiffers({ buckets, window }: Goodput): boolean {
  return lived(buckets) > window.seconds + 60;
}

/** What the sliding ratio is about; a minute at its edges is not worth another name. */
export function windowName(seconds: number): string {
  return seconds > HOUR - 120 ? "Last hour" : `Last ${wholeDuration(seconds)}`;
}
