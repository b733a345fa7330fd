// The lanes of the section timeline: a canvas with keyboard navigation, of which a part is seen.

import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { asOf } from "../api/connection";
import type { SectionTimeline } from "../api/types";
import { readableOn } from "../logic/glyphs";
import { beside, type Lanes, pannedView, ROW, selectedView, showing, spanAt, type View, viewed, WHOLE, zoomedView } from "../logic/timeline";
import { PARTS, sectionTone } from "../logic/parts";
import { clock, count, duration, fine } from "../logic/text";
import { colour, repaint } from "./theme";

/** Padding of text within its box. */
const INSET = 5;
/** Height of a line of text. */
const TEXT = 12;
/** Height of the axis below the lanes, and pixels between its labels at least. */
const [AXIS, APART] = [18, 74];
/** Pixels before a wait that are enough for the name of the section. */
const ENOUGH = 44;
const NOT_MEASURED = "waiting not measured";
/** Pixels that are dragged at least to be a part of the steps. */
const DRAGGED = 5;
/** Zoom of one pixel of the wheel. */
const WHEEL = 1.0025;

interface Field {
  timeline: SectionTimeline;
  /** Ranks whose lanes are marked, and the word for each. */
  blamed: ReadonlyMap<number, string>;
  /** Null until the width is known. */
  placed: Lanes | null;
  /** Index of the span that is described below the lanes. */
  at: number | null;
  choose: (at: number | null) => void;
  width: number;
  view: View;
  show: (view: View) => void;
  resized: (width: number) => void;
}

