// Layout of the section timeline: one lane per rank, one column per step, nested sections below each other; its zoom; and the time in
// collectives.

import type { RankLane, RankStep, SectionTimeline } from "../api/types";
import { PARTS, sectionTone } from "./parts";
import { runs } from "./text";

/** CSS pixels. */
export const ROW = 17;
const LANE_GAP = 9;
const STEP_GAP = 14;
const NARROWEST = 1.5;
/** Sections nested deeper than this are drawn on the last row. */
const DEEPEST = 5;
/** Seconds to which the API rounds. */
const ROUNDING = 2e-6;
/** Seconds that are shown as 0. */
const NOTHING = 0.0005;

/** Why there is nothing to draw, then what to check. `profiled`: only steps with known waiting were asked for. */
export function absence({ sampled, no_waits, no_sections }: Pick<SectionTimeline, "sampled" | "no_waits" | "no_sections">, profiled: boolean): string[] {
  return profiled && sampled.length > 0 ? [`No step with known waiting is kept: ${no_waits}.`] : no_sections;
}

export interface Placed {
  lane: number;
  step: number;
  section: number;
  depth: number;
  x: number;
  y: number;
  width: number;
  /** Since the step began. */
  start: number;
  seconds: number;
  /** Part of it is time in collectives. */
  waits: boolean;
  /** The share of it before that begins, from 0 to 1. */
  clear: number;
}

export interface Column {
  iteration: number;
  /** Unix seconds at which the first rank began it. */
  began: number;
  x: number;
  width: number;
  /** Duration of the slowest rank, which is the width of the column. */
  seconds: number;
  /** Ranks whose time in collectives is known. */
  measured: number;
}

/** Waiting in collectives, or the transfer, on the row of the innermost section that was open. */
export interface Wait {
  lane: number;
  x: number;
  y: number;
  width: number;
  /** It is the transfer, not waiting for others. */
  transfer: boolean;
}

export interface Lanes {
  columns: Column[];
  spans: Placed[];
  waits: Wait[];
  /** Top of each lane. */
  tops: number[];
  laneHeight: number;
  height: number;
  /** Steps without spans of a rank: not reached, or dropped. */
  missing: { lane: number; step: number }[];
  /** Steps with spans of a rank whose waiting was not measured, while that of another rank was. */
  unmeasured: { lane: number; step: number }[];
}

/** The lanes of these ranks first, in their order, then those of their nodes; the others as they are. */
export function led(timeline: SectionTimeline, first: readonly number[]): SectionTimeline {
  const hosts = new Set(timeline.ranks.flatMap(({ rank, host }) => (first.includes(rank) ? [host] : [])));
  const place = ({ rank, host }: RankLane) => (first.includes(rank) ? first.indexOf(rank) : first.length + Number(!hosts.has(host)));
  return { ...timeline, ranks: [...timeline.ranks].sort((a, b) => place(a) - place(b)) };
}

