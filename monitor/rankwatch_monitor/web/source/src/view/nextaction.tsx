// What to do about an incident now: a sentence, the order to confirm, and the section of the runbook.

import type { Incident, JobSummary } from "../api/types";
import { preparedOrder } from "../logic/nextaction";
import { ACTIONS } from "../logic/policy";
import { jobAddress } from "../logic/route";
import { prepared } from "./selection";

export function WhatToDo({ job, incident }: { job: JobSummary; incident: Incident }) {
  const next = incident.next_action;
  const order = job.ended_at === null ? preparedOrder(incident) : null;
  // Of a closed incident nothing is left to do, as a rule.
  if (!next?.text || (order === null && incident.closed_at !== null)) return null;
  const open = () => {
    prepared.value = order;
    location.hash = jobAddress(job.id, "control");
  };
  return (
    <section class="todo" aria-labelledby="todo">
      <h3 id="todo">What to do now</h3>
      <p>{next.text}</p>
      {(order !== null || next.runbook !== "") && (
        <p class="ways">
          {order !== null && <button type="button" onClick={open}>{ACTIONS.find(([name]) => name === order.action)![1]} …</button>}
          {next.runbook !== "" && <a href={`/manual/${next.runbook}`}>Runbook</a>}
        </p>
      )}
    </section>
  );
}
