// One incident: the reason, key facts, and the duration of each phase.

import type { Signal } from "@preact/signals";
import type { Incident, IncidentDetail, JobSummary } from "../api/types";
import { asOf } from "../api/connection";
import { classes, doing, hosts, otherRanks, rankTime, culpritRanks } from "../logic/incidents";
import { downtime, phases } from "../logic/phases";
import { jobAddress } from "../logic/route";
import { blame, isSuspected, unconfirmedEnd, whatFollows } from "../logic/suspicion";
import { ago, clock, duration, plural, words } from "../logic/text";
import { zoneName } from "../logic/zone";
import { type Fact, Facts } from "./facts";
import { WhatToDo } from "./nextaction";
import { PhaseBar } from "./phasebar";
import { NodeLink } from "./placelinks";
import { Share } from "./share";

interface Props {
  job: JobSummary;
  incident: Incident;
  detail: Signal<IncidentDetail | null>;
  /** The incident was opened by its own address. */
  byAddress: boolean;
  /** Of the job's policy, seconds; null: not known yet. */
  confirmationWindow: number | null;
}

export function Verdict({ job, incident, detail, byAddress, confirmationWindow }: Props) {
  const open = incident.closed_at === null;
  const suspected = isSuspected(incident);
  const unconfirmed = unconfirmedEnd(incident);
  const kind = ["verdict", suspected ? "suspected" : open && "open", !incident.confirmed && "unconfirmed"].filter(Boolean).join(" ");
  return (
    <section class={kind} aria-label={suspected ? "Suspected incident" : open ? "Open incident" : "Incident"}>
      <p class="kicker">
        <b>{suspected ? "Suspected" : open ? "Open incident" : byAddress ? "Past incident" : `Last incident, ${ago(incident.closed_at, asOf.value)}`}</b>
        {unconfirmed !== null && <span>{unconfirmed}</span>}
        <span>{words(incident.kind)}</span>
        <span>attempt {incident.attempt}</span>
        {byAddress && <a href={jobAddress(job.id)}>Show the job as it is now</a>}
      </p>
      <h2>{incident.headline || incident.reason}</h2>
      {incident.headline && incident.headline !== incident.reason && <p class="sequel">{incident.reason}</p>}
      {suspected ? <p class="sequel">{whatFollows(incident, confirmationWindow, asOf.value)}</p> : <Sequel job={job} incident={incident} />}
      <WhatToDo job={job} incident={incident} />
      <Facts kind="answers" facts={answers(job, incident)} />
      <PhaseBar phases={phases(incident, asOf.value)} />
      <Share job={job} id={incident.id} detail={detail} />
    </section>
  );
}

function Sequel({ job, incident }: { job: JobSummary; incident: Incident }) {
  if (incident.closed_at !== null) return incident.outcome === "" ? null : <p class="sequel">{incident.outcome}</p>;
  const text = job.reason !== "" && job.reason !== incident.reason ? job.reason : `Now ${doing(incident)}.`;
  return <p class="sequel">{text}</p>;
}

function answers(job: JobSummary, incident: Incident): Fact[] {
  const { culprits, timeline } = incident;
  const since = timeline.since ?? timeline.detected;
  const places = hosts(culprits);
  const host = places.length > 2 ? `${places.length} nodes` : places.map((each, i) => <>{i > 0 && ", "}<NodeLink host={each} /></>);
  const lost = downtime(timeline, incident.closed_at, asOf.value);
  const others = otherRanks(incident, job.world_size);
  return [
    { label: blame(incident) === "culprit" ? "Culprit" : "Suspect", value: culpritRanks(culprits), note: culprits.length === 0 ? undefined : <>{host}{places.length > 0 && classes(culprits) && ", "}{classes(culprits)}</> },
    { label: "Since", value: clock(since, asOf.value), note: since === null ? undefined : `${zoneName(new Date(since * 1000))}, ${ago(since, asOf.value)}` },
    where(incident),
    { label: done(incident), value: words(incident.action), note: incident.action_reason },
    {
      label: "Cost",
      value: lost === null ? "–" : `${duration(lost)}${incident.closed_at === null ? " so far" : ""}`,
      note: [
        incident.steps_lost === null ? null : plural(incident.steps_lost, "step") + " lost",
        lost === null ? null : rankTime(lost, job.world_size),
        others > 0 && incident.closed_at === null ? `${plural(others, "other rank")} affected` : null,
      ].filter(Boolean).join(", "),
    },
  ];
}

function done(incident: Incident): string {
  if (incident.closed_at !== null) return incident.confirmed ? "Action taken" : "Planned action";
  return isSuspected(incident) ? "Planned action" : "Action";
}

function where(incident: Incident): Fact {
  const over = incident.elapsed === null ? undefined : `${duration(incident.elapsed)}${incident.limit === null ? "" : `, limit ${duration(incident.limit)}`}`;
  if (incident.section !== null) return { label: "Where", value: <span class="code">{incident.section}</span>, note: over ?? "section" };
  return { label: "What", value: words(incident.kind), note: over ?? incident.culprits[0]?.reason };
}
