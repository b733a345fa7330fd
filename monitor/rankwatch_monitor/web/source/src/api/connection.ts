// State of the connection to the monitor, and the current time by the monitor's clock.

import { computed, signal } from "@preact/signals";

/** The monitor rejected the read token, or requires one. */
export const tokenRefused = signal(false);
/** Next reconnect of a broken event stream, in unix seconds by this page's clock; null: not broken. */
export const retryAt = signal<number | null>(null);
/** The last request got a response from the monitor, possibly an error; a missing stream is then not a lost connection. */
export const responding = signal(false);
/** Time of the last response or event of the monitor, by `now`. */
export const lastContact = signal<number | null>(null);
/** Unix seconds by the monitor's clock, ticking once a second. */
export const now = signal(Date.now() / 1000);

/** Shorter interruptions are not shown. */
const NOTICEABLE_CHANGE_S = 3;

/** Seconds without contact to the monitor, once long enough to be shown; else null. */
export const disconnectedFor = computed(() => {
  if (retryAt.value === null || lastContact.value === null || responding.value) return null;
  const seconds = now.value - lastContact.value;
  return seconds >= NOTICEABLE_CHANGE_S ? seconds : null;
});

/** The time that the figures refer to: now, or the last contact while disconnected, so that ages and durations stop growing. */
export const asOf = computed(() => (disconnectedFor.value === null ? now.value : lastContact.value!));

let offset = 0;

function exactNow(): number {
  return Date.now() / 1000 + offset;
}

export function markContact(): void {
  lastContact.value = exactNow();
}

/** Take the monitor's clock from a Date header: ages would be wrong where the browser's clock is. */
export function serverTime(date: string | null): void {
  if (date === null) return;
  const difference = Date.parse(date) / 1000 - Date.now() / 1000;
  // The header has a resolution of one second.
  if (Number.isFinite(difference)) offset = Math.abs(difference) < 2 ? 0 : difference;
}

export function startClock(): void {
  setInterval(() => (now.value = exactNow()), 1000);
}
