// Marks of job and rank states: a shape and a word besides the colour.

import { useLayoutEffect, useRef } from "preact/hooks";
import type { JobState } from "../api/types";
import type { Cell } from "../logic/levels";
import { glyph } from "../logic/glyphs";
import { palette } from "./palette";
import { repaint } from "./theme";

/** SVG paths in a box of 16 x 16; of a job that runs, and with which something is wrong, a hollow diamond, an hourglass, an empty ring. */
export const JOB_SHAPES: Record<JobState, string> = {
  starting: "M8 1.5a6.5 6.5 0 1 0 0 13 6.5 6.5 0 0 0 0-13Zm0 2.4a4.1 4.1 0 1 1 0 8.2 4.1 4.1 0 0 1 0-8.2Z",
  running: "M8 1.5a6.5 6.5 0 1 0 0 13 6.5 6.5 0 0 0 0-13Z",
  hung: "M8 .6 15.4 8 8 15.4.6 8Zm-1.1 3.6.3 5h1.6l.3-5Zm.1 6v1.9h2v-1.9Z",
  restarting: "M8 1.5a6.5 6.5 0 1 0 6.5 6.5h-2.4A4.1 4.1 0 1 1 8 3.9V6l4.6-3.4L8-.8Z",
  suspected: "M8 .6 15.4 8 8 15.4.6 8Zm0 3L3.6 8 8 12.4 12.4 8Zm-1 2h2v2.7h-2Zm0 3.6h2v1.6h-2Z",
  slow: "M2.6 1.2h10.8v2.2L9.6 8l3.8 4.6v2.2H2.6v-2.2L6.4 8 2.6 3.4Z",
  "no step": "M8 1.5a6.5 6.5 0 1 0 0 13 6.5 6.5 0 0 0 0-13Zm0 2.4a4.1 4.1 0 1 1 0 8.2 4.1 4.1 0 0 1 0-8.2Z",
  stopping: "M2.2 2.2h11.6v11.6H2.2Z",
  finished: "m1.6 8.4 1.8-1.8 3 3 6.2-6.4 1.8 1.8-8 8.2Z",
  failed: "m3.4 1.6 4.6 4.6 4.6-4.6 1.8 1.8L9.8 8l4.6 4.6-1.8 1.8L8 9.8l-4.6 4.6-1.8-1.8L6.2 8 1.6 3.4Z",
  stopped: "M2.2 2.2h11.6v11.6H2.2Z",
  lost: "M6.6 1.2A7 7 0 0 0 6.6 14.8v-3A4.1 4.1 0 0 1 6.6 4.2ZM9.4 1.2A7 7 0 0 1 9.4 14.8v-3A4.1 4.1 0 0 0 9.4 4.2Z",
};

export function JobMark({ state }: { state: JobState }) {
  return (
    <span class="state" data-state={state}>
      <svg viewBox="0 0 16 16" width="1em" height="1em" aria-hidden="true">
        <path d={JOB_SHAPES[state]} fill="currentColor" fill-rule="evenodd" />
      </svg>
      <span>{state}</span>
    </span>
  );
}

/** CSS pixels. */
const MARK = 13;

/** The glyph of a rank as in the grid. */
export function RankMark({ state }: { state: Cell }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const painted = repaint.value;
  useLayoutEffect(() => {
    const pixels = Math.round(MARK * devicePixelRatio);
    const context = canvas.current!.getContext("2d")!;
    canvas.current!.width = canvas.current!.height = pixels;
    const picture = new ImageData(pixels, pixels);
    new Uint32Array(picture.data.buffer).set(glyph(state, pixels, palette()));
    context.putImageData(picture, 0, 0);
  }, [state, painted]);
  return <canvas ref={canvas} class="rank-mark" style={{ width: `${MARK}px`, height: `${MARK}px` }} aria-hidden="true" />;
}
