// What to do now about an incident or an ended or lost job: a sentence, the order to confirm, and the section of the runbook.

import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import type { Incident, JobSummary, NextAction, SlowAction } from "../api/types";
import { asOf } from "../api/connection";
import { awaited, dueBy, quietOf, quietStep } from "../logic/incidents";
import { offered, orderOf, type Prepared, stepOfJob } from "../logic/nextaction";
import { ACTIONS } from "../logic/policy";
import { jobAddress } from "../logic/route";
import { isSuspected, waited } from "../logic/suspicion";
import type { Windows } from "../live/slow_poll";
import { copyText } from "./clipboard";
import { NodeLink } from "./placelinks";
import { prepared } from "./selection";

interface Props {
  job: JobSummary;
  incident: Incident;
  windows: Windows;
}

export function WhatToDo({ job, incident, windows }: Props) {
  const next = job.state === "lost" ? null : incident.next_action;
  const offers = offered(job, incident);
  // Of a closed incident nothing is left to do, as a rule.
  if (!next?.text || (offers.length === 0 && incident.closed_at !== null)) return null;
  const quiet = quietOf(job, incident);
  const command = quiet === null ? next.command : quiet.command;
  const open = (order: Prepared) => {
    prepared.value = order;
    location.hash = jobAddress(job.id, "control");
  };
  return (
    <ToDo text={words(job, incident, next, windows)} more={command && <Run command={command} host="" />}>
      {offers.map(({ order, words }) => <button key={order.action} type="button" onClick={() => open(order)}>{words} …</button>)}
      {incident.closed_at === null && job.ended_at === null && <a href={jobAddress(job.id, "control")}>Other actions</a>}
      {next.runbook !== "" && <a href={`/manual/${next.runbook}`}>Runbook</a>}
    </ToDo>
  );
}

function words(job: JobSummary, incident: Incident, next: NextAction, { confirmation, firstReport }: Windows): string {
  const quiet = quietOf(job, incident);
  if (quiet !== null) return quietStep(quiet);
  if (isSuspected(incident) && next.action === null) return waited(incident, confirmation, asOf.value);
  return awaited(job, incident, firstReport, asOf.value) || dueBy(next, asOf.value);
}

/** The next step for a job that reports nothing, or that has failed. */
export function NextStep({ job }: { job: JobSummary }) {
  const step = stepOfJob(job);
  if (step === null) return null;
  return (
    <ToDo text={step.text}>
      <a href={`/manual/${step.runbook}`}>Runbook</a>
    </ToDo>
  );
}

/** What to do about a slow job: where to look, what to run there, and the order to restart without that node. */
export function WhatToDoSlow({ job, next, reason }: { job: string; next: SlowAction; reason: string }) {
  const order = orderOf(next, reason);
  const open = () => {
    prepared.value = order;
    location.hash = jobAddress(job, "control");
  };
  return (
    <ToDo
      text={next.text}
      more={next.command !== "" && <Run command={next.command} host={next.host} />}
    >
      {order !== null && <button type="button" onClick={open}>{next.host !== "" ? `Restart without ${next.host}` : ACTIONS.find(([name]) => name === order.action)![1]} …</button>}
      <a href={jobAddress(job, "timeline")}>Section timeline</a>
      <a href={`/manual/${next.runbook}`}>Runbook</a>
    </ToDo>
  );
}

/** A command to copy, to be run on a host; empty: anywhere in the cluster. */
function Run({ command, host }: { command: string; host: string }) {
  const [copied, setCopied] = useState("");
  const copy = async () => setCopied((await copyText(command)) ? "Copied" : "The browser does not allow to copy.");
  return (
    <p class="run">
      {host !== "" && <span>On <NodeLink host={host} />:</span>}<code>{command}</code>
      <button type="button" onClick={() => void copy()}>Copy</button>
      <small aria-live="polite">{copied}</small>
    </p>
  );
}

function ToDo({ text, more, children }: { text: string; more?: ComponentChildren; children: ComponentChildren }) {
  return (
    <section class="todo" aria-labelledby="todo">
      <h3 id="todo">What to do now</h3>
      <p>{text}</p>
      {more}
      <p class="ways">{children}</p>
    </section>
  );
}
