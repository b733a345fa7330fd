// The course of the last hour: speed, loss, throughput, and how the step time changed.

import { get } from "../api/client";
import { asOf, now } from "../api/connection";
import type { Incident, JobSummary, Trends, Why } from "../api/types";
import { usePolled } from "../live/poll";
import { changeOf, heard, mainValues, speedCurve, withTrendGaps } from "../logic/charts";
import { eventsOf } from "../logic/phases";
import { bounds } from "../logic/range";
import { goesOn } from "../logic/verdict";
import { Explanation, Logged, SpeedChart, unknownWords, useMarks } from "./charts";

const EVERY_MS = 15_000;
const HOUR_S = 3600;

/** The last hour, or since the job began. */
export function Glance({ job, incidents }: { job: JobSummary; incidents: readonly Incident[] }) {
  const trends = useTrends(job, incidents);
  const why = usePolled(EVERY_MS, (ended) => get<Why>(`/jobs/${encodeURIComponent(job.id)}/why`, ended), [job.id, goesOn(job)]);
  const change = changeOf(why);
  const range = bounds({ last: HOUR_S }, job.started_at, job.ended_at ?? asOf.value);
  const axis = {
    incidents, range, marks: useMarks(change), together: job.id, live: goesOn(job), height: 120,
    unknown: (from: number, to: number) => unknownWords(from, to, job, incidents, range[1]),
  };
  const logged = trends === null ? [] : mainValues(trends.logged, trends.non_finite);
  const hasSpeed = job.ended_at === null || trends === null || trends.speed.some((value) => value !== null);
  if (!hasSpeed && logged.length === 0) return null;
  return (
    <section class="course" aria-label={job.ended_at === null ? "The last hour" : "The last hour of the run"}>
      {hasSpeed && <SpeedChart {...(trends === null ? { time: [], values: [] } : speedCurve(job, trends, asOf.value, change))} {...axis} />}
      {goesOn(job) && why !== null && why.kind !== "unknown" && <Explanation why={why} />}
      {trends !== null && <Logged names={logged} points={trends} {...axis} />}
    </section>
  );
}

/** The stored trends of the last hour; read at once when an incident begins or ends. */
function useTrends(job: JobSummary, incidents: readonly Incident[]): Trends | null {
  return usePolled(EVERY_MS, async (ended) => {
    const end = job.ended_at ?? now.peek();
    const found = await get<Trends>(`/jobs/${encodeURIComponent(job.id)}/trends?since=${Math.floor(end - HOUR_S)}&until=${Math.ceil(end + 60)}`, ended);
    return withTrendGaps(heard(found, job));
  }, [job.id, job.ended_at, job.state === "lost", eventsOf(incidents)]);
}
