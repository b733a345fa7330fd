// The lanes of the section timeline: a canvas with keyboard navigation.

import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import type { SectionTimeline } from "../api/types";
import { readableOn } from "../logic/glyphs";
import { beside, type Lanes, ROW, sectionTone, spanAt } from "../logic/timeline";
import { count, duration } from "../logic/text";
import { colour, repaint } from "./theme";

/** Padding of text within its box. */
const INSET = 5;

interface Field {
  timeline: SectionTimeline;
  /** Null until the width is known. */
  placed: Lanes | null;
  /** Index of the span that is described below the lanes. */
  at: number | null;
  choose: (at: number | null) => void;
  resized: (width: number) => void;
}

export function LaneField({ timeline, placed, at, choose, resized }: Field) {
  const holder = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const painted = repaint.value;
  useEffect(() => {
    const observer = new ResizeObserver(([entry]) => resized(Math.floor(entry!.contentRect.width)));
    observer.observe(holder.current!);
    return () => observer.disconnect();
  }, []);
  useLayoutEffect(() => {
    if (placed && canvas.current) draw(canvas.current, timeline, placed, at);
  }, [placed, at, painted]);
  const under = (event: PointerEvent) => {
    if (!placed) return null;
    const box = canvas.current!.getBoundingClientRect();
    return spanAt(placed, event.clientX - box.left, event.clientY - box.top);
  };
  const keys = (event: KeyboardEvent) => {
    if (!placed || placed.spans.length === 0 || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape") choose(null);
    else if (event.key.startsWith("Arrow")) choose(at === null || at >= placed.spans.length ? 0 : beside(placed, at, event.key));
    else return;
    event.preventDefault();
  };
  return (
    <div class="lanes">
      <ol aria-hidden="true" style={{ height: `${placed?.height ?? 0}px` }}>
        {placed?.tops.map((top, lane) => (
          <li key={lane} style={{ top: `${top}px`, height: `${placed.laneHeight}px` }} title={timeline.ranks[lane]?.host}>
            {timeline.ranks[lane] && <b>{timeline.ranks[lane].rank}</b>}
            <small>{timeline.ranks[lane]?.host}</small>
          </li>
        ))}
      </ol>
      <div
        ref={holder} class="field" tabIndex={0} role="application" aria-roledescription="section timeline" aria-describedby="lane-keys"
        aria-label={`${timeline.ranks.length} ranks, steps ${placed?.columns.map((column) => column.iteration).join(", ") ?? ""}`}
        onKeyDown={keys} onPointerMove={(event) => choose(under(event) ?? at)} onPointerDown={(event) => choose(under(event))}
      >
        <canvas ref={canvas} style={{ height: `${placed?.height ?? 0}px` }} aria-hidden="true" />
        {placed?.columns.map((column) => (
          <span key={column.iteration} class="step" style={{ left: `${column.x}px`, width: `${column.width}px` }}>
            step {count(column.iteration)} <small>{duration(column.seconds)}</small>
          </span>
        ))}
      </div>
    </div>
  );
}

function draw(canvas: HTMLCanvasElement, timeline: SectionTimeline, placed: Lanes, at: number | null): void {
  const scale = devicePixelRatio;
  const last = placed.columns.at(-1);
  canvas.width = Math.max(1, Math.ceil((last ? last.x + last.width : 0) * scale));
  canvas.height = Math.ceil(placed.height * scale);
  canvas.style.width = `${canvas.width / scale}px`;
  const context = canvas.getContext("2d")!;
  context.scale(scale, scale);
  context.font = `11px ${colour("sans")}`;
  context.textBaseline = "middle";
  const tones = timeline.sections.map((_, section) => colour(sectionTone(section)));
  const inks = tones.map(readableOn);
  const quiet = colour("quiet");
  for (const { lane, step } of placed.missing) {
    const { x, width } = placed.columns[step]!;
    context.strokeStyle = quiet;
    context.setLineDash([4, 4]);
    context.strokeRect(x + 0.5, placed.tops[lane]! + 0.5, Math.max(1, width - 1), placed.laneHeight - 2);
    context.setLineDash([]);
    write(context, "no spans of this step", x, placed.tops[lane]! + placed.laneHeight / 2, width, quiet);
  }
  for (const span of placed.spans) {
    context.fillStyle = tones[span.section]!;
    context.fillRect(span.x, span.y, span.width > 3 ? span.width - 1 : span.width, ROW - 1);
    write(context, timeline.sections[span.section]!, span.x, span.y + ROW / 2, span.width, inks[span.section]!);
  }
  const here = at === null ? undefined : placed.spans[at];
  if (!here) return;
  context.strokeStyle = colour("text");
  context.lineWidth = 2;
  context.strokeRect(here.x + 1, here.y + 1, Math.max(2, here.width - 3), ROW - 3);
}

/** Draw the text, shortened to the width; nothing if too little would remain. */
function write(context: CanvasRenderingContext2D, text: string, x: number, y: number, width: number, ink: string): void {
  if (width < 2 * INSET + 8) return;
  const room = width - 2 * INSET;
  let shown = text;
  while (shown.length > 1 && context.measureText(shown).width > room) shown = `${shown.slice(0, -2)}…`;
  if (shown.length < 3 && shown !== text) return;
  context.fillStyle = ink;
  context.fillText(shown, x + INSET, y + 0.5);
}
