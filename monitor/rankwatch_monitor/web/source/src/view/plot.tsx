// A chart over time: lines and stacked areas by uPlot, incidents as bands, the values at the cursor as text.

import type { ComponentChildren } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import type { Incident } from "../api/types";
import { asOf } from "../api/connection";
import { fitted, gaps, inOrder, isolated, type Line, type Mark, missingAt, stacked } from "../logic/charts";
import { between, panned, type Range, zoomed } from "../logic/range";
import { capital, clock } from "../logic/text";
import { inZone, zone } from "../logic/zone";
import { narrow } from "./preferences";
import { colour, repaint } from "./theme";

/** Pixels that are dragged at least to be a range. */
const DRAGGED = 5;
/** Delay before loading the chart library is retried. */
const RETRY_MS = 5000;

export interface Plotted {
  /** Label for screen readers. */
  name: string;
  /** Unix seconds. */
  time: readonly number[];
  lines: readonly Line[];
  format: (value: number | null) => string;
  /** A label of the value axis, if it differs. */
  label?: (value: number | null) => string;
  incidents: readonly Incident[];
  height: number;
  marks?: readonly Mark[];
  /** Upper end of the value axis; by default that of the values. */
  top?: number;
  /** The value axis reaches from the least to the largest value, instead of from 0. */
  fit?: boolean;
  /** The least length of such an axis. */
  least?: number;
  /** First and last second on the time axis; by default those of the values. */
  range?: readonly [number, number];
  /** A range was chosen: by dragging, or by a key. */
  choose?: (range: Range) => void;
  /** The usual range was asked for: by a double click, or by a key. */
  reset?: () => void;
  /** Charts of one name share the cursor. */
  together?: string;
  /** The axis ends at the present. */
  live?: boolean;
  /** Unix seconds at which attempts began. */
  attempts?: readonly number[];
  /** Unix seconds in which values were not finite. */
  broken?: readonly { from: number; to: number }[];
  /** The axis is not one of time: the words for a place on it. */
  across?: (place: number) => string;
  /** A label of such an axis, if it is shorter. */
  tick?: (place: number) => string;
  /** Distances of the labels of such an axis. */
  apart?: readonly number[];
  /** Index of the values that are shown without a cursor; by default the last. */
  rest?: number;
  /** What the newest figures are of, where no point is chosen; absent: "now". */
  latest?: string;
  /** Why nothing is known from one moment to another, in few words; absent: gaps are left blank. */
  unknown?: (from: number, to: number) => string;
  /** Another figure beside the values, of the place at the cursor. */
  more?: (index: number) => { name: string; value: string };
  /** What is found in it, between the chart and its figures. */
  finding?: ComponentChildren;
}

