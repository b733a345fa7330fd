// The time zone that times are shown in: the browser's own, or UTC.

import { signal } from "@preact/signals";

export type Zone = "local" | "utc";

const KEY = "rankwatch.zone";

export const zone = signal<Zone>(globalThis.localStorage?.getItem(KEY) === "utc" ? "utc" : "local");

export function chooseZone(chosen: Zone): void {
  zone.value = chosen;
  globalThis.localStorage?.setItem(KEY, chosen);
}

/** For Intl; empty: the browser's own zone. */
export function inZone(): { timeZone?: string } {
  return zone.value === "utc" ? { timeZone: "UTC" } : {};
}

/** The browser's own zone. */
export function localName(at: Date): string {
  const minutes = -at.getTimezoneOffset();
  if (minutes === 0) return "UTC";
  const [hours, rest] = [Math.trunc(Math.abs(minutes) / 60), Math.abs(minutes) % 60];
  return `UTC${minutes < 0 ? "-" : "+"}${hours}${rest === 0 ? "" : `:${String(rest).padStart(2, "0")}`}`;
}
