// One incident: the reason, key facts, and the duration of each phase.

import type { Signal } from "@preact/signals";
import type { Incident, IncidentDetail, JobSummary, Launcher } from "../api/types";
import { asOf } from "../api/connection";
import { repeats } from "../logic/checkpoint";
import { shortFile } from "../logic/frames";
import { classes, culpritRanks, faultOf, hosts, isFormer, limitName, quietOf, restartsRanks, titleOf, wasTaken, withoutStacks } from "../logic/incidents";
import { costOf, costText, over, phases, took } from "../logic/phases";
import { jobAddress } from "../logic/route";
import { blame, isSuspected, unconfirmedEnd } from "../logic/suspicion";
import { ago, capital, clock, count, duration, gpuTime, limitText, ofItLost, plural, wholeDuration, words } from "../logic/text";
import { zoneName } from "../logic/zone";
import { Band } from "./band";
import { type Fact, Facts } from "./facts";
import { WhatToDo } from "./nextaction";
import { PhaseBar } from "./phasebar";
import { NodeLink, OfHost } from "./placelinks";
import { Share } from "./share";

interface Props {
  job: JobSummary;
  incident: Incident;
  detail: Signal<IncidentDetail | null>;
  /** The incident was opened by its own address. */
  byAddress: boolean;
  /** Only the title is shown, until it is opened. */
  brief: boolean;
  /** False: its title stands above, as how the job ended. */
  titled: boolean;
  /** False: its facts stand above, beside what to do about the job. */
  detailed: boolean;
  launchers: readonly Launcher[];
}

export function Verdict({ job, incident, detail, byAddress, brief, titled, detailed, launchers }: Props) {
  const open = incident.closed_at === null;
  const suspected = isSuspected(incident);
  const unconfirmed = unconfirmedEnd(incident);
  const quiet = quietOf(job, incident);
  const ofHost = incident.of_host ?? detail.value?.of_host;
  const kind = [suspected ? "suspected" : open && "open", !incident.confirmed && "unconfirmed"].filter(Boolean).join(" ");
  return (
    <Band kind={kind} label={suspected ? "Suspected incident" : open ? "Open incident" : "Incident"} title={titled ? titleOf(job, incident, asOf.value) : ""} brief={brief} kicker={
      <p class="kicker">
        <b>{suspected ? "Suspected" : open ? "Open incident" : byAddress ? "Past incident" : `Last incident, ${ago(over(incident), asOf.value)}`}</b>
        {unconfirmed !== null && <span>{unconfirmed}</span>}
        <span>{faultOf(job, incident)}</span>
        <span>attempt {incident.attempt}</span>
        {byAddress && <a href={jobAddress(job.id)}>Show the job as it is now</a>}
      </p>
    }>
      {incident.sequel !== "" && quiet === null && <p class="sequel">{incident.sequel}</p>}
      {!open && <Sequel job={job} incident={incident} newest={!byAddress} suspect={ofHost?.suspect} />}
      {open && incident.phase === "recovering" && isFormer(job, incident) && repeats(job) !== "" && <p class="sequel">{repeats(job)}</p>}
      {ofHost?.text && <OfHost {...ofHost} />}
      <div class="beside">
        {open && job.advice !== null && job.state !== "lost" && <WhatToDo job={job} advice={job.advice} reason={quiet === null ? incident.headline : quiet.headline} launchers={launchers} />}
        {detailed && <Facts kind="answers" facts={answers(job, incident)} />}
      </div>
      <PhaseBar phases={phases(incident, asOf.value)} />
      <Share job={job} id={incident.id} detail={detail} without={withoutStacks(incident)} />
    </Band>
  );
}

/** How an incident ended. `newest`: not a past incident, opened by its own address. */
function Sequel({ job, incident, newest, suspect }: { job: JobSummary; incident: Incident; newest: boolean; suspect: string | undefined }) {
  const { outcome } = incident;
  // Of a job that ended with it the reason stands above.
  const known = incident.ended === "job_ended" && job.ended_at === incident.closed_at;
  if (outcome === "" || known) return null;
  const done = newest && job.state === "running" && job.open_incidents === 0 && job.advice === null;
  const host = hosts(incident.culprits)[0];
  const before = suspect?.split(host!)[0] ?? "";
  return <p class="outcome">{asSentence(done ? `nothing to do ${suspect ? "in this job" : "now"}: ${outcome}` : outcome)}{done && suspect && host && <> {before}<NodeLink host={host} />{suspect.slice(before.length + host.length)}</>}</p>;
}

const asSentence = (text: string) => `${capital(text).replace(/\.$/, "")}.`;

