// Whether the monitor is there, and what time it is by its clock.

import { computed, signal } from "@preact/signals";

/** The monitor wants a token, or another one. */
export const tokenRefused = signal(false);
/** The event stream is broken; unix seconds of the next try by this page's clock, else null. */
export const retryAt = signal<number | null>(null);
/** The monitor has answered what it was asked last, be it with a refusal: then its stream is missing for that reason. */
export const responding = signal(false);
/** When anything was last markContact of the monitor, by `now`. */
export const lastContact = signal<number | null>(null);
/** Unix seconds by the monitor's clock, ticking once a second. */
export const now = signal(Date.now() / 1000);

/** Short breaks mend themselves; telling of them would only startle. */
const NOTICEABLE_CHANGE_S = 3;

/** For how long nothing was markContact of the monitor, once that is worth telling. */
export const disconnectedFor = computed(() => {
  if (retryAt.value === null || lastContact.value === null || responding.value) return null;
  const seconds = now.value - lastContact.value;
  return seconds >= NOTICEABLE_CHANGE_S ? seconds : null;
});

/** The moment that the figures speak of: now, or the last word of a monitor that is away. Nothing is told to go on then. */
export const asOf = computed(() => (disconnectedFor.value === null ? now.value : lastContact.value!));

let offset = 0;

function exactNow(): number {
  return Date.now() / 1000 + offset;
}

export function markContact(): void {
  lastContact.value = exactNow();
}

/** Learn the monitor's clock from a Date header: ages would lie when the reader's own clock is wrong. */
export function serverTime(date: string | null): void {
  if (date === null) return;
  const difference = Date.parse(date) / 1000 - Date.now() / 1000;
  // The header has whole seconds, so less than two is agreement.
  if (Number.isFinite(difference)) offset = Math.abs(difference) < 2 ? 0 : difference;
}

export function startClock(): void {
  setInterval(() => (now.value = exactNow()), 1000);
}
