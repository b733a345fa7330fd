// The list of jobs, those in trouble first.

import { signal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect } from "preact/hooks";
import type { JobSummary, Sparklines } from "../api/types";
import { asOf, stale } from "../api/connection";
import { useJobs, useNodes, useSparklines } from "../live/fleet";
import { speed } from "../live/speed";
import { ageOf, headline, isElsewhere, LABELS, type Listed, matching, sharedNames, type Sort, sorted, SORTS, urgencyOf } from "../logic/fleet";
import { nodesOf } from "../logic/nodemap";
import { orderOf } from "../logic/nextaction";
import { jobAddress, nodeAddress } from "../logic/route";
import { count, percent, rate } from "../logic/text";
import { nextText } from "../logic/verdict";
import { DigestSection } from "./digest";
import { Empty } from "./empty";
import { JobMark } from "./marks";
import { HeatMap } from "./nodemap";
import { narrow } from "./preferences";
import { prepared } from "./selection";
import { Before } from "./shell";
import { Sparkline } from "./sparkline";
import { showInTab } from "./tab";

/** Jobs from which on the list can be searched. */
const MANY = 4;
/** Seconds. */
const SHORT_LIFE = 1800;

const text = signal("");
const label = signal("");
const sort = signal<Sort>("urgency");

export function Fleet({ hours }: { hours: number }) {
  const [jobs, nodes, speeds] = [useJobs(), useNodes(), useSparklines()];
  const at = asOf.value;
  const urgent = sorted(jobs ?? [], "urgency", at, hours);
  const worst = urgent[0] ?? null;
  const troubled = worst !== null && ["bad", "waits"].includes(urgencyOf(worst, at, hours));
  const unknown = stale.value !== null;
  const title = unknown ? "unknown" : troubled ? `${worst.state}: ${worst.name}` : "";
  useEffect(() => showInTab(unknown ? null : worst?.state ?? null, title), [worst?.state, title]);
  if (jobs === null) return <p class="loading">Loading the jobs.</p>;
  if (jobs.length === 0) return <Empty />;
  // Of a shorter life a line over hours shows nothing.
  const drawn = speeds !== null && jobs.some((job) => isOld(job, at) && speeds.jobs[job.id] !== undefined);
  const choosing = jobs.length >= MANY;
  const shared = sharedNames(jobs);
  const visible = choosing ? sorted(matching(jobs, text.value, label.value, text.value !== "" && nodes ? nodesOf(nodes) : undefined), sort.value, at, hours) : urgent;
  return (
    <section class={drawn ? "fleet" : "fleet unspeeded"}>
      <header>
        <h1><Before />{headline(jobs, at, hours)}</h1>
        <DigestSection hours={hours} />
      </header>
      {choosing && <Choices jobs={jobs} />}
      {visible.length === 0 && (
        <p class="note">
          No job matches: {jobs.length} {jobs.length === 1 ? "is" : "are"} hidden by the search and the filter.{" "}
          <button type="button" onClick={() => ((text.value = ""), (label.value = ""))}>Show all jobs</button>
        </p>
      )}
      {visible.length > 0 && <Heads speeds={drawn} />}
      <ul class="jobs">
        {visible.map((job) => (
          <JobRow key={job.id} job={job} named={!shared.has(job.name)} hours={hours} sparklines={drawn && isOld(job, at) ? speeds : null} speeds={drawn} />
        ))}
      </ul>
      {nodes && nodes.hosts.length > 1 && <HeatMap map={nodes} />}
    </section>
  );
}

function Choices({ jobs }: { jobs: readonly Listed[] }) {
  const labels = jobs.map(({ state }) => state);
  const present = LABELS.filter((each) => each === label.value || labels.includes(each));
  const form = (
    <form class="choices" role="search" onSubmit={(event) => event.preventDefault()}>
      <label>
        Find <input type="search" value={text} placeholder="name, id, node, reason" onInput={(event) => (text.value = event.currentTarget.value)} />
      </label>
      <label>
        State{" "}
        <select value={label} onChange={(event) => (label.value = event.currentTarget.value)}>
          <option value="">all</option>
          {present.map((each) => <option key={each} value={each}>{each} ({labels.filter((of) => of === each).length})</option>)}
        </select>
      </label>
      <label>
        Sort by{" "}
        <select value={sort} onChange={(event) => (sort.value = event.currentTarget.value as Sort)}>
          {SORTS.map((each) => <option key={each} value={each}>{each}</option>)}
        </select>
      </label>
    </form>
  );
  if (!narrow.value) return form;
  return <details class="finding-jobs" open={text.value !== "" || label.value !== "" || sort.value !== "urgency"}><summary>Find, filter, sort</summary>{form}</details>;
}

