// The course of the last hour, first on the overview of a job without an open incident: speed, loss, goodput.

import { useEffect, useState } from "preact/hooks";
import { get } from "../api/client";
import { asOf, now } from "../api/connection";
import type { Incident, JobSummary, Trends } from "../api/types";
import { poll } from "../live/poll";
import { KEPT_S, sampled, samplesOf, seed } from "../live/samples";
import { mainValue, nonFinite, SHORTEST_SHARE, withLatest, withoutWaiting, withTrendGaps } from "../logic/charts";
import { isYoung } from "../logic/goodput";
import { outages, withOutages } from "../logic/outages";
import { over } from "../logic/phases";
import { bounds } from "../logic/range";
import { figure, percent, perSecond, speedText } from "../logic/text";
import { Broken } from "./charts";
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

/** `ratio`: goodput of the whole run as of now, which ends the line of a young one. */
export function Glance({ job, incidents, ratio }: Course & { ratio: number | null }) {
  const trends = useTrends(job);
  const range = hour(job);
  const shared = { incidents, range, together: job.id, live: isLive(job), height: HEIGHT };
  const logged = trends === null ? null : mainValue(trends.logged ?? {}, trends.non_finite);
  const broken = logged === null ? [] : nonFinite(trends!.at, trends!.non_finite?.[logged] ?? [], trends!.logged![logged]!);
  const hasSpeed = job.ended_at === null || samplesOf(job.id).time.length > 1;
  const hasGoodput = trends?.goodput_window.some((value) => value !== null) ?? false;
  const young = isYoung(job, asOf.value);
  const goodput = trends === null ? null : withLatest(job, asOf.value, heard(job, trends.at, trends.at), heard(job, trends.at, young ? trends.goodput : trends.goodput_window), young ? ratio : null);
  if (!hasSpeed && logged === null && !hasGoodput) return null;
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
      {goodput !== null && hasGoodput && (
        <div>
          <h2>Goodput <small>{young ? "of the run so far" : "of the hour before"}</small></h2>
          <Plot name="Goodput" time={goodput.time} format={percent} fit least={SHORTEST_SHARE} top={1} lines={[{ name: young ? "whole run" : "last hour", tone: "series-5", values: goodput.values }, ...(young ? withoutWaiting(job, goodput.time, trends!) : [])]} {...shared} />
        </div>
      )}
    </section>
  );
}

function Speed({ job, incidents, range }: Course & { range: readonly [number, number] }) {
  void sampled.value; // the samples grow in place
  const samples = samplesOf(job.id);
  const { time, values } = withOutages(heard(job, samples.time, samples.time), heard(job, samples.time, samples.rate), outages(incidents, job, samples.time.at(-1) ?? asOf.value));
  return (
    <div>
      <h2>Speed <small>steps per second; 0 while none completes</small></h2>
      <Plot
        key={job.id} name="Speed" height={HEIGHT} time={time} incidents={incidents} format={speedText} label={perSecond} range={range} together={job.id}
        live={isLive(job)} lines={[{ name: "speed", tone: "rank-running", fill: "chart-fill", values }]}
      />
    </div>
  );
}

const isLive = (job: JobSummary): boolean => job.ended_at === null && job.state !== "lost";

/** Of samples those before the last message of a lost job; of any other job all. `time`: theirs. */
function heard<T>(job: JobSummary, time: readonly number[], samples: T[]): T[] {
  const last = job.state === "lost" ? (job.last_heard ?? null) : null;
  const after = last === null ? -1 : time.findIndex((at) => at > last);
  return after < 0 ? samples : samples.slice(0, after);
}

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
      take(withTrendGaps(found));
    });
  }, [job.id, job.ended_at]);
  return trends;
}