export function Plot(props: Plotted) {
  const { name, time, lines, format, height, range, live = true } = props;
  const place = useRef<HTMLDivElement>(null);
  const chart = useRef<uPlot | null>(null);
  const shown = useRef(props);
  const painted = repaint.value;
  const shownZone = zone.value;
  const [tries, setTries] = useState(0);
  const [at, setAt] = useState<number | null>(null);
  /** Pixels from the left at which the mouse is over this chart itself; null: it is not. */
  const [under, setUnder] = useState<number | null>(null);
  const mouse = useRef(under);
  mouse.current = under;
  const [hidden, setHidden] = useState<ReadonlySet<string>>(new Set());
  const seen = useMemo(() => inOrder(lines.filter((line) => !hidden.has(line.name))), [lines, hidden]);
  shown.current = { ...props, lines: seen };
  const shape = seen.map((line) => line.name).join();

  useEffect(() => {
    const element = place.current!;
    let gone = false;
    let again = 0;
    const resized = new ResizeObserver(() => chart.current?.setSize({ width: element.clientWidth, height }));
    // The chart library is half of this page's code, so it is loaded after everything else is shown.
    import("uplot").then(
      ({ default: Chart }) => {
        if (gone) return;
        chart.current = new Chart(options(element.clientWidth, shown, mouse, setAt), data(shown.current), element);
        resized.observe(element);
      },
      // The monitor is unreachable, which the connection bar shows: retry.
      () => {
        if (!gone) again = window.setTimeout(() => setTries((count) => count + 1), RETRY_MS);
      },
    );
    return () => {
      gone = true;
      window.clearTimeout(again);
      resized.disconnect();
      chart.current?.destroy();
      chart.current = null;
    };
  }, [painted, tries, shape, shownZone]);
  useEffect(() => chart.current?.setData(data(shown.current)), [time, time.length, seen, props.incidents, props.marks, props.attempts, props.broken, range?.[0], range?.[1]]);

  const index = at !== null && at < time.length ? at : props.rest ?? time.length - 1;
  const moment = at === null && live ? (props.latest || "now") : props.across?.(time[index] ?? 0) ?? clock(time[index] ?? null, asOf.value);
  const when = at === null && live ? "now" : "then";
  const move = (event: KeyboardEvent) => {
    if (zoomKey(event, props, at === null ? undefined : time[index])) return;
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -time.length, End: time.length }[event.key];
    if (step === undefined) return;
    // Samples beyond the ends of the axis are read only so that lines reach its edges.
    const [low, high] = range ? [time.findIndex((each) => each >= range[0]), time.findLastIndex((each) => each <= range[1])] : [0, time.length - 1];
    const next = Math.max(low, 0, Math.min(high, index + step));
    const across = chart.current?.valToPos(time[next]!, "x") ?? 0;
    chart.current?.setCursor({ left: across, top: 0 });
    event.preventDefault();
  };
  // Where nothing is known, the reason stands in place of the figures.
  const missing = props.unknown && missingAt(time, lines, index);
  const read = (line: Line) => (missing ? `– (${props.unknown!(...missing)})` : format(line.values[index] ?? null));
  const figures = lines.map((line) => `${named(line, index, when)} ${read(line)}`).join(", ");
  const more = props.more?.(index);
  const cut = props.fit ? axisBegin(props) : 0;
  const change = (props.marks ?? []).map(({ words }) => ` ${capital(words)}.`).join("");
  const end = range && props.unknown ? gaps(time, lines, range).find(({ to }) => to === range[1]) : undefined;
  const values = (of: readonly Line[]) => of.map((line) => (
    <li key={line.name}>
      <Swatch line={line} />
      {named(line, index, when)} <b>{read(line)}</b>
    </li>
  ));
  const turn = ({ name: each }: Line) => {
    const next = new Set(hidden);
    if (!next.delete(each) && seen.length > 1) next.add(each);
    setHidden(next);
  };
  const width = place.current?.clientWidth ?? 0;
  const pointed = (event: MouseEvent) => setUnder(event.clientX - place.current!.getBoundingClientRect().left);
  return (
    <>
      <div class="plotted" onMouseMove={pointed} onMouseLeave={() => setUnder(null)}>
        <div
          ref={place} class="chart" style={{ height: `${height}px` }} role="img" tabIndex={0} onKeyDown={move}
          aria-label={`${name}: ${time.length} points. ${capital(moment)} ${figures}.${change}${end === undefined ? "" : ` ${capital(props.unknown!(end.from, end.to))}.`}`}
        />
        {at !== null && under !== null && (
          <ul class="tip" aria-hidden="true" style={under > width / 2 ? { right: `${width - under + 14}px` } : { left: `${under + 14}px` }}>
            <li>{moment}</li>
            {values(lines.filter((line) => !hidden.has(line.name)))}
            {more && <li>{more.name} <b>{more.value}</b></li>}
          </ul>
        )}
      </div>
      {props.finding}
      <ul class="key">
        <li>{moment}</li>
        {narrow.value || lines.length < 3 ? values(lines) : lines.map((line) => (
          <li key={line.name}>
            <button type="button" aria-pressed={!hidden.has(line.name)} title={hidden.has(line.name) ? "Show it" : "Hide it"} onClick={() => turn(line)}>
              <Swatch line={line} />
              {named(line, index, when)} <b>{read(line)}</b>
            </button>
          </li>
        ))}
        {more && <li>{more.name} <b>{more.value}</b></li>}
        {cut > 0 && <li class="cut">axis begins at {format(cut)}</li>}
      </ul>
    </>
  );
}

interface Headed extends Omit<Plotted, "name"> {
  title: string;
  small: ComponentChildren;
  /** Of the chart and of its section, where they are not the title. */
  name?: string;
  region?: string;
  /** Between the heading and the chart. */
  children?: ComponentChildren;
}

/** A chart under its heading. */
export function Charted({ title, small, name = title, region = title, children, ...plotted }: Headed) {
  return (
    <section aria-label={region}>
      <h2>{title} <small>{small}</small></h2>
      {children}
      <Plot name={name} {...plotted} />
    </section>
  );
}