/** Columns by step number; each lane starts with the rank's own first span, since hosts' clocks differ. */
export function lanes(timeline: SectionTimeline, width: number): Lanes {
  const iterations = [...new Set(timeline.ranks.flatMap((lane) => lane.steps.map((step) => step.iteration)))].sort((a, b) => a - b);
  const longest = iterations.map((iteration) => Math.max(1e-9, ...timeline.ranks.map((lane) => stepOf(lane, iteration)?.seconds ?? 0)));
  const scale = Math.max(1, width - STEP_GAP * Math.max(0, iterations.length - 1)) / Math.max(1e-9, longest.reduce((a, b) => a + b, 0));
  const columns: Column[] = [];
  let x = 0;
  iterations.forEach((iteration, i) => {
    const measured = timeline.ranks.filter((lane) => waited(stepOf(lane, iteration)) !== null).length;
    const began = Math.min(...timeline.ranks.flatMap((lane) => stepOf(lane, iteration)?.began ?? []));
    columns.push({ iteration, began, x, width: longest[i]! * scale, seconds: longest[i]!, measured });
    x += longest[i]! * scale + STEP_GAP;
  });
  const steps = timeline.ranks.flatMap((lane) => lane.steps);
  const rows = 1 + Math.max(0, ...steps.flatMap((step) => step.spans.map(([, depth]) => Math.min(DEEPEST, depth))));
  // Sections that only contain others, such as the step, are not drawn where these are.
  const first = rows > 1 && steps.every(({ spans }) => spans.every((span) => span[1] > 0 || within(span, spans).length > 0)) ? 1 : 0;
  const down = (depth: number) => Math.max(0, Math.min(DEEPEST, depth) - first) * ROW;
  const laneHeight = (rows - first) * ROW;
  const placed: Lanes = { columns, spans: [], waits: [], tops: [], laneHeight, height: timeline.ranks.length * (laneHeight + LANE_GAP), missing: [], unmeasured: [] };
  timeline.ranks.forEach((rank, lane) => {
    const top = lane * (laneHeight + LANE_GAP);
    placed.tops.push(top);
    columns.forEach((column, step) => {
      const { spans, waits } = stepOf(rank, column.iteration) ?? {};
      if (!spans) placed.missing.push({ lane, step });
      else if (waits === null && column.measured > 0) placed.unmeasured.push({ lane, step });
      const stretches = inSections(waits ?? [], spans ?? []);
      const parted = divided(waits ?? [], leastWaited(timeline, column.iteration));
      for (const [section, depth, start, seconds] of spans ?? []) {
        if (depth < first) continue;
        const inside = stretches.filter(([from, to, deep]) => deep === depth && from < start + seconds - ROUNDING && to > start + ROUNDING);
        placed.spans.push({
          lane, step, section, depth, start, seconds,
          x: column.x + start * scale,
          y: top + down(depth),
          width: Math.max(NARROWEST, seconds * scale),
          waits: inside.length > 0,
          clear: inside.length === 0 || seconds <= 0 ? 1 : Math.max(0, (inside[0]![0] - start) / seconds),
        });
      }
      for (const transfer of [false, true]) {
        for (const [from, to, depth] of inSections(parted[Number(transfer)]!, spans ?? [])) {
          placed.waits.push({ lane, x: column.x + from * scale, y: top + down(depth), width: (to - from) * scale, transfer });
        }
      }
    });
  });
  return placed;
}

type Waits = NonNullable<RankStep["waits"]>;

/** Seconds in collectives of the rank that waits least in a step, which is the transfer: it arrives last. 0: not known of two ranks. */
export function leastWaited({ ranks }: SectionTimeline, iteration: number): number {
  const known = ranks.flatMap((lane) => waited(stepOf(lane, iteration)) ?? []);
  return known.length > 1 ? Math.min(...known) : 0;
}

/** Stretches in collectives as waiting for others and, at their ends, the transfer, which takes so many seconds in all. */
export function divided(waits: Waits, transfer: number): [waiting: Waits, transfer: Waits] {
  const whole = waits.reduce((sum, [, seconds]) => sum + seconds, 0);
  const share = whole > 0 ? Math.min(1, transfer / whole) : 0;
  return [waits.map(([start, seconds]) => [start, seconds * (1 - share)]), waits.map(([start, seconds]) => [start + seconds * (1 - share), seconds * share])];
}

/** The waits in seconds from and to, cut where sections begin and end, with the depth of the innermost one: 0 outside of all. */
export function inSections(waits: Waits, spans: RankStep["spans"]): [from: number, to: number, depth: number][] {
  const edges = spans.flatMap(([, , start, seconds]) => [start, start + seconds]);
  return waits.flatMap(([start, seconds]) => {
    const cuts = [start, ...edges.filter((edge) => edge > start && edge < start + seconds).sort((a, b) => a - b), start + seconds];
    const found: [number, number, number][] = [];
    for (let i = 0; i + 1 < cuts.length; i++) {
      const [from, to] = [cuts[i]!, cuts[i + 1]!];
      const middle = (from + to) / 2;
      const depth = Math.max(0, ...spans.filter(([, , begin, each]) => begin <= middle && middle < begin + each).map(([, deep]) => deep));
      const last = found.at(-1);
      if (last && last[1] === from && last[2] === depth) last[1] = to;
      else if (to > from + ROUNDING) found.push([from, to, depth]);
    }
    return found;
  });
}

