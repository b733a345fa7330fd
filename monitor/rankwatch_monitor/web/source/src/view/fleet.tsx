// The list of jobs, those in trouble first.

import type { ComponentChildren } from "preact";
import { useEffect, useMemo } from "preact/hooks";
import type { JobState, JobSummary } from "../api/types";
import { asOf, now, stale } from "../api/connection";
import { type FleetWatch, isElsewhere, type Listed, watchFleet } from "../live/fleet";
import { speed } from "../live/samples";
import { jobAddress } from "../logic/route";
import { ago, clock, count, percent, rate } from "../logic/text";
import { Empty } from "./empty";
import { JobMark } from "./marks";
import { showInTab } from "./tab";

const ORDER: Record<JobState, number> = {
  hung: 0, lost: 1, recovering: 2, starting: 3, running: 4, failed: 5, stopped: 6, finished: 7,
};

export function Fleet() {
  const watch: FleetWatch = useMemo(watchFleet, []);
  useEffect(() => () => watch.close(), [watch]);
  const jobs = watch.jobs.value;
  const worst = jobs?.length ? jobs.reduce((a, b) => (ORDER[b.state] < ORDER[a.state] ? b : a)) : null;
  useEffect(() => showInTab(worst?.state ?? null, worst && ORDER[worst.state] < 3 ? `${worst.state}: ${worst.name}` : ""), [worst?.state, worst?.name]);
  if (jobs === null) return <p class="loading">Loading the jobs.</p>;
  if (jobs.length === 0) return <Empty />;
  const sorted = [...jobs].sort((a, b) => ORDER[a.state] - ORDER[b.state] || Number(isSlow(b)) - Number(isSlow(a)) || (b.started_at ?? 0) - (a.started_at ?? 0));
  return (
    <section class="fleet">
      <h1>{stale.value && `Unknown since ${clock(stale.value.since, now.value)}. Before: `}{summary(jobs)}</h1>
      <ul>
        {sorted.map((job) => (
          <JobRow key={job.id} job={job} />
        ))}
      </ul>
    </section>
  );
}

function summary(jobs: readonly Listed[]): string {
  const troubled = jobs.filter((job) => ORDER[job.state] < 3).length;
  const active = jobs.filter((job) => ORDER[job.state] < 5).length;
  if (troubled > 0) return `${troubled} of ${active} active ${active === 1 ? "job" : "jobs"} in trouble`;
  const slow = jobs.filter((job) => job.state === "running" && isSlow(job)).length;
  const unproven = jobs.filter((job) => job.state === "running" && hasNoStep(job)).length;
  if (unproven > 0) return active === 1 ? "One job, no step completed yet" : `${unproven} of ${active} active jobs have completed no step yet`;
  if (slow > 0) return active === 1 ? "One job, slower than it could be" : `${slow} of ${active} active jobs slower than they could be`;
  if (active > 0) return active === 1 ? "One job, no trouble" : `${active} jobs, no trouble`;
  return "No job is running";
}

function isSlow(job: Listed): boolean {
  return !isElsewhere(job) && job.verdict !== undefined && job.verdict !== "healthy" && !hasNoStep(job);
}

function hasNoStep(job: Listed): boolean {
  return !isElsewhere(job) && job.verdict === "no_step";
}

function coarse(then: number | null): string {
  // Only the larger unit.
  return ago(then, asOf.value).replace(/ .* ago/, " ago");
}

function JobRow({ job }: { job: Listed }) {
  const why = isElsewhere(job) ? (job.monitor === null ? "No monitor owns it at the moment." : `Owned by monitor ${job.monitor}.`) : (job.headline || job.reason);
  return (
    <li data-state={job.state}>
      <a href={jobAddress(job.id)}>
        <JobMark state={job.state} />
        <span class="what">
          <b>{job.name}</b>
          {job.name !== job.id && <small class="id">{job.id}</small>}
          {why && <span class="why">{why}</span>}
        </span>
        {!isElsewhere(job) && <Figures job={job} />}
      </a>
    </li>
  );
}

function Figures({ job }: { job: JobSummary }) {
  const perSecond = speed(job);
  const { value, unit } = rate(perSecond);
  const over = job.ended_at !== null;
  return (
    <>
      <Figure label={over ? "last step" : stale.value !== null ? "speed unknown" : perSecond === null ? "step" : `${value} ${unit}`}>{count(job.iteration)}</Figure>
      <Figure label={job.ranks_reporting === job.world_size || over ? "ranks" : `${count(job.ranks_reporting)} reporting`}>{count(job.world_size)}</Figure>
      <Figure label="restarts">
        {job.restarts}
        <i>/{job.max_restarts}</i>
      </Figure>
      <Figure label="goodput">{percent(job.goodput)}</Figure>
      <Figure label={over ? "ended" : "started"} name="figure when">{coarse(over ? job.ended_at : job.started_at)}</Figure>
    </>
  );
}

function Figure({ label, name = "figure", children }: { label: string; name?: string; children: ComponentChildren }) {
  return (
    <span class={name}>
      <b>{children}</b>
      <small>{label}</small>
    </span>
  );
}
