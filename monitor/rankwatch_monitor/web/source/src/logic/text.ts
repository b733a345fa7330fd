// Formatting of numbers, times and names.

import { inZone } from "./zone";

const THIN = "\u2009";

/** A duration with at most two units. */
export function duration(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "–";
  const s = Math.max(0, seconds);
  if (s < 0.0005) return `0${THIN}s`;
  if (s < 0.9995) return `${Math.round(s * 1000)}${THIN}ms`;
  // A decimal up to a minute: limits of 10 s are passed by fractions.
  if (s < 59.95) return `${s.toFixed(1)}${THIN}s`;
  return inUnits(Math.round(s));
}

/** A limit: a setting, or one learned, without decimals that are zero: "10 s", "10.4 s". */
export function limitText(seconds: number | null | undefined): string {
  return duration(seconds).replace(/\.0(?=\D)/, "");
}

/** Seconds of a step, as the monitor's sentences have them: "1.20 s", "312 ms", "4.5 ms". */
export function ofStep(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "–";
  const digits = digitsOfStep(seconds);
  return digits === 2 ? `${seconds.toFixed(2)}${THIN}s` : `${(1000 * seconds).toFixed(digits - 3)}${THIN}ms`;
}

const digitsOfStep = (seconds: number): number => (seconds >= 0.9995 ? 2 : seconds >= 0.00995 ? 3 : 4);

/** A duration of any size in three digits: "12.3 µs", "1.25 ms". */
export function fine(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "–";
  const [unit, name] = ([[1, "s"], [1e-3, "ms"], [1e-6, "µs"]] as const).find(([each]) => seconds >= 0.9995 * each) ?? [1e-9, "ns"];
  const scaled = seconds / unit;
  return `${scaled >= 99.95 ? Math.round(scaled) : Number(scaled.toPrecision(3))}${THIN}${name}`;
}

/**
 * The same in whole seconds, for what goes on. Up to the page's clock, which has whole seconds, it is the difference of the two times as
 * the page shows them: both are rounded down.
 */
export function wholeDuration(seconds: number): string {
  return inUnits(Math.max(0, Math.ceil(seconds - 0.001)));
}

function inUnits(s: number): string {
  if (s < 60) return `${s}${THIN}s`;
  const [unit, big, small] = s < 3600 ? [60, "min", "s"] : s < 86_400 ? [3600, "h", "min"] : [86_400, "d", "h"];
  const rest = Math.floor((s % unit) / (unit === 60 ? 1 : unit === 3600 ? 60 : 3600));
  const whole = `${Math.floor(s / unit)}${THIN}${big}`;
  return rest === 0 ? whole : `${whole} ${rest}${THIN}${small}`;
}

/** The larger unit alone: "12 min", "3 h". */
export function roughly(seconds: number): string {
  return wholeDuration(seconds).replace(/ .*/, "");
}

/** Whole seconds from one moment to another, as the clocks beside them show it: from 14:01:15 to 14:01:40 it is 25 s. */
export const elapsed = (then: number, now: number): number => Math.max(0, Math.floor(now) - Math.floor(then));

/** "12 min ago", from unix seconds. */
export function ago(then: number | null, now: number): string {
  if (then === null) return "–";
  return elapsed(then, now) < 1 ? "just now" : `${wholeDuration(elapsed(then, now))} ago`;
}

function timeOfDay(at: Date): string {
  return at.toLocaleTimeString("en-GB", { hour12: false, ...inZone() });
}

/** Wall-clock time in the chosen time zone; with the date if it is not today. */
export function clock(then: number | null, now: number): string {
  if (then === null) return "–";
  const date = new Date(then * 1000);
  const time = timeOfDay(date);
  const day = (at: Date) => at.toLocaleDateString("en-GB", { day: "numeric", month: "short", ...inZone() });
  return now - then < 86_400 && day(date) === day(new Date(now * 1000)) ? time : `${day(date)} ${time.slice(0, 5)}`;
}

/** "a", "a and b", "a, b and c". */
export function listed(items: readonly string[]): string {
  return items.length < 2 ? items.join("") : `${items.slice(0, -1).join(", ")} and ${items.at(-1)}`;
}

export function count(value: number | null | undefined): string {
  return value === null || value === undefined ? "–" : value.toLocaleString("en-US");
}

export const capital = (text: string): string => text.charAt(0).toUpperCase() + text.slice(1);

export function plural(n: number, one: string, many = `${one}s`): string {
  return `${count(n)} ${n === 1 ? one : many}`;
}

