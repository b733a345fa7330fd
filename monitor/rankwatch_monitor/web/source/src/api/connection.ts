// State of the connection to the monitor, and the current time by the monitor's clock.

import { computed, signal } from "@preact/signals";
import { ServerClock, type Stale } from "../logic/serverclock";
import type { Clock } from "./types";

/** The monitor rejected the read token, or requires one. */
export const tokenRefused = signal(false);
/** The monitor's message about a token that was given and rejected. */
export const tokenRejection = signal<string | null>(null);
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
const TICK_MS = 250;

const server = new ServerClock();
/** What the monitor's clock events show. */
const seen = signal<Stale | null>(null);

/** Since when the figures are not current; null: they are. */
export const stale = computed<Stale | null>(() => {
  if (seen.value !== null) return seen.value;
  if (retryAt.value === null || lastContact.value === null || responding.value) return null;
  return now.value - lastContact.value >= NOTICEABLE_CHANGE_S ? { since: lastContact.value, answering: false } : null;
});

/**
 * The time that the figures refer to, as the header shows it, in whole seconds: now, or the last contact while disconnected, so that ages
 * and durations stop growing.
 */
export const asOf = computed(() => Math.floor(stale.value?.since ?? now.value));

let offset = 0;

/** Unix seconds by the monitor's clock. */
export function exactNow(): number {
  return server.known ? server.at(performance.now()) : Date.now() / 1000 + offset;
}

export function markContact(): void {
  lastContact.value = exactNow();
}

/** An event stream was opened, or sent an event. */
export function markStream(opened: boolean): void {
  if (opened) server.restart(performance.now());
  else server.alive(performance.now());
  markContact();
  look();
}

export function takeClock(event: Clock): void {
  server.take(event, performance.now());
  now.value = exactNow();
  look();
}

/** The monitor refuses the stream: no clock events are to be expected. */
export function expectNoClock(): void {
  server.forget();
  look();
}

/** Take the monitor's clock from a Date header: ages would be wrong where the browser's clock is. */
export function serverTime(date: string | null): void {
  if (date === null) return;
  const difference = Date.parse(date) / 1000 - Date.now() / 1000;
  // The header has a resolution of one second.
  if (Number.isFinite(difference)) offset = Math.abs(difference) < 2 ? 0 : difference;
}

function look(): void {
  const found = server.stale(performance.now());
  if (found?.since !== seen.peek()?.since || found?.answering !== seen.peek()?.answering) seen.value = found;
}

export function startClock(): void {
  setInterval(look, TICK_MS);
  setInterval(() => (now.value = exactNow()), 1000);
  document.addEventListener("visibilitychange", look);
}
