// One job: state or incident first, then the tabs.

import { useEffect, useMemo } from "preact/hooks";
import type { Problem } from "../api/client";
import type { Incident, JobState, JobSummary, Launcher } from "../api/types";
import type { Stale } from "../logic/serverclock";
import { asOf, now, responding, stale } from "../api/connection";
import { type Grid, type JobWatch, watchJob } from "../live/job";
import { useDetail } from "../live/detail";
import { speed } from "../live/speed";
import { checkpointFact } from "../logic/checkpoint";
import { goodputNotes, isUnsaved, spent } from "../logic/goodput";
import { focus, isFormer } from "../logic/incidents";
import { standing } from "../logic/severity";
import { recommendedOrder } from "../logic/nextaction";
import { isLoud, isMeasured } from "../logic/stragglers";
import { jobAddress, type Sight, type Tab, TABS } from "../logic/route";
import { ago, capital, clock, count, elapsed, gpuTime, percent, plural, rate, wholeDuration, zoned } from "../logic/text";
import { zoneName } from "../logic/zone";
import { Band } from "./band";
import { Charts } from "./charts";
import { Collectives } from "./collectives";
import { Control } from "./control";
import { Run } from "./copy";
import { type Fact, Facts } from "./facts";
import { Glance, PastRateChart, RateChart } from "./glance";
import { GoodputSection } from "./goodput";
import { IncidentList } from "./incidentlist";
import { Kernels } from "./kernels";
import { Launchers } from "./launchers";
import { Limits } from "./limits";
import { JobMark } from "./marks";
import { NextStep } from "./nextaction";
import { NodeLink } from "./placelinks";
import { RankGrid } from "./rankgrid";
import { RankTable } from "./ranktable";
import { RanksThen } from "./ranksthen";
import { forgetSelection, takeSight } from "./selection";
import { announcement } from "./shell";
import { SlowBanner } from "./slowbanner";
import { Stacks } from "./stacks";
import { Scores, Stragglers } from "./stragglers";
import { showInTab } from "./tab";
import { Timeline } from "./timeline";
import { answers, Verdict } from "./verdict";

/** Nodes of a lost job. */
const NODES_SHOWN = 6;
/** Ranks whose grid leaves room below it. */
const FEW_RANKS = 64;
const LOUD: ReadonlySet<JobState> = new Set<JobState>(["hung", "lost", "failed"]);
const TAB_WORDS: Record<Tab, string> = { overview: "Overview", timeline: "Section timeline", kernels: "Kernels", charts: "Charts", control: "Policy and actions" };