export function LaneField({ timeline, blamed, placed: whole, at, choose, width, view, show, resized }: Field) {
  const placed = useMemo(() => whole && viewed(whole, view, width), [whole, view, width]);
  /** Where a drag began and is, in pixels. */
  const [drag, setDrag] = useState<readonly [number, number] | null>(null);
  const holder = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const painted = repaint.value;
  useEffect(() => {
    const observer = new ResizeObserver(([entry]) => resized(Math.floor(entry!.contentRect.width)));
    observer.observe(holder.current!);
    return () => observer.disconnect();
  }, []);
  useLayoutEffect(() => {
    if (placed && canvas.current) draw(canvas.current, timeline, placed, at, width);
  }, [placed, at, painted, width]);
  const x = (event: MouseEvent) => event.clientX - holder.current!.getBoundingClientRect().left;
  const under = (event: PointerEvent) => {
    if (!placed) return null;
    const box = canvas.current!.getBoundingClientRect();
    return spanAt(placed, event.clientX - box.left, event.clientY - box.top);
  };
  const wheel = useRef<(event: WheelEvent) => void>(() => undefined);
  wheel.current = (event) => {
    const sideways = event.shiftKey ? event.deltaY || event.deltaX : event.deltaX;
    if (event.ctrlKey || event.metaKey) show(zoomedView(view, WHEEL ** event.deltaY, x(event) / width));
    else if (sideways !== 0 && view !== WHOLE && (event.shiftKey || Math.abs(sideways) > Math.abs(event.deltaY))) show(pannedView(view, sideways / width));
    else return;
    event.preventDefault();
  };
  useEffect(() => {
    const turned = (event: WheelEvent) => wheel.current(event);
    const element = holder.current!;
    element.addEventListener("wheel", turned, { passive: false }); // otherwise the browser zooms the page
    return () => element.removeEventListener("wheel", turned);
  }, []);
  const keys = (event: KeyboardEvent) => {
    const { key, shiftKey } = event;
    if (!whole || whole.spans.length === 0 || event.ctrlKey || event.metaKey || event.altKey) return;
    if (key === "+" || key === "=" || key === "-" || key === "_") show(zoomedView(view, key === "+" || key === "=" ? 0.5 : 2, middleOf(placed!, at, width)));
    else if (shiftKey && (key === "ArrowLeft" || key === "ArrowRight")) show(pannedView(view, key === "ArrowLeft" ? -0.5 : 0.5));
    else if (key === "0" || (key === "Escape" && at === null)) show(WHOLE);
    else if (key === "Escape") choose(null);
    else if (key.startsWith("Arrow")) {
      const next = at === null || at >= whole.spans.length ? 0 : beside(whole, at, key);
      choose(next);
      show(showing(view, whole.spans[next]!, width));
    } else return;
    event.preventDefault();
  };
  const pressed = (event: PointerEvent) => {
    choose(under(event));
    if (event.button !== 0 || event.pointerType === "touch") return; // a touch scrolls the page
    holder.current!.setPointerCapture(event.pointerId);
    setDrag([x(event), x(event)]);
  };
  const moved = (event: PointerEvent) => (drag === null ? choose(under(event) ?? at) : setDrag([drag[0], x(event)]));
  const released = () => {
    if (drag !== null && Math.abs(drag[1] - drag[0]) >= DRAGGED) show(selectedView(view, drag[0] / width, drag[1] / width));
    setDrag(null);
  };
  const [from, to] = drag === null ? [0, 0] : [Math.max(0, Math.min(...drag)), Math.min(width, Math.max(...drag))];
  return (
    <div class="lanes">
      <ol aria-hidden="true" style={{ height: `${placed?.height ?? 0}px` }}>
        {placed?.tops.map((top, lane) => {
          const { rank = -1, host } = timeline.ranks[lane] ?? {};
          const mark = blamed.get(rank);
          return (
            <li key={lane} class={mark && "blamed"} style={{ top: `${top}px`, height: `${placed.laneHeight}px` }} title={host}>
              {mark && <em>{mark}</em>} {timeline.ranks[lane] && <b>{rank}</b>}
              <small>{host}</small>
            </li>
          );
        })}
      </ol>
      <div
        ref={holder} class="field" tabIndex={0} role="application" aria-roledescription="section timeline" aria-describedby="lane-keys"
        aria-label={`${timeline.ranks.length} ranks, steps ${placed?.columns.map((column) => column.iteration).join(", ") ?? ""}`}
        onKeyDown={keys} onPointerMove={moved} onPointerDown={pressed} onPointerUp={released} onPointerCancel={() => setDrag(null)}
        onDblClick={() => show(WHOLE)}
      >
        <canvas ref={canvas} style={{ height: `${(placed?.height ?? 0) + AXIS}px` }} aria-hidden="true" />
        {to - from >= DRAGGED && <span class="dragged" style={{ left: `${from}px`, width: `${to - from}px` }} />}
        {placed?.columns.filter((column) => column.x < width && column.x + column.width > 0).map((column) => (
          <span key={column.iteration} class="step" style={{ left: `${Math.max(0, column.x)}px`, width: `${Math.min(width, column.x + column.width) - Math.max(0, column.x)}px` }}>
            step {count(column.iteration)} <small>{duration(column.seconds)} · {clock(column.began, asOf.value)}{column.measured === 0 && ` · ${NOT_MEASURED} in this step`}</small>
          </span>
        ))}
      </div>
    </div>
  );
}

/** Where the chosen span is on the field, 0 to 1; the middle if it is not seen. */
function middleOf(placed: Lanes, at: number | null, width: number): number {
  const span = at === null ? undefined : placed.spans[at];
  const middle = span ? (span.x + span.width / 2) / width : 0.5;
  return middle >= 0 && middle <= 1 ? middle : 0.5;
}

