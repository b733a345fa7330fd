// The time axis that all charts of a job share: the last so many seconds, from one moment to another, or the whole run.

import type { Incident, Trends } from "../api/types";

export type Range = { last: number } | { from: number; to: number } | "all";

export const PRESETS: readonly (readonly [string, string, Range])[] = [
  ["15m", "15 min", { last: 900 }],
  ["1h", "1 h", { last: 3600 }],
  ["6h", "6 h", { last: 21_600 }],
  ["24h", "24 h", { last: 86_400 }],
  ["7d", "7 d", { last: 604_800 }],
  ["all", "Whole run", "all"],
];
export const USUAL: Range = PRESETS[1]![2];
/** Seconds on the axis at least. */
const SHORTEST = 10;
/** A live axis moves on in as many steps as there are pixels, so that it is not drawn more often than it changes. */
const PIXELS = 1000;

/** The range of an address: "6h", "all", "1700000000-1700003600"; null: none. */
export function parseRange(text: string): Range | null {
  const preset = PRESETS.find(([name]) => name === text);
  if (preset) return preset[2];
  const [, from, to] = /^(\d{1,12})-(\d{1,12})$/.exec(text) ?? [];
  return from !== undefined && Number(to) - Number(from) >= SHORTEST ? { from: Number(from), to: Number(to) } : null;
}

/** The range as an address has it; empty: the usual one. */
export function rangeText(range: Range): string {
  if (sameRange(range, USUAL)) return "";
  const preset = PRESETS.find(([, , each]) => sameRange(range, each));
  if (preset) return preset[0];
  return typeof range === "object" && "from" in range ? `${range.from}-${range.to}` : "";
}

export function sameRange(one: Range, other: Range): boolean {
  return JSON.stringify(one) === JSON.stringify(other);
}

/** Whether the axis ends at the present. */
export const isLive = (range: Range): boolean => range === "all" || "last" in range;

/** The range that the axis has: all, where it would begin before the job did. */
export function shownRange(range: Range, started: number | null, end: number): Range {
  return typeof range === "object" && "last" in range && started !== null && Math.max(60, end - started) < range.last ? "all" : range;
}

/** First and last second on the axis. `end` is now, or when the job ended. No part of it is before the job's start. */
export function bounds(range: Range, started: number | null, end: number): [number, number] {
  if (typeof range === "object" && "from" in range) return [range.from, range.to];
  if (shownRange(range, started, end) !== range) return bounds("all", started, end);
  const lived = Math.max(60, end - (started ?? end - 3600));
  const length = range === "all" ? lived : range.last;
  const each = Math.max(1, Math.round(length / PIXELS));
  const to = Math.ceil(end / each) * each;
  return [range === "all" ? to - length - (to - end) : to - length, to];
}

/** Whole seconds from one moment to another, at least the shortest axis around their middle. */
export function between(from: number, to: number): { from: number; to: number } {
  const [first, last] = from < to ? [from, to] : [to, from];
  const middle = (first + last) / 2;
  const half = Math.max((last - first) / 2, SHORTEST / 2);
  return { from: Math.max(0, Math.floor(middle - half)), to: Math.ceil(middle + half) };
}

/** The axis moved by a share of its length. */
export function panned([from, to]: readonly [number, number], share: number): Range {
  const by = (to - from) * share;
  return between(from + by, to + by);
}

/** The axis with another length; the moment `at` stays where it is. */
export function zoomed([from, to]: readonly [number, number], factor: number, at: number = (from + to) / 2): Range {
  return between(at - (at - from) * factor, at + (to - at) * factor);
}

/** An incident from its last progress to the first new step. */
export interface Stood {
  item: Incident;
  from: number;
  to: number;
}

/** When ranks stood still for incidents, in their order. */
export function stood(incidents: readonly Incident[], now: number): Stood[] {
  return incidents.map((item) => ({
    item, from: item.timeline.since ?? item.timeline.detected ?? item.opened_at, to: item.timeline.first_step ?? item.closed_at ?? now,
  })).sort((a, b) => a.from - b.from);
}

/** From before the first incident to after the last of those shown, with this share of that time around them. */
const AROUND = 0.25;

/** The time around the incidents shown, where they take less than a third of the axis; null: they take more, or there are none. */
export function incidentRange(each: readonly Stood[], [from, to]: readonly [number, number]): Range | null {
  const seen = each.filter((one) => one.to >= from && one.from <= to);
  if (seen.length === 0) return null;
  const [first, last] = [Math.max(from, seen[0]!.from), Math.min(to, Math.max(...seen.map((one) => one.to)))];
  const closer = between(first - AROUND * (last - first), last + AROUND * (last - first));
  return 2 * (closer.to - closer.from) < to - from ? closer : null;
}

export interface AttemptMark {
  attempt: number;
  from: number;
  to: number;
}

/** The attempts that began within the points, and until when each lasted. An incident knows the moment of its restart, a point only that it was before. */
export function attemptMarks({ at, attempt }: Pick<Trends, "at" | "attempt">, started: number | null, end: number, incidents: readonly Pick<Incident, "timeline">[] = []): AttemptMark[] {
  const restarts = incidents.flatMap(({ timeline }) => timeline.restarted ?? []);
  const marks: AttemptMark[] = [];
  for (let i = 0; i < at.length; i++) {
    const known = attempt[i];
    if (known === undefined || known === null || known === marks.at(-1)?.attempt) continue;
    const before = marks.at(-1);
    const last = at.findLast((_, j) => j < i && attempt[j] === before?.attempt) ?? 0;
    const began = restarts.find((each) => each > last && each <= at[i]!) ?? at[i]!;
    if (before) before.to = began;
    // What ran before the first point began at an unknown time, unless the job did.
    const from = before ? began : started !== null && at[i]! - started < 120 ? started : -1;
    marks.push({ attempt: known, from, to: end });
  }
  return marks.filter((mark) => mark.from >= 0);
}

export interface Placed<T> {
  /** More than one where they are too close to be told apart. */
  items: T[];
  from: number;
  to: number;
  /** In percent of the axis. */
  left: number;
  width: number;
  /** Space for words until the next one begins, in percent. */
  room: number;
}

/** Place what lies on the axis; what begins within `closest` percent of the one before joins it. */
export function placed<T>(items: readonly { from: number; to: number; item: T }[], [from, to]: readonly [number, number], closest = 1.6): Placed<T>[] {
  const percent = (time: number) => (100 * (Math.min(to, Math.max(from, time)) - from)) / (to - from);
  const found: Placed<T>[] = [];
  for (const each of [...items].sort((a, b) => a.from - b.from)) {
    if (each.to < from || each.from > to) continue;
    const left = percent(each.from);
    const last = found.at(-1);
    if (last && left - last.left < closest) {
      last.items.push(each.item);
      last.to = Math.max(last.to, each.to);
      last.width = percent(last.to) - last.left;
    } else found.push({ items: [each.item], from: each.from, to: each.to, left, width: percent(each.to) - left, room: 100 - left });
  }
  found.forEach((each, i) => {
    const next = found[i + 1];
    if (next) each.room = next.left - each.left;
  });
  return found;
}
