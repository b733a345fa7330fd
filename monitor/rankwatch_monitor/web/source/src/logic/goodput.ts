// Goodput: buckets of seconds as slices of one bar, with their labels.

import type { Goodput } from "../api/types";
import { percent, wholeDuration, words } from "./text";

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
  handling: "handling incidents",
  restart: "restarts",
  down: "between runs",
  unseen: "not monitored",
  unmeasured: "runs without steps",
};
const ORDER = Object.keys(BUCKETS);

export interface Slice {
  bucket: string;
  /** Its label. */
  name: string;
  seconds: number;
  /** Of all seconds, from 0 to 1. */
  share: number;
}

const totalSeconds = (buckets: Readonly<Record<string, number>>): number => Object.values(buckets).reduce((sum, seconds) => sum + seconds, 0);

/** Smaller buckets are left out. */
const LEAST_S = 0.05;

/** The non-empty buckets in the order of the bar; buckets without a label come last, by name. */
export function slices(buckets: Readonly<Record<string, number>>, waitedFor = "slow ranks"): Slice[] {
  const total = totalSeconds(buckets);
  const place = (bucket: string) => (BUCKETS[bucket] === undefined ? ORDER.length : ORDER.indexOf(bucket));
  return Object.entries(buckets)
    .filter(([, seconds]) => seconds >= LEAST_S)
    .map(([bucket, seconds]) => ({ bucket, name: bucket === "waiting" ? `waiting for ${waitedFor}` : BUCKETS[bucket] ?? words(bucket), seconds, share: seconds / total }))
    .sort((a, b) => place(a.bucket) - place(b.bucket));
}

/** The bar as text, for screen readers. */
export const inWords = (found: readonly Slice[]): string => found.map(({ name, share }) => `${name} ${percent(share)}`).join("; ");

const HOUR = 3600;

/** Whether the sliding window covers less than the whole run; until then both figures are the same. */
export const windowDiffers = ({ buckets, window }: Goodput): boolean => totalSeconds(buckets) > window.seconds + 60;

/** Label of the sliding window; up to two minutes short of an hour count as an hour. */
export const windowName = (seconds: number): string => (seconds > HOUR - 120 ? "last hour" : `last ${wholeDuration(seconds)}`);