/** Seconds in collectives of one step; null: not measured. */
export function waited(step: RankStep | undefined, from = Number.NEGATIVE_INFINITY, to = Number.POSITIVE_INFINITY): number | null {
  if (!step || step.waits === null) return null;
  return step.waits.reduce((sum, [start, seconds]) => sum + Math.max(0, Math.min(to, start + seconds) - Math.max(from, start)), 0);
}

/** The shown part of the whole width: from and to, 0 to 1. */
export type View = readonly [number, number];
export const WHOLE: View = [0, 1];
/** The smallest part that is shown. */
const CLOSEST = 1 / 500;

/** The part with another length; the point `at`, from 0 to 1 of what is shown, stays where it is. */
export function zoomedView([from, to]: View, factor: number, at = 0.5): View {
  const length = Math.min(1, Math.max(CLOSEST, (to - from) * factor));
  return moved(from + (to - from - length) * at, length);
}

/** The part moved by a share of its length. */
export function pannedView([from, to]: View, share: number): View {
  return moved(from + (to - from) * share, to - from);
}

/** The part between two points of what is shown, each 0 to 1, in either order. */
export function selectedView([from, to]: View, one: number, other: number): View {
  const [first, last] = [Math.min(one, other), Math.max(one, other)].map((each) => from + (to - from) * Math.min(1, Math.max(0, each))) as [number, number];
  const length = Math.max(CLOSEST, last - first);
  return moved((first + last - length) / 2, length);
}

function moved(from: number, length: number): View {
  const first = Math.min(1 - length, Math.max(0, from));
  return [first, first + length];
}

/** The part that holds a span whole, if it is not visible: moved as little as possible. */
export function showing(view: View, span: Placed, width: number): View {
  const [from, to] = [span.x / width, (span.x + span.width) / width];
  if (to > view[0] && from < view[1]) return view;
  return moved(from < view[0] ? from : Math.max(from - (view[1] - view[0]) / 2, to - (view[1] - view[0])), view[1] - view[0]);
}

