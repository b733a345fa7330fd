// The course of the last hour on the overview of a job without an open incident: speed, loss.

import { useEffect, useState } from "preact/hooks";
import { get } from "../api/client";
import { asOf, now } from "../api/connection";
import type { Incident, JobSummary, Trends } from "../api/types";
import { poll } from "../live/poll";
import { KEPT_S, sampled, samplesOf, seed } from "../live/samples";
import { heard, heardCount, mainValue, nonFinite, withTrendGaps } from "../logic/charts";
import { outages, withOutages } from "../logic/outages";
import { over } from "../logic/phases";
import { bounds } from "../logic/range";
import { figure, perSecond, speedText } from "../logic/text";
import { Broken, unknownWords } from "./charts";
import { Plot } from "./plot";

const EVERY_MS = 15_000;
const HEIGHT = 120;

interface Course {
  job: JobSummary;
  incidents: readonly Incident[];
}

/** The speed of the last hour, or since the job began. */
export function RateChart({ job, incidents }: Course) {
  useTrends(job);
  return (
    <section class="course">
      <Speed job={job} incidents={incidents} range={hour(job)} />
    </section>
  );
}

/** The speed around a past incident, with what it was then. */
export function PastRateChart({ job, incident, incidents }: Course & { incident: Incident }) {
  const began = incident.timeline.since ?? incident.opened_at;
  const ended = over(incident) ?? asOf.value;
  const room = Math.max(60, 2 * (ended - began));
  const [from, to] = [Math.floor(began - room), Math.ceil(ended + room)];
  const [trends, take] = useState<Trends | null>(null);
  useEffect(() => {
    take(null);
    return poll(EVERY_MS, async (stopped) => take(withTrendGaps(await get<Trends>(`/jobs/${encodeURIComponent(job.id)}/trends?since=${from - 60}&until=${to + 60}`, stopped))));
  }, [job.id, from, to]);
  if (trends === null || !(trends.speed ?? []).some((value) => value !== null)) return null;
  const { time, values } = withOutages(trends.at, trends.speed!, outages(incidents, job, asOf.value));
  const middle = (began + ended) / 2;
  const nearest = time.reduce((best, at, i) => (Math.abs(at - middle) < Math.abs(time[best]! - middle) ? i : best), 0);
  return (
    <section class="course">
      <div>
        <h2>Speed then <small>steps per second; 0 while none completes</small></h2>
        <Plot
          key={incident.id} name="Speed then" height={HEIGHT} time={time} incidents={incidents} format={speedText} label={perSecond} range={[from, to]} live={false} rest={nearest}
          lines={[{ name: "speed", tone: "rank-running", fill: "chart-fill", values }]}
        />
      </div>
    </section>
  );
}

export function Glance({ job, incidents }: Course) {
  const trends = useTrends(job);
  const range = hour(job);
  const shared = { incidents, range, together: job.id, live: isLive(job), height: HEIGHT, unknown: unknownIn(job, incidents, range) };
  const logged = trends === null ? null : mainValue(trends.logged ?? {}, trends.non_finite);
  const broken = logged === null ? [] : nonFinite(trends!.at, trends!.non_finite?.[logged] ?? [], trends!.logged![logged]!);
  const hasSpeed = job.ended_at === null || samplesOf(job.id).time.length > 1;
  if (!hasSpeed && logged === null) return null;
  return (
    <section class="course" aria-label={job.ended_at === null ? "The last hour" : "The last hour of the run"}>
      {hasSpeed && <Speed job={job} incidents={incidents} range={range} />}
      {trends !== null && logged !== null && (
        <div>
          <h2>{logged} <small>logged by the training script</small></h2>
          <Broken found={broken} />
          <Plot name={logged} time={trends.at} format={figure} fit broken={broken} lines={[{ name: logged, tone: "series-3", values: trends.logged![logged]! }]} {...shared} />
        </div>
      )}
    </section>
  );
}

function Speed({ job, incidents, range }: Course & { range: readonly [number, number] }) {
  void sampled.value; // the samples grow in place
  const samples = samplesOf(job.id);
  const count = heardCount(samples.time, job);
  const { time, values } = withOutages(samples.time.slice(0, count), samples.rate.slice(0, count), outages(incidents, job, samples.time.at(-1) ?? asOf.value));
  return (
    <div>
      <h2>Speed <small>steps per second; 0 while none completes</small></h2>
      <Plot
        key={job.id} name="Speed" height={HEIGHT} time={time} incidents={incidents} format={speedText} label={perSecond} range={range} together={job.id}
        live={isLive(job)} unknown={unknownIn(job, incidents, range)} lines={[{ name: "speed", tone: "rank-running", fill: "chart-fill", values }]}
      />
    </div>
  );
}

const isLive = (job: JobSummary): boolean => job.ended_at === null && job.state !== "lost";

const unknownIn = (job: JobSummary, incidents: readonly Incident[], range: readonly [number, number]) => (from: number, to: number) => unknownWords(from, to, job, incidents, range[1]);

/** First and last second shown. */
function hour(job: JobSummary): [number, number] {
  return bounds({ last: KEPT_S }, job.started_at, job.ended_at ?? asOf.value);
}

/** The stored trends of the last hour, which the samples of the speed are completed with. */
function useTrends(job: JobSummary): Trends | null {
  const [trends, take] = useState<Trends | null>(null);
  useEffect(() => {
    take(null);
    return poll(EVERY_MS, async (ended) => {
      const end = job.ended_at ?? now.peek();
      const found = await get<Trends>(`/jobs/${encodeURIComponent(job.id)}/trends?since=${Math.floor(end - KEPT_S)}&until=${Math.ceil(end + 60)}`, ended);
      seed(samplesOf(job.id), found);
      take(withTrendGaps(heard(found, job)));
    });
  }, [job.id, job.ended_at, job.state === "lost"]);
  return trends;
}