/** "worst rank; now rank 21": another one at another moment. */
const named = ({ name, ranks }: Line, index: number, when: string): string => (ranks?.[index] == null ? name : `${name}; ${when} rank ${ranks[index]}`);

function Swatch({ line }: { line: Line }) {
  const kind = line.stack ? "area" : [line.dashed && "dashed", line.behind && "behind"].filter(Boolean).join(" ");
  return <i aria-hidden="true" class={kind || undefined} style={{ color: `var(--${line.tone})` }} />;
}

/** Whether the key changed the time axis: + and - zoom, with shift the arrows move it, 0 and Escape reset it. */
function zoomKey(event: KeyboardEvent, { range, choose, reset }: Plotted, at?: number): boolean {
  if (!range || !choose || event.ctrlKey || event.metaKey || event.altKey) return false;
  const { key, shiftKey } = event;
  if (key === "+" || key === "=") choose(zoomed(range, 0.5, at));
  else if (key === "-" || key === "_") choose(zoomed(range, 2, at));
  else if (shiftKey && (key === "ArrowLeft" || key === "ArrowRight")) choose(panned(range, key === "ArrowLeft" ? -0.5 : 0.5));
  else if (key === "0" || key === "Escape") reset?.();
  else return false;
  event.preventDefault();
  return true;
}

/** Where a fitted value axis begins. */
function axisBegin({ time, lines, range, least = 0, top }: Plotted): number {
  const within = (i: number) => !range || (time[i]! >= range[0] && time[i]! <= range[1]);
  const known = lines.flatMap(({ values }) => values.filter((value, i): value is number => value !== null && within(i)));
  return known.length === 0 ? 0 : fitted(Math.min(...known), Math.max(...known), least, top)[0];
}

function data({ time, lines }: Plotted): uPlot.AlignedData {
  return [time as number[], ...stacked(lines)];
}

function options(width: number, shown: { current: Plotted }, mouse: { current: number | null }, moved: (index: number | null) => void): uPlot.Options {
  const { lines, height, top, format, label = format, together, fit, least = 0, across, tick = across, apart } = shown.current;
  const axis = { stroke: colour("quiet"), font: `11px ${colour("sans")}`, ticks: { show: false } };
  const areas = lines.filter((line) => line.stack).length;
  return {
    width,
    height,
    padding: [8, 26, 0, 0],
    legend: { show: false },
    cursor: {
      y: false, points: { size: 6 },
      drag: { x: shown.current.choose !== undefined, y: false, setScale: false },
      bind: { dblclick: () => () => (shown.current.reset?.(), null) },
      // Of a drag only its result is shared.
      ...(together === undefined ? {} : { sync: { key: together, filters: { pub: (kind: string) => kind === "mousemove" || kind === "mouseleave" } } }),
    },
    scales: {
      x: { time: across === undefined, range: () => (shown.current.range as [number, number] | undefined) ?? span(shown.current.time) },
      y: { range: (_chart, low, high) => (fit ? fitted(low, high, least, top) : [0, top ?? (high > 0 ? high * 1.15 : 1)]) },
    },
    axes: [
      {
        ...axis, grid: { show: false }, space: 80, size: 26, ...(apart === undefined ? {} : { incrs: [...apart] }),
        values: (_chart, splits) => splits.map((each, i) => tick?.(each) ?? timeOfDay(each, i, splits)),
      },
      { ...axis, grid: { stroke: colour("line"), width: 1 }, size: 56, space: height < 160 ? 24 : 32, values: (_chart, splits) => splits.map((each) => label(each)) },
    ],
    series: [
      {},
      ...lines.map((line) => ({
        stroke: colour(line.tone),
        width: line.stack ? 1 : line.behind ? 3.5 : 1.75,
        fill: line.stack ? `${colour(line.tone)}88` : line.fill ? colour(line.fill) : "transparent",
        dash: line.dashed ? [5, 4] : [],
        spanGaps: false,
        points: { show: false, size: 5, fill: colour(line.tone), filter: (_chart: uPlot, at: number) => isolated(shown.current.lines[at - 1]?.values ?? []) },
      })),
    ],
    // An area reaches down to the one below it, and the lowest to the axis.
    bands: Array.from({ length: Math.max(0, areas - 1) }, (_, i) => ({ series: [i + 1, i + 2] as [number, number] })),
    hooks: {
      // The mouse rests where it was, and a new chart notices it only once it moves.
      ready: [(chart) => mouse.current !== null && chart.setCursor({ left: mouse.current - chart.over.offsetLeft, top: 0 })],
      drawClear: [(chart) => (shade(chart, shown.current.incidents), hatch(chart, shown.current))],
      draw: [
        (chart) => labelGaps(chart, shown.current),
        (chart) => shown.current.attempts?.forEach((at) => divide(chart, at)),
        (chart) => shown.current.marks?.forEach((mark, i) => rule(chart, mark, i)),
        (chart) => shown.current.broken?.forEach(({ from, to }) => cross(chart, chart.valToPos(from, "x", true), chart.valToPos(to, "x", true))),
      ],
      setSelect: [
        (chart) => {
          const { left, width: wide } = chart.select;
          if (wide < DRAGGED) return;
          chart.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
          shown.current.choose?.(between(chart.posToVal(left, "x"), chart.posToVal(left + wide, "x")));
        },
      ],
      setCursor: [(chart) => moved(chart.cursor.idx ?? null)],
    },
  };
}

