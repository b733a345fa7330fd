// An incident as text, to be copied or saved.

import type { Advice, IncidentDetail, JobSummary, StackGroup } from "../api/types";
import { costText, phases } from "./phases";
import { blame } from "./suspicion";
import { labelOf } from "./incidents";
import { duration, ofItLost, runs, words } from "./text";

const MANY = 100;

/** Unix seconds as "2026-11-24 12:37:43 UTC". */
function stamp(at: number | null): string {
  return at === null ? "-" : `${new Date(at * 1000).toISOString().slice(0, 19).replace("T", " ")} UTC`;
}

export function stacksText(incident: IncidentDetail): string {
  const groups = incident.stack_groups.map((group) => [title(group, incident), ...lines(group)].join("\n"));
  const failures = withoutStack(incident.stack_errors);
  return [...groups, ...(failures.length > 0 ? [failures.join("\n")] : [])].join("\n\n");
}

/** "No stack of ranks 8–15: host-1 did not answer the capture", a line for each reason. */
export function withoutStack(errors: IncidentDetail["stack_errors"]): string[] {
  const reasons = [...new Set(errors.map(({ error }) => error))];
  return reasons.map((reason) => {
    const ranks = errors.filter(({ error }) => error === reason).map(({ rank }) => rank);
    return `No stack of ${ranks.length === 1 ? "rank" : "ranks"} ${runs(ranks, MANY)}: ${reason}`;
  });
}

function title(group: StackGroup, incident: IncidentDetail): string {
  const facts = [culpritLabel(group, incident), group.process_state === "alive" ? "" : group.process_state].filter(Boolean);
  return `${group.ranks.length === 1 ? "rank" : "ranks"} ${runs(group.ranks, MANY)}${facts.length > 0 ? ` (${facts.join(", ")})` : ""}`;
}

function lines({ frames, note }: StackGroup): string[] {
  return [...(note ? [`  ${note}`] : []), ...frames.map(({ function: name, file, line }) => `  ${name} (${file}:${line})`)];
}

/** "culprit" if all ranks of the group are, else which of them; empty: none. */
export function culpritLabel(group: StackGroup, incident: IncidentDetail): string {
  if (!group.is_culprit) return "";
  const named = new Set(incident.culprits.map((culprit) => culprit.rank));
  const found = group.ranks.filter((rank) => named.has(rank));
  if (found.length === group.ranks.length || found.length === 0) return found.length > 1 ? `${blame(incident)}s` : blame(incident);
  return `${blame(incident)}: ${found.length === 1 ? "rank" : "ranks"} ${runs(found, 3)}`;
}

const part = (name: string, rows: readonly string[]) => (rows.length === 0 ? [] : ["", name, ...rows]);

const jobLine = (job: JobSummary, attempt: number): string => `Job:      ${job.name} (${job.id}), ${job.world_size} ranks, attempt ${attempt}`;

/** A job that is lost or failed, without an incident. */
export function jobText(job: JobSummary, address: string): string {
  return [
    job.headline || job.reason,
    "",
    jobLine(job, job.attempt),
    `State:    ${job.state}`,
    `Since:    ${stamp(job.last_heard ?? job.ended_at)}`,
    `Step:     ${job.iteration ?? "-"}`,
    `Page:     ${address}`,
    ...part("What to do now", adviceLines(job.advice)),
    "",
  ].join("\n").replaceAll("\u2009", " ");
}

/** What is awaited, then the steps, each with its command. */
const adviceLines = (advice: Advice | null): string[] => advice === null ? [] : [
  ...(advice.waits ? [`${advice.text}.`] : []),
  ...advice.steps.flatMap(({ text, command }, i) => [`${i + 1}. ${text}`, ...(command ? [`   ${command}`] : [])]),
];

export function incidentText(job: JobSummary, incident: IncidentDetail, address: string, now: number): string {
  const { timeline, culprits, collectives = [], logs = [] } = incident;
  return [
    incident.headline || incident.reason,
    ...(incident.headline ? [incident.reason] : []),
    "",
    jobLine(job, incident.attempt),
    `Incident: ${incident.id}, ${labelOf(incident)}, ${incident.closed_at === null ? "open" : "closed"}`,
    `Since:    ${stamp(timeline.since ?? timeline.detected)}`,
    `Closed:   ${stamp(incident.closed_at)}`,
    `Action:   ${words(incident.action)}${incident.action_reason && ` (${incident.action_reason})`}`,
    ...(incident.outcome ? [`Outcome:  ${incident.outcome}`] : []),
    `Cost:     ${[costText(incident, now), ofItLost(incident.lost_steps_s, incident.steps_lost)].filter(Boolean).join(", ")}`,
    `Page:     ${address}`,
    ...part("What to do now", incident.closed_at === null ? adviceLines(job.advice) : []),
    ...part("Culprits", culprits.map(({ rank, host, class: kind, reason }) => `rank ${rank} on ${host || "unknown node"}: ${words(kind)}${reason && `, ${reason}`}`)),
    ...part("Phases", phases(incident, now).map((phase) => `${phase.name} ${duration(phase.seconds)}, ${phase.note ?? (phase.to === null ? "going on" : `${phase.ends} ${stamp(phase.to)}`)}`)),
    ...part("Collectives", collectives.map((each) => `${each.group}: ranks ${runs(each.ranks, MANY)} entered ${each.operation} number ${each.enqueued}, completed ${each.completed}`)),
    ...part("Stacks, innermost frame first", [stacksText(incident) || "none"]),
    ...logs.flatMap(({ title, host, text, lines, place }) => part(`${title}${title.includes(host) ? "" : ` on ${host}`}`, [text, ...lines.map((line) => `  ${line}`), ...(place.command ? [`${place.host && `On ${place.host}: `}${place.command}`] : [])])),
    "",
  ].join("\n").replaceAll("\u2009", " ");
}