export function Job({ id, requested, tab, sight }: { id: string; requested: string | null; tab: Tab; sight: Sight }) {
  const watch: JobWatch = useMemo(() => watchJob(id), [id]);
  useEffect(() => () => (watch.close(), forgetSelection()), [watch]);
  useEffect(() => takeSight(sight), [sight]);
  const job = watch.job.value;
  const incidents = watch.incidents.value ?? [];
  const incident = focus(incidents, requested, job, asOf.value);
  const detail = useDetail(id, incident);
  const unknown = stale.value !== null;
  useEffect(() => {
    if (job === null) return;
    showInTab(unknown ? null : job.state, `${unknown ? "unknown" : job.state}: ${job.name}`);
    announcement.value = `Job ${job.name}: ${job.state}. ${zoned(job.reason, asOf.peek())}`;
  }, [job?.state, job?.name, job?.reason, unknown]);

  if (watch.unknown.value !== null && (job === null || responding.value)) return <Unknown id={id} problem={watch.unknown.value} />;
  if (job === null) return <p class="loading">Loading job {id}.</p>;
  const { timeouts, goodput, launchers, vitals, account, unsavedLog } = watch.slow;
  const over = job.ended_at !== null;
  // On the other tabs what is wrong is one line, so that what is looked at begins on the first screen.
  const brief = tab !== "overview";
  const ending = requested === null ? endedWith(job, incident) : null;
  const advised = requested === null && !unknown;
  const performance = watch.performance.value;
  const loud = isLoud(performance);
  const time = goodput.value === null ? null : spent(job, goodput.value, incidents, asOf.value);
  const broken = incident !== null && (requested !== null || incident.closed_at === null);
  // An incident that is over, by its own address: what is shown is as of then.
  const past = incident !== null && requested !== null && incident.closed_at !== null;
  // Until a rank of the next attempt reports, the ranks are those of the attempt that ended.
  const renewing = incident !== null && incident.closed_at === null && isFormer(job, incident) && job.ranks_reporting === 0;
  const state = stateWords(job, watch.grid.value, stale.value, ending);
  const nextStep = advised && job.advice !== null && (job.state === "lost" || job.state === "failed") && <NextStep job={job} facts={ending !== null ? answers(job, ending) : job.state === "lost" ? [...silent(job), ...nodesHeard(launchers.value)] : []} shared={incident === null} />;
  const headline = incident === null ? state : requested === null && incident.closed_at !== null ? `${state} ${incident.reason}` : incident.reason;
  const slow = !broken && requested === null && ["running", "slow"].includes(job.state) && performance !== null && performance.stragglers.length > 0 ? performance : null;
  // One slow rank stands above, with its figures.
  const led = slow !== null && slow.open === 1 && slow.ended.length === 0 && isMeasured(slow);
  const accounted = advised && !brief && !broken && slow === null && (job.state === "running" || job.state === "finished") ? account.value : [];
  const stragglers = performance !== null && !led && <Stragglers job={job} launchers={launchers.value} performance={performance} headline={headline} account={accounted.join(" ")} led={slow !== null} />;
  // Without incidents it is a bar, which a column has room for.
  const timeSpent = <GoodputSection job={job} goodput={goodput.value} incidents={incidents} spent={time} past={past && !over} />;
  const roomy = !past && !renewing && job.world_size <= FEW_RANKS;
  const wide = goodput.value?.incidents.length !== 0;
  const listed = !loud && !past && (["running", "slow"].includes(job.state) || (performance?.ended.length ?? 0) > 0) && stragglers;
  // Without a table it fits into a column.
  const calm = roomy && performance !== null && performance.open + performance.ended.length === 0;
  // What the script logs is drawn on the right.
  const filled = roomy && !broken && Object.keys(vitals.value?.logged ?? {}).length > 0;
  const besides = (
    <>
      <IncidentList job={job} incidents={incidents} shown={incident?.id ?? null} />
      {!past && <Launchers launchers={over ? [] : launchers.value} />}
      {!past && <Limits job={job} timeouts={timeouts.value} />}
      {!wide && filled && timeSpent}
    </>
  );
  return (
    <article class={brief ? "job brief" : "job"} data-state={job.state}>
      <Head job={job} incident={incident} past={past} />
      {requested !== null && incident === null && watch.incidents.value !== null && (
        <p class="note">
          This job has no incident {requested}. <a href={`#/jobs/${encodeURIComponent(id)}`}>Show the job as it is now</a>
        </p>
      )}
      {slow !== null && <SlowBanner job={job} launchers={launchers.value} performance={slow} title={state} brief={brief} />}
      {slow === null && requested === null && (incident?.closed_at !== null || job.state === "lost") && (brief && nextStep ? <Band kind="open" label="What to do about the job" title={state} brief>{nextStep}</Band> : <p class={`now${LOUD.has(job.state) ? " loud" : ""}${brief ? " brief" : ""}`}>{state}</p>)}
      {accounted.length > 0 && <Account clauses={accounted} />}
      {accounted.length > 0 && unsavedLog.value && <Run {...unsavedLog.value} />}
      {requested === null && !brief && job.repeated && <p class="note again"><b>{job.repeated.text}.</b></p>}
      {requested === null && !brief && job.no_restart && <p class="note whynot">No restart followed: {job.no_restart}.</p>}
      {!brief && nextStep}
      {incident && (!brief || incident.closed_at === null) && (
        <Verdict job={job} incident={incident} detail={detail} brief={brief} byAddress={requested !== null} titled={ending === null} detailed={ending === null || !advised || brief} launchers={launchers.value} />
      )}
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
      {tab === "control" && <Control job={job} launchers={launchers.value} recommended={recommendedOrder(job.advice, incident?.closed_at === null ? incident.headline || incident.reason : job.headline || job.reason)} />}
      {tab === "overview" && loud && !past && stragglers}
      {tab === "overview" && (
        <div class="columns">
          <div class="left">
            {renewing ? (
              <>
                <RanksThen watch={watch} incident={incident} worldSize={job.world_size} groups={detail.value?.stack_groups ?? []} />
                <RateChart job={job} incidents={incidents} />
                <details class="next-attempt">
                  <summary>No rank of attempt {job.attempt} has reported yet</summary>
                  <RankGrid watch={watch} incident={incident} />
                  <RankTable watch={watch} incident={incident} />
                </details>
              </>
            ) : past ? (
              <>
                <RanksThen watch={watch} incident={incident} worldSize={job.world_size} groups={detail.value?.stack_groups ?? []} />
                <PastRateChart job={job} incident={incident} incidents={incidents} />
              </>
            ) : (
              <>
                <RankGrid watch={watch} incident={incident} />
                <RankTable watch={watch} incident={incident} />
              </>
            )}
            {roomy && besides}
            {calm && listed}
          </div>
          <div class="right">
            {incident && <Stacks detail={detail} incident={incident} former={isFormer(job, incident)} />}
            {incident && <Collectives rows={detail.value?.collectives ?? []} />}
            {broken && !past && !renewing && <RateChart job={job} incidents={incidents} />}
            {!broken && <Glance job={job} incidents={incidents} explained={slow !== null} vitals={vitals.value} />}
            {!roomy && besides}
            {!wide && !filled && timeSpent}
          </div>
          {!calm && listed}
          {performance !== null && !past && <Scores performance={performance} />}
          {wide && timeSpent}
        </div>
      )}
    </article>
  );
}

