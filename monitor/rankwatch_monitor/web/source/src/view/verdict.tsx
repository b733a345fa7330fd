// What is wrong with a job: a word and a sentence, a row of figures, and what to do. All else is folded.

import type { Signal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import type { Advice, Incident, IncidentDetail, JobSummary, Launcher, Performance, Step } from "../api/types";
import { asOf, stale } from "../api/connection";
import { stacksText } from "../logic/export";
import { shortFile } from "../logic/frames";
import { attempts, blame, classes, culpritRanks, hosts, isFormer, lastLines, wasTaken } from "../logic/incidents";
import { costOf, over, phases } from "../logic/phases";
import { orderOf } from "../logic/nextaction";
import { remaining } from "../logic/policy";
import { incidentAddress, jobAddress } from "../logic/route";
import { slowFacts } from "../logic/stragglers";
import { capital, clock, count, duration, gpuTime, limitText, plural, words } from "../logic/text";
import { passed, rowOf } from "../logic/verdict";
import { saveFile } from "./clipboard";
import { Collectives } from "./collectives";
import { Alternatives, Copy, Run } from "./copy";
import { type Fact, Facts } from "./facts";
import { Folded } from "./folded";
import { PhaseBar } from "./phasebar";
import { JobMark } from "./marks";
import { NodeLink } from "./placelinks";
import { Remaining } from "./remaining";
import { prepared } from "./selection";
import { Before } from "./shell";
import { Stacks } from "./stacks";

interface Props {
  job: JobSummary;
  /** The open one, or the one with which the job failed. */
  incident: Incident | null;
  detail: Signal<IncidentDetail | null>;
  incidents: readonly Incident[];
  /** The slow ranks of a slow job. */
  slow: Performance | null;
  launchers: readonly Launcher[];
  /** The sentence alone: what is looked at is below. */
  brief: boolean;
}

/** A job that is not as it should be, now. */
export function VerdictBand({ job, incident, detail, incidents, slow, launchers, brief }: Props) {
  const { advice, tone, state } = job;
  const known = stale.value === null;
  const failed = state === "failed";
  const beside = failed ? logsBeside(incident, detail.value) : [];
  // What the log of a rank tells stands below.
  const steps = (advice?.steps ?? []).filter(({ reads }) => !beside.some(({ rank }) => rank === reads));
  const head = <h2>{known ? <JobMark state={state} /> : <Before />} {job.title}</h2>;
  if (brief) return <section class={`verdict brief ${tone}`} aria-label="What is wrong with the job"><a href={jobAddress(job.id)}>{head}</a></section>;
  return (
    <section class={`verdict ${tone}`} aria-label="What is wrong with the job">
      {head}
      {known && <Row parts={rowOf(job, asOf.value)} />}
      {known && advice !== null && <ToDo job={job} advice={advice} step={steps[0]} launchers={launchers} />}
      {failed && <PostMortem job={job} incident={incident} beside={beside} incidents={incidents} />}
      <div class="folds">
        {failed && <Again job={job} stated={steps.length < 2} />}
        <Folded name="why" title="Why we think so">
          {incident !== null && <Reasons incident={incident} ofHost={incident.of_host ?? detail.value?.of_host} />}
          <Facts kind="answers" facts={[...(incident === null ? [] : answers(job, incident)), ...(slow === null ? [] : slowFacts(slow, asOf.value)), ...silence(job)]} />
          {incident !== null && <PhaseBar phases={phases(incident, asOf.value)} />}
          {known && advice !== null && <Further job={job} advice={advice} steps={steps.slice(advice.waits ? 0 : 1, failed ? -1 : undefined)} launchers={launchers} />}
          {incident !== null && <Evidence job={job} incident={incident} detail={detail} />}
        </Folded>
        <Share job={job} incident={incident} detail={detail} />
      </div>
    </section>
  );
}

/** An incident by its own address, when it is over or another one is open. */
export function PastIncident({ job, incident, detail }: { job: JobSummary; incident: Incident; detail: Signal<IncidentDetail | null> }) {
  const since = incident.timeline.since ?? incident.opened_at;
  const ended = over(incident);
  const lost = gpuTime(costOf(incident, asOf.value) * job.world_size);
  const row = [`${clock(since, asOf.value)}${ended === null ? "" : ` to ${clock(ended, asOf.value)}`}`, `attempt ${incident.attempt}`, `${lost} lost`, incident.steps_lost ? `${plural(incident.steps_lost, "step")} repeated` : ""].filter(Boolean);
  const outcome = incident.outcome === "" || incident.ended === "job_ended" ? "" : `${capital(incident.outcome).replace(/\.$/, "")}.`;
  return (
    <section class="verdict past" aria-label="Past incident">
      <h2><b class="word">{incident.confirmed ? "over" : "not confirmed"}</b> {incident.title}</h2>
      <Row parts={row} />
      {outcome !== "" && <p class="outcome">{outcome}</p>}
      <p class="ways"><a href={jobAddress(job.id)}>Show the job as it is now</a></p>
      <div class="folds">
        <Folded name="why" title="Why we think so" open>
          <Reasons incident={incident} ofHost={detail.value?.of_host} />
          <Facts kind="answers" facts={answers(job, incident)} />
          <PhaseBar phases={phases(incident, asOf.value)} />
          <Evidence job={job} incident={incident} detail={detail} />
        </Folded>
        <Share job={job} incident={incident} detail={detail} />
      </div>
    </section>
  );
}

const Row = ({ parts }: { parts: readonly string[] }) => (parts.length === 0 ? null : <p class="row">{parts.map((each) => <span key={each.replace(/\d.*/, "")}>{each}</span>)}</p>);

/** What to do first, or that nothing is to be done until a clock has run. */
function ToDo({ job, advice, step, launchers }: { job: JobSummary; advice: Advice; step: Step | undefined; launchers: readonly Launcher[] }) {
  const part = passed(job, asOf.value);
  // The command that launches a failed job again is folded.
  const again = job.state === "failed" && step === advice.steps.at(-1);
  const [order] = advice.orders;
  const proposed = order !== undefined && advice.proposed && !advice.waits;
  return (
    <div class="do">
      {part !== null && <div class="clock" role="img" aria-label={advice.text}><i style={{ width: `${100 * part}%` }} /></div>}
      {advice.waits ? <p class="wait">{advice.text}.</p> : step && <OneStep step={again ? { ...step, command: "" } : step} />}
      {proposed && <Offer job={job} order={order} launchers={launchers} go={advice.condition === ""} condition={advice.condition} loses={advice.weighs_restart ? job.restart_loses : ""} />}
    </div>
  );
}

/** The other steps, what follows from their outputs, and the orders that may be given. */
function Further({ job, advice, steps, launchers }: { job: JobSummary; advice: Advice; steps: readonly Step[]; launchers: readonly Launcher[] }) {
  const { orders, waits, otherwise, proposed } = advice;
  return (
    <div class="further">
      {steps.length > 0 && <ol>{steps.map((each) => <li key={each.text}><OneStep step={each} /></li>)}</ol>}
      <Alternatives of={advice.alternatives} />
      {otherwise && <OneStep step={otherwise} />}
      {advice.notes.length > 0 && <p class="note">{advice.notes.join(" ")}</p>}
      <p class="ways">
        {orders.slice(proposed && !waits ? 1 : 0).map((order) => <Offer key={order.action} job={job} order={order} launchers={launchers} go={false} condition="" loses={advice.weighs_restart ? job.restart_loses : ""} />)}
        {job.ended_at === null && job.state !== "lost" && <a href={jobAddress(job.id, "control")}>Other actions</a>}
        {advice.runbook !== "" && <a href={`/manual/${advice.runbook}`}>Runbook</a>}
      </p>
    </div>
  );
}

const OneStep = ({ step: { text, ...run } }: { step: Step }) => <><p>{text}</p>{run.command !== "" && <Run {...run} />}</>;

/** The button of an order, which is confirmed on its tab, with what it loses. Red is only what a click loses. */
function Offer({ job, order, launchers, go, condition, loses }: { job: JobSummary; order: Advice["orders"][number]; launchers: readonly Launcher[]; go: boolean; condition: string; loses: string }) {
  const made = orderOf(order, job.headline || job.reason);
  if (made === null) return null;
  const open = () => {
    prepared.value = made;
    location.hash = jobAddress(job.id, "control");
  };
  return (
    <span class="offer">
      <button type="button" class={go ? "go" : undefined} onClick={open}>{order.words} …</button>
      {condition !== "" && <small>{condition}</small>}
      {loses !== "" && order.action !== "capture" && <small class={job.checkpoint === null ? "all-lost" : "loses"}>{loses}</small>}
      {order.action === "restart_excluding_node" && <Remaining left={remaining([], order.ranks.join(","), launchers)} />}
    </span>
  );
}

const isBlamed = (incident: Incident | null, rank: number) => incident?.culprits.some((each) => each.rank === rank) ?? false;

/** The log of the culprit, and that of the first victim. */
function logsBeside(incident: Incident | null, detail: IncidentDetail | null): IncidentDetail["logs"] {
  const logs = (detail?.logs ?? []).filter(({ lines }) => lines.length > 0);
  return [logs.find(({ rank }) => isBlamed(incident, rank)), logs.find(({ rank }) => !isBlamed(incident, rank))].filter((each) => each !== undefined);
}

/** How a job failed: the last lines of two ranks, and its attempts. */
function PostMortem({ job, incident, beside, incidents }: { job: JobSummary; incident: Incident | null; beside: IncidentDetail["logs"]; incidents: readonly Incident[] }) {
  const steps = job.advice?.steps ?? [];
  return (
    <div class="post-mortem">
      {beside.length > 0 && (
        <div class="beside">
          {beside.map(({ rank, title, lines }) => (
            <figure key={rank}>
              <figcaption>{title}{!isBlamed(incident, rank) && ", which followed"}</figcaption>
              {steps.map((each) => each.reads === rank && each.command !== "" && <Folded key={each.text} name="whole-log" title="Whole log"><Run {...each} /></Folded>)}
              <pre tabIndex={0}>{lastLines(lines).join("\n")}</pre>
            </figure>
          ))}
        </div>
      )}
      <p class="attempts">
        {attempts(job, incidents).map(({ attempt, step, id, label }) => <a key={attempt} {...(id === null ? {} : { href: incidentAddress(job.id, id) })} title={label}>attempt {attempt} <b>✕</b>{step !== null && <small> after step {count(step)}</small>}</a>)}
        {job.no_restart !== "" && <span>no restart: {job.no_restart.split(OPTION).map((part, i) => (i % 2 === 0 ? part : <span class="nowrap">{part}</span>))}</span>}
      </p>
    </div>
  );
}

/** An option of a command, which does not break at its hyphens. */
const OPTION = /(\(?--[\w-]+\)?)/;

/** How a failed job is launched again. `stated`: what to do before that is above. */
function Again({ job, stated }: { job: JobSummary; stated: boolean }) {
  const again = job.advice?.steps.at(-1);
  return again && (
    <Folded name="again" title="Launch again">
      {job.restart_loses !== "" && <p>Another launch {job.restart_loses}.</p>}
      {stated ? again.command !== "" && <Run {...again} /> : <OneStep step={again} />}
    </Folded>
  );
}

/** How it was detected, what proved it, and what else is known of the host. */
function Reasons({ incident, ofHost }: { incident: Incident; ofHost: IncidentDetail["of_host"] | undefined }) {
  return (
    <>
      {incident.detail !== "" && <p class="sequel">{incident.detail}</p>}
      {ofHost && (ofHost.text || ofHost.suspect) && <p class="sequel">{ofHost.text} {ofHost.suspect} <small>Node <NodeLink host={ofHost.host} /></small></p>}
    </>
  );
}

function Evidence({ job, incident, detail }: { job: JobSummary; incident: Incident; detail: Signal<IncidentDetail | null> }) {
  return (
    <>
      <Stacks detail={detail} incident={incident} former={isFormer(job, incident)} />
      <Collectives rows={detail.value?.collectives ?? []} />
    </>
  );
}

function answers(job: JobSummary, incident: Incident): Fact[] {
  const { culprits, elapsed, limit, place } = incident;
  const places = hosts(culprits);
  const host = places.length > 2 ? `${places.length} nodes` : places.map((each, i) => <>{i > 0 && ", "}<NodeLink host={each} /></>);
  const passed = elapsed === null ? "" : `${duration(elapsed)} when detected${limit === null ? "" : `, ${[words(incident.limit_source ?? ""), "limit", limitText(limit)].filter(Boolean).join(" ")}`}`;
  const where = place === null ? [] : [{
    label: "Where", value: <span class="code">{place.function || place.section}</span>,
    note: <>{place.function !== "" && <><span class="code">{shortFile(place.file)}:{place.line}</span>{place.section && <>, section <span class="code">{place.section}</span></>}</>}{place.function !== "" && passed !== "" && ", "}{passed}</>,
  }];
  const taken = wasTaken(incident, job.ended_at) ? "Action taken" : incident.closed_at === null ? "Planned action" : "Action not taken";
  return [
    ...(culprits.length === 0 ? [] : [{ label: capital(blame(incident)), value: culpritRanks(culprits), note: <>{host}{places.length > 0 && classes(culprits) && ", "}{classes(culprits)}</> }]),
    ...where,
    incident.action === "log" ? { label: "Action", value: "none", note: incident.action_reason } : { label: taken, value: words(incident.action), note: incident.action_reason },
  ];
}

/** Hosts that are not heard, or the whole of a lost job. */
function silence({ quiet_host: quiet, state, last_heard: heard, steps_at_risk: steps }: JobSummary): Fact[] {
  if (state === "lost" && heard !== null) return [{ label: "Last heard", value: clock(heard, asOf.value), note: steps ? `up to ${plural(steps, "step")} since the last checkpoint` : undefined }];
  if (quiet === null) return [];
  const several: ComponentChildren = quiet.hosts.length === 1 ? <NodeLink host={quiet.hosts[0]} /> : plural(quiet.hosts.length, "node");
  return [{ label: "Not heard", value: several, note: `${plural(quiet.ranks.length, "rank")}, since ${clock(quiet.since, asOf.value)}` }];
}

/** What can be handed on: the address, the stacks, and all of it in a file. */
function Share({ job, incident, detail }: { job: JobSummary; incident: Incident | null; detail: Signal<IncidentDetail | null> }) {
  const address = location.origin + location.pathname + (incident === null ? jobAddress(job.id) : incidentAddress(job.id, incident.id));
  const stacks = detail.value === null ? "" : stacksText(detail.value);
  const save = () => saveFile(`${incident?.id ?? job.id}.json`, JSON.stringify({ job, incident: detail.value ?? incident }, null, 2), "application/json");
  return (
    <Folded name="share" title="Share">
      <p class="ways">
        <Copy text={address} label="Copy link" />
        {stacks !== "" && <Copy text={stacks} label="Copy stacks" />}
        <button type="button" onClick={save}>Download all</button>
      </p>
    </Folded>
  );
}
