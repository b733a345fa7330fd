// Iterations per second since the page was opened, with the stretches that incidents took.

import { useEffect, useRef, useState } from "preact/hooks";
import type uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import type { Incident, JobSummary } from "../api/shapes";
import { sampled, samplesOf } from "../live/samples";
import { rate } from "../logic/text";
import { colour, repaint } from "./theme";

const HEIGHT = 150;
/** How long until the chart library is asked for again, when the monitor could not give it. */
const AGAIN_MS = 5000;
/** At first the axis spans this much, so that the line grows instead of jumping. */
const SHORTEST_S = 60;

export function RateChart({ job, incidents }: { job: JobSummary; incidents: readonly Incident[] }) {
  const place = useRef<HTMLDivElement>(null);
  const chart = useRef<uPlot | null>(null);
  const troubles = useRef(incidents);
  troubles.current = incidents;
  const painted = repaint.value;
  const arrived = sampled.value;
  const samples = samplesOf(job.id);
  const [asked, ask] = useState(0);

  useEffect(() => {
    const element = place.current!;
    let gone = false;
    let again = 0;
    const resized = new ResizeObserver(() => chart.current?.setSize({ width: element.clientWidth, height: HEIGHT }));
    // Half of this page's code is the chart library: what is wrong is shown before it has arrived.
    import("uplot").then(
      ({ default: Chart }) => {
        if (gone) return;
        chart.current = new Chart(options(element.clientWidth, troubles), data(job.id), element);
        resized.observe(element);
      },
      // The monitor went away in between. The page says so already; the chart comes when the monitor is back.
      () => {
        if (!gone) again = window.setTimeout(() => ask((count) => count + 1), AGAIN_MS);
      },
    );
    return () => {
      gone = true;
      window.clearTimeout(again);
      resized.disconnect();
      chart.current?.destroy();
      chart.current = null;
    };
  }, [job.id, painted, asked]);
  useEffect(() => chart.current?.setData(data(job.id)), [arrived, incidents]);

  const speed = rate(job.iterations_per_second);
  return (
    <section class="speed">
      <h2>
        Iterations per second <small>since this page was opened</small>
      </h2>
      <div ref={place} class="chart" role="img" aria-label={`Line chart of ${samples.time.length} samples; now ${speed.value} ${speed.unit}.`} />
    </section>
  );
}

function data(job: string): uPlot.AlignedData {
  const { time, rate } = samplesOf(job);
  return [time, rate];
}

function options(width: number, incidents: { current: readonly Incident[] }): uPlot.Options {
  const axis = { stroke: colour("quiet"), font: `11px ${colour("sans")}`, ticks: { show: false } };
  return {
    width,
    height: HEIGHT,
    padding: [8, 26, 0, 0],
    legend: { show: false },
    cursor: { y: false, points: { size: 6 } },
    scales: {
      x: { time: true, range: (_chart, _low, high) => span(high, _low) },
      y: { range: (_chart, _low, high) => [0, high > 0 ? high * 1.15 : 1] },
    },
    axes: [
      { ...axis, grid: { show: false }, space: 70, size: 26, values: (_chart, splits) => splits.map(timeOfDay) },
      { ...axis, grid: { stroke: colour("line"), width: 1 }, size: 38, space: 32 },
    ],
    series: [{}, { stroke: colour("rank-running"), width: 1.75, fill: colour("chart-fill"), spanGaps: false, points: { show: false } }],
    hooks: { drawClear: [(chart) => shade(chart, incidents.current)] },
  };
}

function span(high: number | null, low: number | null): [number, number] {
  const end = high ?? Date.now() / 1000;
  return [Math.min(low ?? end, end - SHORTEST_S), end];
}

function timeOfDay(seconds: number): string {
  return seconds < 1e6 ? "" : new Date(seconds * 1000).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
}

/** A band from the last good moment to the first new step, under the line. */
function shade(chart: uPlot, incidents: readonly Incident[]): void {
  const { left, top, width, height } = chart.bbox;
  const x = (time: number) => Math.min(left + width, Math.max(left, chart.valToPos(time, "x", true)));
  chart.ctx.fillStyle = colour("chart-band");
  for (const { timeline, closed_at } of incidents) {
    const since = timeline.since ?? timeline.detected;
    if (since === null) continue;
    const from = x(since);
    const to = x(timeline.first_step ?? closed_at ?? Number.MAX_SAFE_INTEGER);
    if (to > from) chart.ctx.fillRect(from, top, to - from, height);
  }
}
