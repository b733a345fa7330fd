// What to do now about an incident or an ended or lost job: a sentence, the order to confirm, and the section of the runbook.

import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import type { Incident, JobSummary, SlowAction } from "../api/types";
import { asOf } from "../api/connection";
import { awaited, quietStep } from "../logic/incidents";
import { orderOf, preparedOrder, stepOfJob } from "../logic/nextaction";
import { ACTIONS } from "../logic/policy";
import { jobAddress } from "../logic/route";
import { copyText } from "./clipboard";
import { NodeLink } from "./placelinks";
import { prepared } from "./selection";

export function WhatToDo({ job, incident }: { job: JobSummary; incident: Incident }) {
  const next = job.state === "lost" ? null : incident.next_action;
  const order = job.ended_at === null ? preparedOrder(incident) : null;
  // Of a closed incident nothing is left to do, as a rule.
  if (!next?.text || (order === null && incident.closed_at !== null)) return null;
  const open = () => {
    prepared.value = order;
    location.hash = jobAddress(job.id, "control");
  };
  const quiet = incident.closed_at === null ? (job.quiet_host ?? null) : null;
  return (
    <ToDo text={quiet === null ? awaited(job, incident, asOf.value) || next.text : quietStep(quiet)}>
      {order !== null && <button type="button" onClick={open}>{ACTIONS.find(([name]) => name === order.action)![1]} …</button>}
      {order !== null && <a href={jobAddress(job.id, "control")}>Other actions</a>}
      {next.runbook !== "" && <a href={`/manual/${next.runbook}`}>Runbook</a>}
    </ToDo>
  );
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
  const [copied, setCopied] = useState("");
  const copy = async () => setCopied((await copyText(next.command)) ? "Copied" : "The browser does not allow to copy.");
  const open = () => {
    prepared.value = order;
    location.hash = jobAddress(job, "control");
  };
  return (
    <ToDo
      text={next.text}
      more={next.command !== "" && (
        <p class="run">
          {next.host !== "" && <span>On <NodeLink host={next.host} />:</span>}<code>{next.command}</code>
          <button type="button" onClick={() => void copy()}>Copy</button>
          <small aria-live="polite">{copied}</small>
        </p>
      )}
    >
      {order !== null && <button type="button" onClick={open}>{next.host !== "" ? `Restart without ${next.host}` : ACTIONS.find(([name]) => name === order.action)![1]} …</button>}
      <a href={jobAddress(job, "timeline")}>Section timeline</a>
      <a href={`/manual/${next.runbook}`}>Runbook</a>
    </ToDo>
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