/** Names of the columns, on wide screens; each figure also carries its name for narrow ones and screen readers. */
function Heads({ speeds }: { speeds: boolean }) {
  return (
    <p class="heads" aria-hidden="true">
      <span>State</span><span>Job</span>{speeds && <span>Last 4 h</span>}
      {["Steps/s", "Step", "Ranks", "Restarts", "Goodput"].map((name) => <span key={name} class="figure">{name}</span>)}
    </p>
  );
}

/** Whether it has lived for long enough that its speed over hours is a line. */
function isOld(job: Listed, at: number): boolean {
  return !isElsewhere(job) && (job.ended_at ?? at) - job.started_at >= SHORT_LIFE;
}

/** `named`: no other job has its name; `sparklines`: null: the job has none; `speeds`: others have, and there is a column for them. */
function JobRow({ job, named, hours, sparklines, speeds }: { job: Listed; named: boolean; hours: number; sparklines: Sparklines | null; speeds: boolean }) {
  const tone = urgencyOf(job, asOf.value, hours);
  const known = stale.value === null && !isElsewhere(job);
  const why = !isElsewhere(job) ? job.headline : job.monitor === null ? "No monitor owns it at the moment." : `Owned by monitor ${job.monitor}.`;
  const follows = known && tone === "waits" ? nextText(job, asOf.value) : "";
  // Its ranks wait now: what to do stands in the row. Of others it is on their page.
  const next = known && tone === "bad" && job.state === "hung" ? job.advice : null;
  const order = next?.proposed && next.condition === "" ? orderOf(next.orders[0]!, why) : null;
  const place = order !== null ? jobAddress(job.id, "control") : next?.host ? nodeAddress(next.host) : jobAddress(job.id);
  return (
    <li data-state={job.state} data-tone={tone} class={next ? "advised" : undefined}>
      <a href={jobAddress(job.id)} title={known && tone === "bad" ? job.advice?.text : undefined}>
        <span class="standing">
          <JobMark state={job.state} />
          {known && job.since !== null && <b class="age">{ageOf(job, asOf.value)}</b>}
        </span>
        <span class="what">
          <b>{job.name}</b>
          {job.name !== job.id && !named && <b class="id">{job.id}</b>}
          {why && <span class="why">{why}{follows && ` · ${follows}`}</span>}
        </span>
        {!isElsewhere(job) && (
          <>
            {speeds && <Sparkline job={job} of={sparklines} />}
            <Figures job={job} />
          </>
        )}
      </a>
      {next && <p class="next"><a href={place} onClick={() => order !== null && (prepared.value = order)}>{next.text}</a></p>}
    </li>
  );
}

function Figures({ job }: { job: JobSummary }) {
  const perSecond = speed(job);
  const { value, unit } = rate(perSecond);
  const over = job.ended_at !== null;
  const all = job.ranks_reporting === job.world_size || over;
  const known = stale.value === null && !over && job.state !== "lost" && perSecond !== null;
  return (
    <>
      <Figure label="speed" name="speed">{known ? <>{value} <i class={unit === "steps/s" ? "usual" : undefined}>{unit}</i></> : (stale.value !== null || job.state === "lost") && !over ? "unknown" : ""}</Figure>
      <Figure label={over ? "last step" : "step"} name="step">{count(job.iteration ?? job.iteration_before)}</Figure>
      <Figure label="ranks" name={all ? "" : "missing"}>{all ? count(job.world_size) : <>{count(job.ranks_reporting)}<i>/{count(job.world_size)}</i></>}</Figure>
      <Figure label="restarts">{job.restarts > 0 && <>{job.restarts}<i>/{job.max_restarts}</i></>}</Figure>
      <Figure label="goodput" name="goodput">{job.goodput !== null && percent(job.goodput)}</Figure>
    </>
  );
}

function Figure({ label, name = "", children }: { label: string; name?: string; children: ComponentChildren }) {
  return (
    <span class={`figure ${name}`}>
      {children !== false && children !== "" && <><b>{children}</b> <small>{label}</small></>}
    </span>
  );
}