/** Steps of which no save is known are a warning. */
function Account({ clauses: [first = "", ...rest] }: { clauses: readonly string[] }) {
  return <p class="note account">{capital(first)}{rest.map((clause) => <>; {isUnsaved(clause) ? <b>{zoned(clause, asOf.value)}</b> : clause}</>)}.</p>;
}

/** `past`: below is an incident that is over. */
function Head({ job, incident, past }: { job: JobSummary; incident: Incident | null; past: boolean }) {
  const { value, unit } = rate(speed(job));
  const over = job.ended_at !== null;
  const since = stale.value?.since;
  const until = job.state === "lost" ? (job.last_heard ?? null) : null;
  const ran = job.started_at === null ? null : (job.ended_at ?? until ?? asOf.value) - job.started_at;
  const lastly = until === null ? undefined : `until ${clock(until, asOf.value)}`;
  return (
    <header class="head">
      <div class="title">
        <JobMark state={job.state} />
        <h1>{job.name}</h1>
        {job.name !== job.id && <span class="id">{job.id}</span>}
        {since !== undefined ? <span class="tag">last known</span> : past && !over && <span class="tag">as of now</span>}
        {job.observe_only && <span class="tag">observe only</span>}
        {!job.instrumented && job.state === "running" && <span class="tag">not instrumented</span>}
      </div>
      <Facts
        kind="facts"
        facts={[
          job.iteration === null && incident?.closed_at === null && incident.furthest_iteration != null
            ? { label: "Step", value: count(incident.furthest_iteration), note: `of attempt ${incident.attempt}` }
            : { label: over ? "Final step" : "Step", value: count(job.iteration) },
          ...(job.checkpoint ? [{ label: "Last checkpoint", ...checkpointFact(job, asOf.value) }] : job.checkpoint === null && job.iteration !== null ? [{ label: "Last checkpoint", value: "none known" }] : []),
          ...(over ? [] : since !== undefined ? [{ label: "Speed", value: "unknown", note: `since ${clock(since, now.value)}` }] : job.state === "lost" ? lastHeard(job) : [{ label: "Speed", value, note: unit }]),
          over ? { label: "Ranks", value: count(job.world_size) } : { label: "Ranks reporting", value: count(job.ranks_reporting), note: `of ${count(job.world_size)}` },
          { label: "Attempt", value: job.attempt },
          { label: "Restarts used", value: job.restarts, note: job.max_restarts === 0 ? "none allowed" : `of ${job.max_restarts}` },
          { label: "Goodput", value: percent(job.goodput), note: goodputNotes(job, asOf.value) },
          { label: over ? "Ran for" : "Up", value: ran === null ? "–" : wholeDuration(ran), note: over ? `${ran === null ? "" : `${gpuTime(ran * job.world_size)}, `}ended ${clock(job.ended_at, asOf.value)} (${ago(job.ended_at, asOf.value)})` : (lastly ?? (job.started_at === null ? undefined : `since ${clock(job.started_at, asOf.value)}`)) },
        ]}
      />
    </header>
  );
}

