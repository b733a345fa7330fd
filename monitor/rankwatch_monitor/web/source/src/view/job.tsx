// One job: its verdict, four figures and the grid; the rest is folded, or on the other tabs.

import { useEffect, useMemo } from "preact/hooks";
import type { Problem } from "../api/client";
import type { Clause, Incident, JobSummary, Vitals } from "../api/types";
import { asOf, now, responding, stale } from "../api/connection";
import { type JobWatch, useDetail, watchJob } from "../live/job";
import { speed } from "../live/speed";
import { checkpointFact } from "../logic/checkpoint";
import { focus, isFormer } from "../logic/incidents";
import { recommendedOrder } from "../logic/nextaction";
import { incidentAddress, jobAddress, type Sight, type Tab, TABS } from "../logic/route";
import { ago, capital, clock, count, figure, gpuTime, ofStep, rate, wholeDuration, wholePercent } from "../logic/text";
import { isTroubled, sinceText } from "../logic/verdict";
import { Charts } from "./charts";
import { Collectives } from "./collectives";
import { Control } from "./control";
import { Run } from "./copy";
import { type Fact, Facts } from "./facts";
import { Folded } from "./folded";
import { Glance } from "./glance";
import { GoodputSection } from "./goodput";
import { IncidentList } from "./incidentlist";
import { Kernels } from "./kernels";
import { Launchers } from "./launchers";
import { Limits } from "./limits";
import { JobMark } from "./marks";
import { NoPlace } from "./node";
import { RankGrid } from "./rankgrid";
import { RankTable } from "./ranktable";
import { forgetSelection, selected, takeSight } from "./selection";
import { announcement, Before } from "./shell";
import { Stacks } from "./stacks";
import { Stragglers } from "./stragglers";
import { showInTab } from "./tab";
import { Timeline } from "./timeline";
import { PastIncident, VerdictBand } from "./verdict";

const TAB_WORDS: Record<Tab, string> = { overview: "Overview", timeline: "Section timeline", kernels: "Kernels", charts: "Charts", control: "Policy and actions" };
/** Seconds for which the last incident of a job that trains has a line of its own. */
const RECENT = 3600;

export function Job({ id, requested, tab, sight }: { id: string; requested: string | null; tab: Tab; sight: Sight }) {
  const watch: JobWatch = useMemo(() => watchJob(id), [id]);
  useEffect(() => () => (watch.close(), forgetSelection()), [watch]);
  useEffect(() => takeSight(sight), [sight]);
  const job = watch.job.value;
  const incidents = watch.incidents.value ?? [];
  const incident = focus(incidents, requested, job);
  const detail = useDetail(id, incident);
  const outdated = stale.value !== null;
  useEffect(() => {
    if (job === null) return;
    showInTab(outdated ? null : job.state, `${outdated ? "unknown" : job.state}: ${job.name}`);
    announcement.value = `Job ${job.name}: ${job.state}. ${job.title}.`;
  }, [job?.state, job?.name, job?.title, outdated]);

  if (watch.unknown.value !== null && (job === null || responding.value)) return <NoPlace {...unknown(id, watch.unknown.value)} />;
  if (job === null) return <p class="loading">Loading job {id}.</p>;
  const { nodes: launchers = [], account = [], timeouts = [], vitals = null, unsaved_log: unsavedLog = null } = watch.slow.detail.value ?? {};
  const over = job.ended_at !== null;
  const brief = tab !== "overview";
  const performance = watch.performance.value;
  // An incident that is over, or not the open one, by its own address: what is shown of it is as of then.
  const past = incident !== null && requested !== null && incident.closed_at !== null && !(job.state === "failed" && incident.closed_at === job.ended_at);
  const slow = ["running", "slow"].includes(job.state) && performance !== null && performance.stragglers.length > 0 ? performance : null;
  const troubled = isTroubled(job);
  // Of an order that leaves the ranks as they are, its stacks are asked for.
  const ordered = incident !== null && incident.closed_at === null && !troubled;
  const recent = !troubled && !over && requested === null ? incidents.find(({ closed_at: closed, confirmed }) => confirmed && closed !== null && asOf.value - closed < RECENT) : undefined;
  return (
    <article class={brief ? "job brief" : "job"} data-state={job.state} data-tone={job.tone}>
      <Head job={job} past={past} />
      {requested !== null && incident === null && watch.incidents.value !== null && (
        <p class="note">
          This job has no incident {requested}. <a href={jobAddress(id)}>Show the job as it is now</a>
        </p>
      )}
      {past ? !brief && <PastIncident job={job} incident={incident} detail={detail} /> : troubled ? (
        <VerdictBand job={job} incident={incident} detail={detail} incidents={incidents} slow={slow} launchers={launchers} brief={brief} />
      ) : (
        <p class={brief ? "now brief" : "now"}>
          <Before />{job.title}{job.since !== null && <small> {sinceText(job, asOf.value)}</small>}
        </p>
      )}
      {!brief && over && !past && account.length > 0 && <Account clauses={account} />}
      {!brief && !past && unsavedLog && <Run {...unsavedLog} />}
      {!brief && recent && <p class="note recent">Last incident {clock(recent.opened_at, asOf.value)}: <a href={incidentAddress(id, recent.id)}>{recent.title}</a></p>}
      <nav class="tabs" aria-label="Parts of this job">
        {TABS.map((each) => (
          <a key={each} href={jobAddress(id, each)} aria-current={each === tab ? "page" : undefined}>
            {TAB_WORDS[each]}
          </a>
        ))}
      </nav>
      {tab === "timeline" && <Timeline watch={watch} incident={incident} />}
      {tab === "kernels" && <Kernels id={id} over={over} slow={slow?.stragglers[0] ?? null} throttled={slow?.throttled} />}
      {tab === "charts" && <Charts job={job} incidents={incidents} />}
      {tab === "control" && <Control job={job} launchers={launchers} recommended={recommendedOrder(job.advice, job.headline || job.reason)} />}
      {tab === "overview" && (
        <>
          {!past && !over && (!troubled || job.state === "slow") && <Facts kind="tiles" facts={tiles(job, vitals)} />}
          {!past && <RankGrid watch={watch} incident={incident} />}
          {ordered && <Stacks detail={detail} incident={incident} former={isFormer(job, incident)} />}
          {ordered && <Collectives rows={detail.value?.collectives ?? []} />}
          <Folded name="details" title="Details" open={selected.value !== null && sight.rank !== undefined}>
            <Facts kind="facts" facts={facts(job, incident)} />
            {!over && account.length > 0 && <Account clauses={account} />}
            {!past && <RankTable watch={watch} incident={incident} />}
            <div class="columns">
              <div class="left">
                <IncidentList job={job} incidents={incidents} shown={incident?.id ?? null} />
                <Launchers launchers={over ? [] : launchers} />
                <GoodputSection job={job} goodput={watch.slow.goodput.value} />
                <Limits timeouts={timeouts} />
              </div>
              <div class="right"><Glance job={job} incidents={incidents} /></div>
            </div>
            {performance !== null && !past && <Stragglers performance={performance} />}
          </Folded>
        </>
      )}
    </article>
  );
}

