// The list of jobs, those in trouble first.

import { signal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useMemo } from "preact/hooks";
import type { JobSummary } from "../api/types";
import { asOf, now, stale } from "../api/connection";
import { type FleetWatch, watchFleet } from "../live/fleet";
import { speed } from "../live/speed";
import { alarm, headline, isElsewhere, isTroubled, type Listed, matching, LABELS, namedOften, needsPerson, type Often, sharedNames, sinceWords, type Sort, sorted, SORTS, troubleAge, whyOf } from "../logic/fleet";
import { nodesOf } from "../logic/nodemap";
import { HOURS, incidentAddress, jobAddress } from "../logic/route";
import type { Sparklines } from "../logic/sparkline";
import { clock, count, elapsed, percent, plural, rate, roughly, zoned } from "../logic/text";
import { DigestSection } from "./digest";
import { Empty } from "./empty";
import { JobMark } from "./marks";
import { HeatMap } from "./nodemap";
import { NextLine } from "./nextlink";
import { NodeLink } from "./placelinks";
import { narrow } from "./preferences";
import { Sparkline } from "./sparkline";
import { showInTab } from "./tab";

/** Jobs from which on the list can be searched. */
const MANY = 4;
const HOSTS_SHOWN = 10;
const HOSTS_IN_LINE = 3;
/** Seconds. */
const SHORT_LIFE = 1800;

const text = signal("");
const label = signal("");
const sort = signal<Sort>("urgency");

export function Fleet({ hours }: { hours: number | undefined }) {
  const watch: FleetWatch = useMemo(watchFleet, []);
  useEffect(() => () => watch.close(), [watch]);
  const jobs = watch.jobs.value;
  const at = asOf.value;
  const span = hours ?? HOURS[0];
  const urgent = sorted(jobs ?? [], "urgency", at, span);
  const worst = urgent.find(isTroubled) ?? urgent[0] ?? null;
  const unknown = stale.value !== null;
  const title = unknown ? "unknown" : worst && isTroubled(worst) ? `${worst.state}: ${worst.name}` : "";
  useEffect(() => showInTab(unknown ? null : worst?.state ?? null, title), [worst?.state, title]);
  if (jobs === null) return <p class="loading">Loading the jobs.</p>;
  if (jobs.length === 0) return <Empty />;
  // Of a shorter life a line over hours shows nothing.
  const speeds = watch.sparklines.value;
  const drawn = speeds !== null && jobs.some((job) => isOld(job, at) && speeds.jobs[job.id] !== undefined);
  const choosing = jobs.length >= MANY;
  const shared = sharedNames(jobs);
  const repeated = namedOften(watch.hosts.value);
  const visible = choosing ? sorted(matching(jobs, text.value, label.value, text.value !== "" && watch.nodes.value ? nodesOf(watch.nodes.value) : undefined), sort.value, at, span) : urgent;
  return (
    <section class={drawn ? "fleet" : "fleet unspeeded"}>
      <h1>{stale.value && `Unknown since ${clock(stale.value.since, now.value)}. Before: `}{headline(jobs, at, span)}</h1>
      <DigestSection hours={hours} repeated={repeated.length} />
      {!narrow.value && <Repeated hosts={repeated} />}
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
          <JobRow key={job.id} job={job} named={!shared.has(job.name)} hours={span} sparklines={drawn && isOld(job, at) ? speeds : null} speeds={drawn} />
        ))}
      </ul>
      {watch.nodes.value && watch.nodes.value.hosts.length > 0 && <HeatMap map={watch.nodes.value} />}
      <Hosts hosts={repeated} />
    </section>
  );
}

/** In a line, those with the most incidents, and the way to the table of all below the jobs. */
function Repeated({ hosts }: { hosts: readonly Often[] }) {
  if (hosts.length === 0) return null;
  const more = hosts.length - HOSTS_IN_LINE;
  return (
    <p class="repeated">
      <button type="button" class="quiet" onClick={() => document.getElementById("hosts")?.scrollIntoView()}>Named more than once in 24 h</button>
      {hosts.slice(0, HOSTS_IN_LINE).map(({ host }) => <span key={host}> <NodeLink host={host} /></span>)}
      {more > 0 && ` and ${plural(more, "more node")}`}
    </p>
  );
}