/** Steps per second; below 0.1 as seconds per step. */
export function rate(perSecond: number | null): { value: string; unit: string } {
  if (perSecond === null) return { value: "–", unit: "steps/s" };
  if (perSecond > 0 && perSecond < 0.1) return { value: (1 / perSecond).toFixed(1), unit: "s/step" };
  return { value: perSecond >= 100 ? perSecond.toFixed(0) : perSecond >= 10 ? perSecond.toFixed(1) : perSecond.toFixed(2), unit: "steps/s" };
}

/** "2.38 steps/s", "12.5 s/step". */
export function speedText(perSecond: number | null): string {
  const { value, unit } = rate(perSecond);
  return perSecond === null ? value : `${value}${THIN}${unit}`;
}

/** What ranks cost, one GPU each, from seconds: "3.6 GPU-minutes", "1.25 GPU-hours"; three digits are enough to order by. */
export function gpuTime(seconds: number): string {
  if (seconds < 3597) return `${(seconds / 60).toFixed(1)}${THIN}GPU-minutes`;
  const hours = seconds / 3600;
  const digits = hours >= 99.95 ? 0 : hours >= 9.995 ? 1 : 2;
  return `${hours.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits })}${THIN}GPU-hours`;
}

export function percent(fraction: number | null): string {
  return fraction === null ? "–" : `${(fraction * 100).toFixed(1)}${THIN}%`;
}

/** A share that is measured roughly, as the ranks' waiting is: "27 %". */
export function wholePercent(fraction: number | null): string {
  return fraction === null ? "–" : `${Math.round(fraction * 100)}${THIN}%`;
}

/** Any number in four digits: "2.184", "125.4k", "3.25e-5". */
export function figure(value: number | null): string {
  if (value === null) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 0.001 || size >= 1e15)) return value.toExponential(2).replace(/\.?0+e/, "e");
  const [unit, name] = ([[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e4, "k"]] as const).find(([each]) => size >= each) ?? [1, ""];
  const scaled = value / (name === "k" ? 1e3 : unit);
  return `${Number(scaled.toPrecision(4))}${name}`;
}

/** A multiple: "0.53×", "12×". */
export function times(multiple: number | null): string {
  return multiple === null ? "–" : `${multiple >= 9.995 ? count(Math.round(multiple)) : multiple.toFixed(2)}×`;
}

/** "88 °C". */
export const celsius = (value: number | null): string => (value === null ? "–" : `${Math.round(value)}${THIN}°C`);

/** "1.98 GHz". */
export function hertz(value: number | null): string {
  return value === null ? "–" : `${(value / 1e9).toFixed(2)}${THIN}GHz`;
}

/** Bytes a second in powers of ten, as NCCL's tests have it: "43 GB/s", "1.6 MB/s". */
export function bandwidth(value: number | null): string {
  if (value === null) return "–";
  const [unit, name] = ([[1e9, "GB/s"], [1e6, "MB/s"]] as const).find(([each]) => value >= each) ?? [1e3, "kB/s"];
  return `${Number((value / unit).toPrecision(value / unit < 10 ? 2 : 3))}${THIN}${name}`;
}

/** A label on an axis of speed. */
export function perSecond(value: number | null): string {
  return value === null ? "–" : `${figure(value)}/s`;
}

/** The smallest and the largest of some values as a text: "61–64", or "63" where both read the same; empty: none is known. */
export function range(values: readonly (number | null | undefined)[], text: (value: number) => string): string {
  const known = values.filter((value) => value != null);
  if (known.length === 0) return "";
  const [least, most] = [text(Math.min(...known)), text(Math.max(...known))];
  return least === most ? least : `${least}–${most}`;
}

/** "section_overrun" -> "section overrun". */
export function words(name: string): string {
  return name.replaceAll("_", " ");
}

/** Ranks as runs: [0, 1, 2, 5] -> "0–2, 5". Shortened after `most` runs. */
export function runs(ranks: readonly number[], most = 6): string {
  const sorted = [...ranks].sort((a, b) => a - b);
  const parts: string[] = [];
  for (let i = 0; i < sorted.length; ) {
    let j = i;
    while (j + 1 < sorted.length && sorted[j + 1] === sorted[j]! + 1) j++;
    parts.push(j - i >= 2 ? `${sorted[i]}–${sorted[j]}` : sorted.slice(i, j + 1).join(", "));
    i = j + 1;
  }
  return parts.length > most ? `${parts.slice(0, most).join(", ")}, …` : parts.join(", ");
}