/** Steps of which no save is known are a warning. */
function Account({ clauses: [first, ...rest] }: { clauses: readonly Clause[] }) {
  return <p class="note account">{capital(first?.text ?? "")}{rest.map(({ text, warns }) => <>; {warns ? <b>{text}</b> : text}</>)}.</p>;
}

/** `past`: below is an incident that is over. */
function Head({ job, past }: { job: JobSummary; past: boolean }) {
  return (
    <header class="head">
      <div class="title">
        {(past || !isTroubled(job)) && <JobMark state={job.state} />}
        <h1>{job.name}</h1>
        {job.name !== job.id && <span class="id">{job.id}</span>}
        {stale.value !== null ? <span class="tag">last known</span> : past && job.ended_at === null && <span class="tag">as of now</span>}
        {job.observe_only && <span class="tag">observe only</span>}
        {!job.instrumented && job.state === "running" && <span class="tag">not instrumented</span>}
      </div>
    </header>
  );
}

/** How a job trains, in four figures. */
function tiles(job: JobSummary, vitals: Vitals | null): Fact[] {
  const step = vitals?.step ?? null;
  // Of one window, so that the figures agree; without one, and while no step completes, of the last seconds.
  const latest = speed(job);
  const perSecond = step !== null && latest !== 0 ? 1 / step.seconds : latest;
  const logged = Object.entries(vitals?.logged ?? {})[0];
  const { value, unit } = rate(perSecond);
  const unknown = stale.value !== null;
  return [
    { label: "Step time", value: unknown ? "unknown" : perSecond === null ? "–" : perSecond === 0 ? "no step" : ofStep(1 / perSecond), note: `step ${count(job.iteration ?? job.iteration_before)}` },
    logged === undefined ? { label: "Speed", value: unknown ? "unknown" : value, note: unit } : { label: logged[0], value: figure(logged[1]) },
    // Of a slow job it is in the sentence, over more steps.
    ...(job.state === "slow" ? [] : [{ label: "Waiting", value: step?.waiting == null ? "–" : ofStep(step.waiting), note: step?.waiting == null ? "not measured" : `${wholePercent(step.waiting / step.seconds)} of a step` }]),
    { label: "Last checkpoint", ...(job.checkpoint === null ? { value: "none known" } : checkpointFact(job, asOf.value)) },
  ];
}

function facts(job: JobSummary, incident: Incident | null): Fact[] {
  const { value, unit } = rate(speed(job));
  const over = job.ended_at !== null;
  const lost = job.state === "lost";
  const until = lost ? job.last_heard : job.ended_at;
  const ran = (until ?? asOf.value) - job.started_at;
  return [
    job.iteration === null && incident?.closed_at === null && incident.furthest_iteration != null
      ? { label: "Step", value: count(incident.furthest_iteration), note: `of attempt ${incident.attempt}` }
      : { label: over ? "Final step" : "Step", value: count(job.iteration) },
    ...(job.checkpoint !== null ? [{ label: "Last checkpoint", ...checkpointFact(job, asOf.value) }] : []),
    ...(over ? [] : [stale.value !== null ? { label: "Speed", value: "unknown", note: `since ${clock(stale.value.since, now.value)}` } : lost ? { label: "Speed", value: "unknown" } : { label: "Speed", value, note: unit }]),
    over ? { label: "Ranks", value: count(job.world_size) } : { label: "Ranks reporting", value: count(job.ranks_reporting), note: `of ${count(job.world_size)}` },
    { label: "Attempt", value: job.attempt },
    { label: "Restarts used", value: job.restarts, note: `of ${job.max_restarts}` },
    { label: over ? "Ran for" : "Up", value: wholeDuration(ran), note: over ? `${gpuTime(ran * job.world_size)}, ended ${clock(job.ended_at, asOf.value)} (${ago(job.ended_at, asOf.value)})` : `${lost ? "until" : "since"} ${clock(lost ? until : job.started_at, asOf.value)}` },
  ];
}

const unknown = (id: string, { status, message }: Problem) =>
  status === 404
    ? { title: `The monitor does not know job ${id}.`, detail: "A job appears here with the first report of one of its ranks." }
    : { title: `This monitor does not show job ${id} now.`, detail: message };