function draw(canvas: HTMLCanvasElement, timeline: SectionTimeline, placed: Lanes, at: number | null, across: number): void {
  const scale = devicePixelRatio;
  canvas.width = Math.max(1, Math.ceil(across * scale));
  canvas.height = Math.ceil((placed.height + AXIS) * scale);
  canvas.style.width = `${canvas.width / scale}px`;
  const context = canvas.getContext("2d")!;
  context.scale(scale, scale);
  context.font = `11px ${colour("sans")}`;
  context.textBaseline = "middle";
  const tones = timeline.sections.map((name, section) => colour(sectionTone(name, section)));
  const inks = tones.map(readableOn);
  const quiet = colour("quiet");
  axis(context, placed, across, quiet);
  for (const { lane, step } of placed.missing) {
    const { x, width } = placed.columns[step]!;
    if (x > across || x + width < 0) continue;
    context.strokeStyle = quiet;
    context.setLineDash([4, 4]);
    context.strokeRect(x + 0.5, placed.tops[lane]! + 0.5, Math.max(1, width - 1), placed.laneHeight - 2);
    context.setLineDash([]);
    write(context, "no spans of this step", Math.max(0, x), placed.tops[lane]! + placed.laneHeight / 2, Math.min(across, x + width) - Math.max(0, x), quiet);
  }
  const seen = placed.spans.filter((span) => span.x < across && span.x + span.width > 0);
  for (const span of seen) {
    context.fillStyle = tones[span.section]!;
    context.fillRect(span.x, span.y, span.width > 3 ? span.width - 1 : span.width, ROW - 1);
  }
  const waiting = placed.waits.filter((wait) => wait.x < across && wait.x + wait.width > 0);
  for (const { x, y, width, transfer } of waiting) {
    context.fillStyle = colour(transfer ? PARTS.communication : PARTS.waiting);
    context.fillRect(x, y, Math.max(1, width), ROW - 1);
  }
  for (const { section, x, y, width, waits, clear } of seen) {
    const left = Math.max(0, x);
    const [free, whole] = [Math.min(across, x + clear * width) - left, Math.min(across, x + width) - left];
    const covered = waits && free < ENOUGH;
    write(context, timeline.sections[section]!, left, y + ROW / 2, covered ? whole : free, inks[section]!, covered ? tones[section] : undefined);
  }
  for (const { lane, step } of placed.unmeasured) {
    const { x, width } = placed.columns[step]!;
    const end = Math.min(across, x + width);
    const room = context.measureText(NOT_MEASURED).width + 2 * INSET;
    const last = placed.spans.findLast((span) => span.lane === lane && span.step === step)!;
    if (end - Math.max(0, x) > 2 * room) write(context, NOT_MEASURED, end - room, last.y + ROW / 2, room + 1, inks[last.section]!, tones[last.section]);
  }
  const here = at === null ? undefined : placed.spans[at];
  if (!here) return;
  context.strokeStyle = colour("text");
  context.lineWidth = 2;
  context.strokeRect(here.x + 1, here.y + 1, Math.max(2, here.width - 3), ROW - 3);
}

/** The time since each step began, as rules behind the lanes with labels below them. */
function axis(context: CanvasRenderingContext2D, placed: Lanes, across: number, quiet: string): void {
  for (const { x, width, seconds } of placed.columns) {
    const each = round((APART * seconds) / width);
    let taken = 0;
    for (let i = 0; i * each <= seconds; i++) {
      const at = Math.round(x + (i * each * width) / seconds);
      if (at < 0 || at > across) continue;
      context.fillStyle = colour("line");
      context.fillRect(at, 0, 1, placed.height + 3);
      context.fillStyle = quiet;
      const label = i === 0 ? "0" : fine(i * each);
      // One at the end stands before its rule.
      const wide = context.measureText(label).width;
      const left = Math.min(at, Math.min(across, x + width + INSET) - wide);
      if (left < taken) continue;
      context.fillText(label, left, placed.height + 3 + TEXT / 2);
      taken = left + wide + INSET;
    }
  }
}

/** The next 1, 2 or 5 times a power of ten. */
function round(least: number): number {
  const power = 10 ** Math.floor(Math.log10(least));
  return power * ([1, 2, 5, 10].find((each) => each * power >= least) ?? 10);
}

/** Draw the text, shortened to the width; nothing if too little would remain. `ground`: behind it. */
function write(context: CanvasRenderingContext2D, text: string, x: number, y: number, width: number, ink: string, ground?: string): void {
  if (width < 2 * INSET + 8) return;
  const room = width - 2 * INSET;
  let shown = text;
  while (shown.length > 1 && context.measureText(shown).width > room) shown = `${shown.slice(0, -2)}…`;
  if (shown.length < 3 && shown !== text) return;
  if (ground !== undefined) {
    context.fillStyle = ground;
    context.fillRect(x + 1, y - TEXT / 2, INSET + context.measureText(shown).width + 2, TEXT);
  }
  context.fillStyle = ink;
  context.fillText(shown, x + INSET, y + 0.5);
}