/** Of a lost job nothing is known since its last message: it may train on. */
function lastHeard(job: JobSummary): Fact[] {
  // How long ago stands in the sentence below.
  const heard: Fact = { label: "Last heard", value: clock(job.last_heard ?? null, asOf.value) };
  return [{ label: "Speed", value: "unknown" }, ...(job.last_heard == null ? [] : [heard])];
}

/** Of a lost job, since when nothing is known of it, and what that has cost if it stands still. */
function silent({ last_heard: at, steps_at_risk: steps, world_size: ranks }: JobSummary): Fact[] {
  if (at == null) return [];
  const seconds = elapsed(at, asOf.value);
  return [
    { label: "Since", value: clock(at, asOf.value), note: zoneName(new Date(at * 1000)) },
    { label: "At stake", value: wholeDuration(seconds), note: `${gpuTime(seconds * ranks)} of all ${count(ranks)} ranks${steps ? `, and up to ${plural(steps, "step")}` : ""}, if it has stood still since` },
  ];
}

/** Of a lost job, when each node was last heard. */
function nodesHeard(launchers: readonly Launcher[]): Fact[] {
  return launchers.slice(0, NODES_SHOWN).map(({ host, ranks, ended, last_seen: at }) => ({
    label: "Node",
    value: <NodeLink host={host} />,
    note: [plural(ranks.length, "rank"), `its launcher ${ended !== null ? "ended" : at == null ? "is silent" : `was heard at ${clock(at, asOf.value)}`}`].join(", "),
  }));
}

/** The incident with which a failed job ended; null: it has not failed, or not with this one. */
function endedWith(job: JobSummary, incident: Incident | null): Incident | null {
  return job.state === "failed" && incident !== null && incident.closed_at !== null && incident.closed_at === job.ended_at ? incident : null;
}

function stateWords(job: JobSummary, grid: Grid | null, outdated: Stale | null, last: Incident | null): string {
  // The title is that of the open incident, also where the job was lost since.
  const known = (job.state === "lost" ? silence(job) : last?.title) || job.headline || job.reason || sentence(job, grid);
  const words = zoned(known, asOf.value);
  return outdated === null ? words : `Unknown since ${clock(outdated.since, now.value)}. Before: ${words}`;
}

/** How long nothing was received of a lost job: the only clock of its silence. */
function silence({ last_heard: at, reason }: JobSummary): string {
  if (at == null) return capital(reason);
  return `Nothing was received from any rank or launcher since ${clock(at, asOf.value)} (${wholeDuration(elapsed(at, asOf.value))})`;
}

/** The state in a sentence, for jobs whose summary has no reason. */
function sentence(job: JobSummary, grid: Grid | null): string {
  const missing = job.world_size - job.ranks_reporting;
  const others = grid === null ? "" : standing(grid.states, grid.legend);
  switch (job.state) {
    case "running":
      if (others !== "") return `No incident is open; of ${plural(job.world_size, "rank")}, ${others}.`;
      return missing > 0
        ? `${plural(job.ranks_reporting, "rank")} of ${count(job.world_size)} ${job.ranks_reporting === 1 ? "reports" : "report"}; no limit is exceeded.`
        : job.world_size === 1 ? "The rank is making progress." : `All ${count(job.world_size)} ranks are making progress.`;
    case "starting":
      return "No rank has made progress yet.";
    case "no step":
      return "No step has completed yet.";
    case "restarting":
      return "Restarted; no new step has been seen yet.";
    case "finished":
      return "All ranks ended with exit code 0.";
    case "stopped":
      return "Stopped by an order.";
    default:
      return "";
  }
}

function Unknown({ id, problem }: { id: string; problem: Problem }) {
  const none = problem.status === 404;
  return (
    <section class="empty">
      <h1>{none ? `The monitor does not know job ${id}.` : `This monitor does not show job ${id} now.`}</h1>
      <p>{none ? "A job appears here with the first report of one of its ranks." : problem.message}</p>
      <p>
        <a href="#/">All jobs of this monitor</a>
      </p>
    </section>
  );
}
