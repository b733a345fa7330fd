// What to do now about an incident or an ended or lost job: a sentence, the order to confirm, and the section of the runbook.

import type { ComponentChildren } from "preact";
import type { Incident, JobSummary, Launcher, NextAction, Place, SlowAction, Step } from "../api/types";
import { asOf } from "../api/connection";
import { repeats, resumesAfter } from "../logic/checkpoint";
import { awaited, dueBy, isFormer, quietOf, quietStep, reportsDue, restartsRanks } from "../logic/incidents";
import { offered, orderOf, orderWords, type Prepared, slowSteps, stepsOfJob } from "../logic/nextaction";
import { remaining } from "../logic/policy";
import { jobAddress } from "../logic/route";
import { isSuspected, waited } from "../logic/suspicion";
import type { Windows } from "../live/slow_poll";
import { Alternatives, Run } from "./copy";
import { type Fact, Facts } from "./facts";
import { Loss } from "./loss";
import { Remaining } from "./remaining";
import { prepared } from "./selection";
import { ShareJob } from "./share";

interface Props {
  job: JobSummary;
  incident: Incident;
  launchers: readonly Launcher[];
  windows: Windows;
  /** What shows the logs of the ranks that run now; null: not known. */
  logs: Place | null;
}

export function WhatToDo({ job, incident, launchers, windows, logs }: Props) {
  const next = job.state === "lost" ? null : incident.next_action;
  const offers = offered(job, incident);
  // Of a closed incident nothing is left to do, as a rule.
  if (!next?.text || (offers.length === 0 && incident.closed_at !== null)) return null;
  const quiet = quietOf(job, incident);
  const underWay = incident.phase === "acting" && restartsRanks(incident);
  const { look = "", again, command = "", host = "" } = incident.of_host ?? {};
  const beside = (quiet === null ? (command ? [again] : underWay ? [again, look] : [look, again]) : quiet.notes ?? []).filter(Boolean).join(" ");
  const waits = quiet === null && reportsDue(job, incident) !== null;
  const run = { command: quiet === null ? next.command : quiet.command, host: quiet === null ? (next.host ?? "") : "", ...(waits && logs) };
  const late = (reportsDue(job, incident) ?? Infinity) < asOf.value;
  const choosable = incident.phase !== "recovering" && offers.some(({ order }) => order.action !== "capture");
  const cost = (underWay || choosable) && <Loss what={underWay ? "The restart" : "A restart"} job={job} />;
  const renewed = incident.phase === "recovering" && isFormer(job, incident) && repeats(job);
  return (
    <ToDo steps={[{ text: words(job, incident, next, windows, logs), ...run, command: run.command ?? "" }, ...(command && quiet === null ? [{ text: look, command, host }] : [])]} note={<><Alternatives of={quiet?.alternatives} />{beside !== "" && <small>{beside} </small>}{cost}{renewed && <small>{renewed}</small>}</>}>
      {offers.map(({ order, words }, i) => <Offer key={order.action} job={job} order={order} words={words} launchers={launchers} go={i === 0 && (quiet === null ? late || next.action !== null : quiet.other_jobs === 0)} />)}
      {incident.closed_at === null && job.ended_at === null && <a href={jobAddress(job.id, "control")}>Other actions</a>}
      {next.runbook !== "" && <a href={`/manual/${next.runbook}`}>Runbook</a>}
    </ToDo>
  );
}

function words(job: JobSummary, incident: Incident, next: NextAction, { firstReport }: Windows, logs: Place | null): string {
  const quiet = quietOf(job, incident);
  if (quiet !== null) return quietStep(quiet);
  if (isSuspected(incident) && next.action === null) return waited(incident, asOf.value);
  return awaited(job, incident, firstReport, asOf.value, logs?.newest) || dueBy(next, asOf.value);
}

/** The next step for a job that reports nothing, or that has failed, and what is known of its end. `shared`: no incident below can be handed on. */
export function NextStep({ job, facts, shared }: { job: JobSummary; facts: Fact[]; shared: boolean }) {
  const found = stepsOfJob(job);
  if (found === null) return null;
  return (
    <div class="lead">
      <div class="beside">
        <ToDo steps={found.steps} note={<small>{resumesAfter(job, asOf.value)}</small>}>
          <a href={`/manual/${found.runbook}`}>Runbook</a>
        </ToDo>
        {facts.length > 0 && <Facts kind="answers" facts={facts} />}
      </div>
      {shared && <ShareJob job={job} />}
    </div>
  );
}

/** What to do about a slow job: where to look, what to run there, and the order to restart without that node. */
export function WhatToDoSlow({ job, launchers, next, reason }: { job: JobSummary; launchers: readonly Launcher[]; next: SlowAction; reason: string }) {
  const order = orderOf(next, reason);
  return (
    <ToDo steps={slowSteps(next)} note={next.then && <Loss what="A restart" job={job} />}>
      {order !== null && <Offer job={job} order={order} words={orderWords(order.action, [next.host].filter(Boolean))} launchers={launchers} />}
      <a href={jobAddress(job.id, "timeline")}>Section timeline</a>
      <a href={jobAddress(job.id, "control")}>Other actions</a>
      <a href={`/manual/${next.runbook}`}>Runbook</a>
    </ToDo>
  );
}

interface Offered {
  job: JobSummary;
  order: Prepared;
  words: string;
  launchers: readonly Launcher[];
  /** It is what is to be done now. */
  go?: boolean;
}

/** The button of an order, which is confirmed on its tab, and the nodes that it leaves. */
function Offer({ job, order, words, launchers, go = false }: Offered) {
  const open = () => {
    prepared.value = order;
    location.hash = jobAddress(job.id, "control");
  };
  return (
    <span class="offer">
      <button type="button" class={go ? "go" : undefined} onClick={open}>{words} …</button>
      {order.action === "restart_excluding_node" && <Remaining left={remaining([], order.ranks.join(","), launchers)} />}
    </span>
  );
}

/** `note`: what it costs. */
function ToDo({ steps, note, children }: { steps: readonly Step[]; note: ComponentChildren; children: ComponentChildren }) {
  const step = ({ text, ...run }: Step) => <><p>{text}</p>{run.command !== "" && <Run {...run} />}</>;
  return (
    <section class="todo" aria-labelledby="todo">
      <h3 id="todo">What to do now</h3>
      {steps.length === 1 ? step(steps[0]!) : <ol>{steps.map((each) => <li key={each.text}>{step(each)}</li>)}</ol>}
      {note}
      <p class="ways">{children}</p>
    </section>
  );
}