function span(time: readonly number[]): [number, number] {
  const end = time.at(-1) ?? asOf.peek();
  return [Math.min(time[0] ?? end, end - 1), end];
}

/** A label of the time axis: the time, or the day where it is another one than at the label before. */
function timeOfDay(seconds: number, i: number, splits: readonly number[]): string {
  if (seconds < 1e6) return "";
  const day = (at: number) => new Date(at * 1000).toLocaleDateString("en-GB", { day: "numeric", month: "short", ...inZone() });
  const [each, long] = [(splits[1] ?? 0) - splits[0]!, splits.at(-1)! - splits[0]! > 43_200];
  if (long && (each >= 86_400 || i === 0 || day(splits[i - 1]!) !== day(seconds))) return day(seconds);
  return new Date(seconds * 1000).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", ...(each >= 60 ? {} : { second: "2-digit" }), ...inZone() });
}

/** Pixels of a band at least: a short incident is seen in a long time. */
const LEAST_BAND = 2;

/** Draw a band per incident, from the last progress to the first new step. */
function shade(chart: uPlot, incidents: readonly Incident[]): void {
  const { left, top, width, height } = chart.bbox;
  const x = (time: number) => Math.min(left + width, Math.max(left, chart.valToPos(time, "x", true)));
  chart.ctx.fillStyle = colour("chart-band");
  for (const { timeline, closed_at } of incidents) {
    const since = timeline.since ?? timeline.detected;
    if (since === null) continue;
    const from = x(since);
    const to = x(timeline.first_step ?? closed_at ?? Number.MAX_SAFE_INTEGER);
    if (to > from) chart.ctx.fillRect(from, top, Math.max(to - from, LEAST_BAND * devicePixelRatio), height);
  }
}

/** Pixels between the lines of a gap. */
const APART = 6;

/** The gaps of a chart from left to right, in pixels, each with its reason where there is room for it, else one word below the other. The one at the left edge is left blank without it. */
function gapsOf({ bbox: { left, width, height }, ctx, valToPos }: uPlot, { time, lines, range, unknown }: Plotted): { first: number; last: number; rows: string[] }[] {
  if (unknown === undefined) return [];
  ctx.font = wordsFont();
  return gaps(time, lines, range ?? span(time)).flatMap(({ from, to }) => {
    const [first, last] = [from, to].map((at) => Math.min(left + width, Math.max(left, valToPos(at, "x", true)))) as [number, number];
    const words = unknown(from, to);
    const fits = (rows: string[]) => rows.length * lineHeight() <= height && rows.every((row) => roomOf(ctx, row) < last - first);
    const rows = [[words], words.split(" ")].find(fits) ?? [];
    return rows.length > 0 || first > left ? [{ first, last, rows }] : [];
  });
}

const wordsFont = () => `${11 * devicePixelRatio}px ${colour("sans")}`;
const lineHeight = () => 15 * devicePixelRatio;
const roomOf = (ctx: CanvasRenderingContext2D, row: string) => ctx.measureText(row).width + lineHeight() / 8;

