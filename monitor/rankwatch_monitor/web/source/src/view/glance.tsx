// The course of the last hour on the overview of a job without an open incident: speed, loss, throughput; below it, how the job trains.

import { useEffect, useState } from "preact/hooks";
import { get } from "../api/client";
import { asOf, now } from "../api/connection";
import type { Incident, JobSummary, Trends, Why } from "../api/types";
import { poll } from "../live/poll";
import { changeOf, heard, mainValues, speedCurve, withTrendGaps } from "../logic/charts";
import { eventsOf } from "../logic/phases";
import { bounds } from "../logic/range";
import { perSecond, speedText } from "../logic/text";
import { goesOn } from "../logic/verdict";
import { Explanation, Logged, unknownWords, useMarks } from "./charts";
import { Plot } from "./plot";

const EVERY_MS = 15_000;
const HOUR_S = 3600;
const HEIGHT = 120;

interface Course {
  job: JobSummary;
  incidents: readonly Incident[];
}

/** The last hour, or since the job began. */
export function Glance({ job, incidents }: Course) {
  const trends = useTrends(job, incidents);
  const range = hour(job);
  const logged = trends === null ? [] : mainValues(trends.logged ?? {}, trends.non_finite);
  const why = useWhy(job);
  const hasSpeed = job.ended_at === null || trends === null || (trends.speed ?? []).some((value) => value !== null);
  if (!hasSpeed && logged.length === 0) return null;
  return (
    <section class="course" aria-label={job.ended_at === null ? "The last hour" : "The last hour of the run"}>
      {hasSpeed && <Speed job={job} incidents={incidents} trends={trends} range={range} change={changeOf(why)} />}
      {goesOn(job) && why !== null && why.kind !== "unknown" && <Explanation why={why} />}
      {trends !== null && (
        <Logged
          names={logged} points={trends} incidents={incidents} range={range} together={job.id} live={goesOn(job)} height={HEIGHT}
          unknown={unknownIn(job, incidents, range)}
        />
      )}
    </section>
  );
}

function Speed({ job, incidents, trends, range, change }: Course & { trends: Trends | null; range: readonly [number, number]; change: number | null}) {
  const { time, values } = trends === null ? { time: [], values: [] } : speedCurve(job, trends, asOf.value, change);
  return (
    <div>
      <h2>Speed <small>steps per second; 0 while none completes</small></h2>
      <Plot
        key={job.id} name="Speed" height={HEIGHT} time={time} incidents={incidents} format={speedText} label={perSecond} range={range} together={job.id}
        live={goesOn(job)} marks={useMarks(change)} unknown={unknownIn(job, incidents, range)} lines={[{ name: "speed", tone: "rank-running", fill: "chart-fill", values }]}
      />
    </div>
  );
}

const unknownIn = (job: JobSummary, incidents: readonly Incident[], range: readonly [number, number]) => (from: number, to: number) => unknownWords(from, to, job, incidents, range[1]);

/** First and last second shown. */
function hour(job: JobSummary): [number, number] {
  return bounds({ last: HOUR_S }, job.started_at, job.ended_at ?? asOf.value);
}

/** The stored trends of the last hour; read at once when an incident begins or ends. */
function useTrends(job: JobSummary, incidents: readonly Incident[]): Trends | null {
  const [trends, take] = useState<Trends | null>(null);
  useEffect(() => take(null), [job.id]);
  useEffect(() => poll(EVERY_MS, async (ended) => {
    const end = job.ended_at ?? now.peek();
    const found = await get<Trends>(`/jobs/${encodeURIComponent(job.id)}/trends?since=${Math.floor(end - HOUR_S)}&until=${Math.ceil(end + 60)}`, ended);
    take(withTrendGaps(heard(found, job)));
  }), [job.id, job.ended_at, job.state === "lost", eventsOf(incidents)]);
  return trends;
}

/** How the step time changed; null: not read yet. */
function useWhy(job: JobSummary): Why | null {
  const [why, take] = useState<Why | null>(null);
  useEffect(() => {
    take(null);
    return poll(EVERY_MS, async (ended) => take(await get<Why>(`/jobs/${encodeURIComponent(job.id)}/why`, ended)));
  }, [job.id, goesOn(job)]);
  return why;
}
