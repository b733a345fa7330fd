// Layout of the section timeline: one lane per rank, one column per step, nested sections below each other.

import type { RankLane, SectionTimeline } from "../api/types";
import { runs } from "./text";

/** CSS pixels. */
export const ROW = 17;
const LANE_GAP = 9;
const STEP_GAP = 14;
const NARROWEST = 1.5;
/** Sections nested deeper than this are drawn on the last row. */
const DEEPEST = 5;

export interface Placed {
  lane: number;
  step: number;
  section: number;
  depth: number;
  x: number;
  y: number;
  width: number;
  seconds: number;
}

export interface Column {
  iteration: number;
  x: number;
  width: number;
  /** Duration of the slowest rank, which is the width of the column. */
  seconds: number;
}

export interface Lanes {
  columns: Column[];
  spans: Placed[];
  /** Top of each lane. */
  tops: number[];
  laneHeight: number;
  height: number;
  /** Steps without spans of a rank: not reached, or dropped. */
  missing: { lane: number; step: number }[];
}

/** Columns by step number; each lane starts with the rank's own first span, since hosts' clocks differ. */
export function lanes(timeline: SectionTimeline, width: number): Lanes {
  const iterations = [...new Set(timeline.ranks.flatMap((lane) => lane.steps.map((step) => step.iteration)))].sort((a, b) => a - b);
  const longest = iterations.map((iteration) => Math.max(1e-9, ...timeline.ranks.map((lane) => stepOf(lane, iteration)?.seconds ?? 0)));
  const scale = Math.max(1, width - STEP_GAP * Math.max(0, iterations.length - 1)) / Math.max(1e-9, longest.reduce((a, b) => a + b, 0));
  const columns: Column[] = [];
  let x = 0;
  iterations.forEach((iteration, i) => {
    columns.push({ iteration, x, width: longest[i]! * scale, seconds: longest[i]! });
    x += longest[i]! * scale + STEP_GAP;
  });
  const depths = timeline.ranks.flatMap((lane) => lane.steps.flatMap((step) => step.spans.map(([, depth]) => Math.min(DEEPEST, depth))));
  const laneHeight = (1 + Math.max(0, ...depths)) * ROW;
  const placed: Lanes = { columns, spans: [], tops: [], laneHeight, height: timeline.ranks.length * (laneHeight + LANE_GAP), missing: [] };
  timeline.ranks.forEach((rank, lane) => {
    const top = lane * (laneHeight + LANE_GAP);
    placed.tops.push(top);
    columns.forEach((column, step) => {
      const spans = stepOf(rank, column.iteration)?.spans;
      if (!spans) placed.missing.push({ lane, step });
      for (const [section, depth, start, seconds] of spans ?? []) {
        placed.spans.push({
          lane, step, section, depth, seconds,
          x: column.x + start * scale,
          y: top + Math.min(DEEPEST, depth) * ROW,
          width: Math.max(NARROWEST, seconds * scale),
        });
      }
    });
  });
  return placed;
}

function stepOf(lane: RankLane, iteration: number) {
  return lane.steps.find((step) => step.iteration === iteration);
}

/** The innermost span under a point; its index, or null. */
export function spanAt(placed: Lanes, x: number, y: number): number | null {
  for (let i = placed.spans.length - 1; i >= 0; i--) {
    const span = placed.spans[i]!;
    if (x >= span.x - 1 && x < span.x + span.width + 1 && y >= span.y && y < span.y + ROW) return i;
  }
  return null;
}

/** The span selected by an arrow key: the next in the lane, or the same section in the lane above or below. */
export function beside(placed: Lanes, from: number, key: string): number {
  const here = placed.spans[from]!;
  if (key === "ArrowLeft" || key === "ArrowRight") {
    const next = from + (key === "ArrowLeft" ? -1 : 1);
    return placed.spans[next]?.lane === here.lane ? next : from;
  }
  const lane = here.lane + (key === "ArrowUp" ? -1 : 1);
  const there = placed.spans.map((span, i) => ({ span, i })).filter(({ span }) => span.lane === lane);
  const cost = (span: Placed) => (span.section === here.section ? 0 : 1e6) + (span.step === here.step ? 0 : 1e5) + Math.abs(span.x - here.x);
  return there.sort((a, b) => cost(a.span) - cost(b.span))[0]?.i ?? from;
}

/** Seconds of a section within one step of one rank, all its entries together. */
export function total(placed: Lanes, lane: number, step: number, section: number): number {
  return placed.spans.filter((span) => span.lane === lane && span.step === step && span.section === section).reduce((sum, span) => sum + span.seconds, 0);
}

export function median(values: readonly number[]): number {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted.length === 0 ? 0 : (sorted[(sorted.length - 1) >> 1]! + sorted[sorted.length >> 1]!) / 2;
}

export interface Sums {
  /** Indices of the longest sections, longest first. */
  sections: number[];
  /** Seconds per step by lane and position in `sections`; null: the rank did not enter it. */
  seconds: (number | null)[][];
  medians: number[];
}

/** Mean seconds per step of each section over the steps shown. */
export function sums(timeline: SectionTimeline, most: number): Sums {
  const byLane = timeline.ranks.map((lane) => {
    const found = new Map<number, number>();
    for (const step of lane.steps) for (const [section, , , seconds] of step.spans) found.set(section, (found.get(section) ?? 0) + seconds / lane.steps.length);
    return found;
  });
  const column = (section: number) => byLane.flatMap((found) => found.get(section) ?? []);
  const sections = timeline.sections.map((_, i) => i).filter((i) => column(i).length > 0).sort((a, b) => median(column(b)) - median(column(a))).slice(0, most);
  return {
    sections,
    seconds: byLane.map((found) => sections.map((section) => found.get(section) ?? null)),
    medians: sections.map((section) => median(column(section))),
  };
}

/** Ranks in the syntax of the API: "0,8-10". */
export function written(ranks: readonly number[]): string {
  return runs(ranks, Number.POSITIVE_INFINITY).replaceAll("–", "-").replaceAll(" ", "");
}

/** Number of section colours; they repeat. */
const TONES = 8;

export function sectionTone(section: number): string {
  return `series-${1 + (section % TONES)}`;
}