/** The layout of `lanes` as a part of it is seen. */
export function viewed(placed: Lanes, [from, to]: View, width: number): Lanes {
  const scale = 1 / (to - from);
  const move = <T extends { x: number; width: number }>(each: T): T => ({ ...each, x: (each.x - from * width) * scale, width: Math.max(Math.min(each.width, NARROWEST), each.width * scale) });
  return { ...placed, columns: placed.columns.map(move), spans: placed.spans.map(move), waits: placed.waits.map(move) };
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

/** The spans nested directly in this one. */
function within([, depth, start, seconds]: RankStep["spans"][number], spans: RankStep["spans"]): RankStep["spans"] {
  return spans.filter(([, deep, begin]) => deep === depth + 1 && begin >= start - ROUNDING && begin < start + seconds - ROUNDING);
}

/** The usual order of a step's sections, by their colours; others follow, the longest first. */
const ORDER: readonly string[] = [PARTS.data, PARTS.compute, PARTS.backward, PARTS.optimizer];

function placeOf(section: string): number {
  const place = ORDER.indexOf(sectionTone(section, 0));
  return place < 0 ? ORDER.length : place;
}

/** A section is longer on a rank from this share of a step on, and from this multiple of the others' median on. */
const [LEAST_SHARE, LEAST_RATIO] = [0.01, 1.1];

export interface Sums {
  /** Indices of the sections in the order in which a step has them. */
  sections: number[];
  /** Those of them that contain others, so that their own work is the rest. */
  rests: ReadonlySet<number>;
  /** Seconds more than the median of the other lanes, where a section is longer on this one, by lane and position in `sections`; else null. */
  longer: (number | null)[][];
}

/** The sections' own work on each rank; those without any are left out. `longest`: those that take longer on a rank come first. */
export function sums({ ranks, sections: names }: SectionTimeline, most: number, longest = false): Sums {
  const column = (section: number) => ranks.flatMap(({ own }) => own[section] ?? []);
  const step = median(ranks.flatMap((lane) => lane.steps.map((each) => each.seconds)));
  const sections = names.map((_, i) => i)
    .filter((i) => column(i).some((seconds) => seconds >= NOTHING))
    .sort((a, b) => median(column(b)) - median(column(a)))
    .slice(0, most)
    .sort((a, b) => placeOf(names[a]!) - placeOf(names[b]!));
  const more = (lane: number, section: number) => {
    const here = ranks[lane]!.own[section] ?? 0;
    const others = median(ranks.flatMap(({ own }, i) => (i === lane ? [] : own[section] ?? [])));
    return ranks.length > 1 && here - others >= LEAST_SHARE * step && here >= LEAST_RATIO * others ? here - others : null;
  };
  if (longest) {
    const most = new Map(sections.map((section) => [section, Math.max(0, ...ranks.map((_, lane) => more(lane, section) ?? 0))]));
    sections.sort((a, b) => most.get(b)! - most.get(a)!);
  }
  const containers = ranks.flatMap((lane) => lane.steps.flatMap(({ spans }) => spans.flatMap((span) => (within(span, spans).length > 0 ? [span[0]] : []))));
  return {
    sections,
    rests: new Set(containers),
    longer: ranks.map((_, lane) => sections.map((section) => more(lane, section))),
  };
}

/** Whether only steps with known waiting are shown; null: if there are any. */
export function onlyMeasured(wanted: boolean | null, timeline: Pick<SectionTimeline, "profiled"> | null): boolean {
  return wanted ?? (timeline?.profiled.length ?? 0) > 0;
}

/** These ranks, and others for comparison up to so many: of the same nodes, one each of other nodes in half of the places, then any. */
export function withPeers(wanted: readonly number[], size: number, most: number, hostOf: (rank: number) => string | undefined): number[] {
  const found = new Set(wanted.filter((rank) => rank < size));
  const hosts = new Set([...found].flatMap((rank) => hostOf(rank) ?? []));
  const far = new Map<string, number>();
  for (let rank = 0; rank < size && hosts.size > 0; rank++) {
    const host = hostOf(rank);
    if (host !== undefined && !hosts.has(host) && !far.has(host)) far.set(host, rank);
  }
  const others = [...far.values()].slice(0, Math.max(0, Math.floor((most - found.size) / 2)));
  const fill = (limit: number, wants: (rank: number) => boolean) => {
    for (let rank = 0; rank < size && found.size < limit; rank++) if (wants(rank)) found.add(rank);
  };
  fill(most - others.length, (rank) => hosts.has(hostOf(rank) ?? ""));
  for (const rank of others) found.add(rank);
  fill(most, () => true);
  return [...found];
}

/** What `withPeers` chose: "rank 21, 4 of its node, 3 of other nodes"; empty: of no rank, or on no known node. */
export function choiceWords(wanted: readonly number[], chosen: readonly number[], hostOf: (rank: number) => string | undefined): string {
  const hosts = new Set(wanted.flatMap((rank) => hostOf(rank) ?? []));
  if (hosts.size === 0) return "";
  const others = chosen.filter((rank) => !wanted.includes(rank));
  const near = others.filter((rank) => hosts.has(hostOf(rank) ?? "")).length;
  const [whose, rest] = [hosts.size === 1 ? "the same node" : "the same nodes", others.length - near];
  return [`${wanted.length === 1 ? "rank" : "ranks"} ${runs(wanted)}`, near > 0 && `${near} of ${whose}`, rest > 0 && `${rest} of ${rest === 1 ? "another node" : "other nodes"}`].filter(Boolean).join(", ");
}

/** Ranks in the syntax of the API: "0,8-10". */
export function written(ranks: readonly number[]): string {
  return runs(ranks, Number.POSITIVE_INFINITY).replaceAll("–", "-").replaceAll(" ", "");
}