/** Draw thin diagonal lines where nothing is known. */
function hatch(chart: uPlot, shown: Plotted): void {
  const { top, height } = chart.bbox;
  const { ctx } = chart;
  const apart = APART * devicePixelRatio;
  for (const { first, last } of gapsOf(chart, shown)) {
    ctx.save();
    ctx.beginPath();
    ctx.rect(first, top, last - first, height);
    ctx.clip();
    ctx.strokeStyle = colour("line");
    ctx.lineWidth = devicePixelRatio;
    ctx.beginPath();
    for (let x = first - height - (first % apart); x < last; x += apart) {
      ctx.moveTo(x, top + height);
      ctx.lineTo(x + height, top);
    }
    ctx.stroke();
    ctx.restore();
  }
}

/** Write why nothing is known, above the grid. */
function labelGaps(chart: uPlot, shown: Plotted): void {
  const { top, height } = chart.bbox;
  const { ctx } = chart;
  const line = lineHeight();
  ctx.save();
  ctx.textAlign = "center";
  ctx.textBaseline = "middle";
  for (const { first, last, rows } of gapsOf(chart, shown)) {
    const middle = (first + last) / 2;
    rows.forEach((row, i) => {
      const y = top + height / 2 + (i - (rows.length - 1) / 2) * line;
      ctx.fillStyle = colour("ground");
      ctx.fillRect(middle - roomOf(ctx, row) / 2, y - line / 2, roomOf(ctx, row), line);
      ctx.fillStyle = colour("quiet");
      ctx.fillText(row, middle, y);
    });
  }
  ctx.restore();
}

/** Draw a dashed line where an attempt began. */
function divide(chart: uPlot, at: number): void {
  const { left, top, width, height } = chart.bbox;
  const x = Math.round(chart.valToPos(at, "x", true));
  if (x <= left || x > left + width) return;
  const { ctx } = chart;
  ctx.save();
  ctx.strokeStyle = colour("quiet");
  ctx.lineWidth = devicePixelRatio;
  ctx.setLineDash([3 * devicePixelRatio, 3 * devicePixelRatio]);
  ctx.beginPath();
  ctx.moveTo(x, top);
  ctx.lineTo(x, top + height);
  ctx.stroke();
  ctx.restore();
}

/** Draw a cross at the upper edge, as a strip to where it ends. */
function cross(chart: uPlot, from: number, to: number): void {
  const { left, top, width } = chart.bbox;
  if (to < left || from > left + width) return;
  const { ctx } = chart;
  const x = Math.round(Math.max(left, from));
  ctx.fillStyle = colour("chart-band");
  ctx.fillRect(x, top, Math.min(left + width, to) - x, chart.bbox.height);
  const half = 3.5 * devicePixelRatio;
  ctx.save();
  ctx.strokeStyle = colour("job-hung");
  ctx.lineWidth = 1.75 * devicePixelRatio;
  ctx.beginPath();
  ctx.moveTo(x - half, top);
  ctx.lineTo(x + half, top + 2 * half);
  ctx.moveTo(x + half, top);
  ctx.lineTo(x - half, top + 2 * half);
  ctx.stroke();
  ctx.restore();
}

/** Pixels of a chart's height from which a change has words. */
const WORDS_FROM = 200;

/** Draw a flagged line at a change, its words in a row of their own. */
function rule(chart: uPlot, { at, words }: Mark, row: number): void {
  const { left, top, width, height } = chart.bbox;
  const x = Math.round(chart.valToPos(at, "x", true));
  if (x < left || x > left + width) return;
  chart.ctx.fillStyle = colour("text");
  chart.ctx.fillRect(x - 1, top, 2, height);
  const size = 6 * devicePixelRatio;
  chart.ctx.beginPath();
  chart.ctx.moveTo(x, top);
  chart.ctx.lineTo(x + size * 1.6, top + size * 0.7);
  chart.ctx.lineTo(x, top + size * 1.4);
  chart.ctx.fill();
  // In a low chart words would lie on lines.
  if (chart.height < WORDS_FROM) return;
  chart.ctx.save();
  chart.ctx.font = wordsFont();
  const [before, after] = [x - left, left + width - x];
  const right = before > after;
  chart.ctx.textAlign = right ? "right" : "left";
  chart.ctx.textBaseline = "top";
  if (chart.ctx.measureText(words).width + 2 * size < Math.max(before, after)) chart.ctx.fillText(words, x + (right ? -1 : 2) * size, top + row * 2.5 * size);
  chart.ctx.restore();
}