/** Nodes that more than one incident has named lately: a driver, a link or a disk there may need a repair. */
function Hosts({ hosts }: { hosts: readonly Often[] }) {
  if (hosts.length === 0) return null;
  const known = hosts.some(({ gpu }) => gpu != null);
  return (
    <section class="hosts" aria-labelledby="hosts">
      <h2 id="hosts">Nodes named more than once <small>in 24 h, over all jobs</small></h2>
      <div class="scroll" tabIndex={0}>
        <table>
          <thead>
            <tr><th scope="col">Node</th><th scope="col">Named in</th><th scope="col" class="number">Jobs</th>{known && <th scope="col">Most faults</th>}<th scope="col">Last</th></tr>
          </thead>
          <tbody>
            {hosts.slice(0, HOSTS_SHOWN).map(({ host, lately, gpu = null, last }) => (
              <tr key={host}>
                <th scope="row"><NodeLink host={host} /></th>
                <td>{lately.counted}</td>
                <td class="number">{count(lately.jobs)}</td>
                {known && <td class="gpu">{gpu === null ? <small>no single GPU</small> : gpu}</td>}
                <td>{coarse(last.since ?? last.opened_at)}: <a href={incidentAddress(last.job, last.incident)}>{last.headline}</a> <small class="code">{last.job}</small></td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
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

function coarse(then: number | null): string {
  return then === null ? "–" : elapsed(then, asOf.value) < 1 ? "just now" : `${roughly(elapsed(then, asOf.value))} ago`;
}

/** Names of the columns, on wide screens; each figure also carries its name for narrow ones and screen readers. */
function Heads({ speeds }: { speeds: boolean }) {
  return (
    <p class="heads" aria-hidden="true">
      <span>State, since</span><span>Job</span>{speeds && <span>Speed, last 4 h</span>}
      {["Speed now", "Step", "Ranks", "Restarts", "Goodput", "Began"].map((name) => <span key={name} class="figure">{name}</span>)}
    </p>
  );
}

/** Whether it has lived for long enough that its speed over hours is a line. */
function isOld(job: Listed, at: number): boolean {
  return !isElsewhere(job) && job.started_at !== null && (job.ended_at ?? at) - job.started_at >= SHORT_LIFE;
}

/** `named`: no other job has its name; `sparklines`: null: the job has none; `speeds`: others have, and there is a column for them. */
function JobRow({ job, named, hours, sparklines, speeds }: { job: Listed; named: boolean; hours: number; sparklines: Sparklines | null; speeds: boolean }) {
  const why = isElsewhere(job) ? (job.monitor === null ? "No monitor owns it at the moment." : `Owned by monitor ${job.monitor}.`) : whyOf(job, asOf.value);
  const since = isElsewhere(job) ? null : (job.trouble_since ?? job.ended_at);
  const age = stale.value !== null || since === null ? "" : troubleAge(job, asOf.value) || coarse(since);
  return (
    <li data-state={job.state} class={alarm(job, asOf.value, hours) || undefined}>
      <a href={jobAddress(job.id)}>
        <span class="standing">
          <JobMark state={job.state} />
          {age !== "" && <b class="age">{age}</b>}
          {age !== "" && <small class="since">{sinceWords(job, asOf.value)}</small>}
        </span>
        <span class="what">
          <b>{job.name}</b>
          {job.name !== job.id && (named ? <small class="id">{job.id}</small> : <b class="id">{job.id}</b>)}
          {why && <span class="why">{zoned(why, asOf.value)}</span>}
        </span>
        {!isElsewhere(job) && (
          <>
            {speeds && <Sparkline job={job} of={sparklines} />}
            <Figures job={job} />
          </>
        )}
      </a>
      {!isElsewhere(job) && job.advice !== null && (job.advice.waits || needsPerson(job, asOf.value, hours)) && stale.value === null && <p class="next"><NextLine job={job.id} advice={job.advice} why={why} /></p>}
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
      <Figure label="speed" name="speed">{known ? <>{value} <i>{unit}</i></> : (stale.value !== null || job.state === "lost") && !over ? `${narrow.value ? "speed " : ""}unknown` : "–"}</Figure>
      <Figure label={over ? "last step" : "step"} name="step">{count(job.iteration ?? job.iteration_before)}</Figure>
      <Figure label="ranks" name={all ? "" : "missing"}>{all ? count(job.world_size) : <>{count(job.ranks_reporting)}<i>/{count(job.world_size)}</i></>}</Figure>
      <Figure label="restarts">
        {job.restarts}
        <i>/{job.max_restarts}</i>
      </Figure>
      <Figure label="goodput" name="goodput" note={goodputNote(job)}>{percent(job.goodput)}</Figure>
      <Figure label="began" name="when">{coarse(job.started_at)}</Figure>
    </>
  );
}

/** Up to when goodput is known, how much of it is lost waiting for slow ranks, or which steps may not be saved. */
function goodputNote(job: JobSummary): ComponentChildren {
  if (job.state === "lost" && job.last_heard != null) return <>until {clock(job.last_heard, asOf.value)}</>;
  const unsaved = job.unsaved;
  if (unsaved) return <span class="unsaved">{unsaved}</span>;
  return job.waited || null;
}

function Figure({ label, name = "", note = null, children }: { label: string; name?: string; note?: ComponentChildren; children: ComponentChildren }) {
  return (
    <span class={`figure ${name}`}>
      <b>{children}</b>
      <small>{label}</small>
      {note !== null && <i> {note}</i>}
    </span>
  );
}