export function answers(job: JobSummary, incident: Incident): Fact[] {
  const { culprits, timeline } = incident;
  const since = timeline.since ?? timeline.detected;
  const places = hosts(culprits);
  const host = places.length > 2 ? `${places.length} nodes` : places.map((each, i) => <>{i > 0 && ", "}<NodeLink host={each} /></>);
  const lost = costOf(incident, asOf.value);
  const ended = over(incident);
  const again = incident.closed_at !== null && incident.closed_at === job.ended_at ? (job.repeated ?? null) : null;
  const quiet = culprits.length === 0 ? quietOf(job, incident) : null;
  // An order of a person has no culprit, and what it is stands in its title.
  const ordered = incident.kind === "ordered";
  return [
    ...(ordered ? [] : [quiet !== null ? { label: "Suspect", value: quiet.hosts.length === 1 ? <NodeLink host={quiet.hosts[0]} /> : `${quiet.hosts.length} nodes`, note: `${plural(quiet.ranks.length, "rank")}, not heard` } : { label: `${blame(incident) === "culprit" ? "Culprit" : "Suspect"}${incident.closed_at === null && isFormer(job, incident) ? ` of attempt ${incident.attempt}` : ""}`, value: culpritRanks(culprits), note: culprits.length === 0 ? undefined : <>{host}{places.length > 0 && classes(culprits) && ", "}{classes(culprits)}</> }]),
    { label: ended === null ? "Since" : again === null ? "From" : "Last crash", value: ended === null || since === null ? clock(since, asOf.value) : [...new Set([since, ended].map((at) => clock(at, asOf.value)))].join(" to "), note: since === null ? undefined : `${zoneName(new Date(since * 1000))}${ended === null ? `, ${ago(since, asOf.value)}` : ""}` },
    ...(ordered ? [] : [where(job, incident)]),
    action(job, incident),
    {
      label: again === null ? "Cost" : `Cost of ${count(again.times)} crashes`,
      value: again !== null ? duration(again.cost) : costText(incident, asOf.value),
      note: [
        ofItLost((again ?? incident).lost_steps_s, (again ?? incident).steps_lost),
        again === null ? null : `the last one ${took(lost, ended === null)}`,
        `${gpuTime((again?.cost ?? lost) * job.world_size)}${job.world_size > 1 ? ` of all ${count(job.world_size)} ranks` : ""}`,
        ended === null && atRisk(job, incident),
        ended !== null && ended === job.ended_at && job.steps_at_risk && `up to ${plural(job.steps_at_risk, "step")} unsaved`,
      ].filter(Boolean).join(" · "),
    },
  ];
}

/** "up to 39 steps (39 s) more if restarted": what the cost of an open incident may grow by; empty: it is not known. */
function atRisk({ steps_at_risk: steps, step_seconds: each }: JobSummary, incident: Incident): string {
  return steps ? `up to ${plural(steps, "step")}${each ? ` (${wholeDuration(steps * each)})` : ""} more ${restartsRanks(incident) && ["acting", "recovering"].includes(incident.phase) ? "by this restart" : "if restarted"}` : "";
}

function action(job: JobSummary, incident: Incident): Fact {
  const why = incident.action_reason;
  if (job.no_restart && incident.closed_at === job.ended_at) return { label: "Action", value: "no restart", note: job.no_restart };
  const over = incident.closed_at !== null;
  if (incident.action === "log") return { label: "Action", value: "none", note: incident.withheld === "policy" ? "on_hang = log" : why };
  const taken = wasTaken(incident, job.ended_at);
  const label = taken ? "Action taken" : incident.phase === "acting" && job.state !== "lost" ? "Action under way" : "Planned action";
  const because = incident.kind === "ordered" ? "" : why; // it is the reason already
  return { label, value: words(incident.action), note: [!taken && over && "not taken", because].filter(Boolean).join("; ") };
}

function where(job: JobSummary, incident: Incident): Fact {
  const { elapsed, limit, place } = incident;
  const section = place?.section ?? null;
  const over = elapsed === null ? "" : `${duration(elapsed)} when detected${limit === null ? "" : `, ${limitName(incident)} ${limitText(limit)}`}`;
  const inSection = section === null ? "" : <>section <span class="code">{section}</span></>;
  if (place !== null && place.function !== "")
    return { label: "Where", value: <span class="code">{place.function}</span>, note: <><span class="code">{shortFile(place.file)}:{place.line}</span>{section !== null && <>, {inSection}</>}{over !== "" && <span class="over">{over}</span>}</> };
  if (section !== null) return { label: "Where", value: <span class="code">{section}</span>, note: over || "section" };
  return { label: "What", value: faultOf(job, incident), note: over || undefined };
}
