// History samples as columns of a chart: nulls for gaps, stacked areas.

import type { HistorySample } from "../api/types";

export interface Line {
  name: string;
  /** The name of its colour in CSS, without its dashes. */
  tone: string;
  values: readonly (number | null)[];
  /** An area on top of the ones that follow it; areas come first. */
  stack?: boolean;
  dashed?: boolean;
  /** The name of a colour to fill the ground under it with. */
  fill?: string;
}

/** The parts of a step, from the lowest area up. */
const PARTS: readonly (readonly [string, string])[] = [
  ["compute", "series-1"], ["host", "series-2"], ["data", "series-3"], ["communication", "series-4"],
];
/** Missing samples beyond this many sample lengths are a gap in the lines. */
const GAP = 3;

/** Where each line is drawn: an area lies on those that follow it in the list. */
export function stacked(lines: readonly Line[]): (number | null)[][] {
  const drawn = lines.map((line) => [...line.values]);
  for (let i = lines.length - 2; i >= 0; i--) {
    if (!lines[i]!.stack || !lines[i + 1]!.stack) continue;
    drawn[i] = drawn[i]!.map((value, at) => (value === null ? null : value + (drawn[i + 1]![at] ?? 0)));
  }
  return drawn;
}

export interface StepChart {
  time: number[];
  lines: Line[];
}

/** The step time and its parts. Parts without any value have no line. */
export function stepChart(samples: readonly HistorySample[]): StepChart {
  const rows = withGaps(samples);
  const column = (of: (sample: HistorySample) => number | null | undefined) => rows.map(({ sample }) => (sample === null ? null : of(sample) ?? null));
  const measured = PARTS.filter(([part]) => samples.some((sample) => sample.parts[part] !== undefined));
  return {
    time: rows.map(({ at }) => at),
    lines: [
      ...[...measured].reverse().map(([part, tone]) => ({ name: part, tone, values: column((sample) => sample.parts[part]), stack: true })),
      { name: "slowest rank", tone: "quiet", values: column((sample) => sample.step_max), dashed: true },
      { name: "step, median rank", tone: "text", values: column((sample) => sample.step) },
    ],
  };
}

function withGaps(samples: readonly HistorySample[]): { at: number; sample: HistorySample | null }[] {
  const rows: { at: number; sample: HistorySample | null }[] = [];
  for (const sample of samples) {
    const before = rows.at(-1);
    if (before && sample.at - before.at > Math.max(30, GAP * sample.seconds)) rows.push({ at: before.at + 1, sample: null });
    rows.push({ at: sample.at, sample });
  }
  return rows;
}
