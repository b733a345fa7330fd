// What to do now about an incident or an ended or lost job: a sentence, the order to confirm, and the section of the runbook.

import type { ComponentChildren } from "preact";
import type { Incident, JobSummary } from "../api/types";
import { asOf } from "../api/connection";
import { awaited, quietStep } from "../logic/incidents";
import { preparedOrder, stepOfJob } from "../logic/nextaction";
import { ACTIONS } from "../logic/policy";
import { jobAddress } from "../logic/route";
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

function ToDo({ text, children }: { text: string; children: ComponentChildren }) {
  return (
    <section class="todo" aria-labelledby="todo">
      <h3 id="todo">What to do now</h3>
      <p>{text}</p>
      <p class="ways">{children}</p>
    </section>
  );
}
