// What to do about a node to which something points, and about each job because of it.

import type { NodeDetail } from "../api/types";
import { orderOf } from "../logic/nextaction";
import { jobTitle } from "../logic/nodegpus";
import { jobAddress } from "../logic/route";
import { plural } from "../logic/text";
import { Alternatives, Run } from "./copy";
import { Folded } from "./folded";
import { narrow } from "./preferences";
import { Remaining } from "./remaining";
import { prepared } from "./selection";

type OfJob = NodeDetail["of_jobs"][number];

/** Commands for the node itself; a phone, on which none is run, shows them on demand. */
export function NodeAction({ node: { host, todo } }: { node: NodeDetail }) {
  if (!todo) return null;
  const { drain } = todo;
  const commands = [...todo.here, ...todo.anywhere, ...drain];
  const list = (
    <>
      <Commands commands={todo.here} where={`On ${host}:`} process={todo.process} />
      <Commands commands={todo.anywhere} where="Anywhere in the cluster:" />
      <Commands commands={drain} where={`To take ${host} out of service (jobs that run here go on), anywhere in the cluster:`} />
    </>
  );
  return (
    <section class="todo" aria-label="What to do about this node">
      <p class="what">{todo.text}</p>
      {commands.length > 0 && (narrow.value ? <details><summary>{plural(commands.length, "command")}</summary>{list}</details> : list)}
    </section>
  );
}

/** A line for each job, those that need nothing now folded. */
export function JobActions({ node: { host, of_jobs: jobs, jobs: parts, verdict } }: { node: NodeDetail }) {
  if (jobs.length === 0) return null;
  const line = (each: OfJob) => <JobAction key={each.job} of={each} known={parts.find(({ job }) => job === each.job)} host={host} verdict={verdict} />;
  const waiting = jobs.filter(({ advice }) => advice.waits);
  const runbooks = [...new Set(jobs.map(({ advice }) => advice.runbook).filter(Boolean))];
  return (
    <Folded name="of-jobs" title={`What to do in ${plural(jobs.length, "job")}`}>
      <ul>{jobs.filter(({ advice }) => !advice.waits).map(line)}</ul>
      {waiting.length > 0 && (
        <details open={waiting.length === jobs.length}>
          <summary>Nothing to do yet in {waiting.length === 1 ? "job" : "jobs"} {waiting.map(jobTitle).join(", ")}</summary>
          <ul>{waiting.map(line)}</ul>
        </details>
      )}
      {runbooks.length > 0 && <p class="ways"><a href={`/manual/${runbooks.length === 1 ? runbooks[0] : runbooks[0]!.replace(/#.*/, "")}`}>Runbook</a></p>}
    </Folded>
  );
}

/** `known`: its part of the node. */
function JobAction({ of, known, host, verdict }: { of: OfJob; known: NodeDetail["jobs"][number] | undefined; host: string; verdict: string }) {
  const { advice, remaining } = of;
  const order = advice.orders.find(({ hosts }) => hosts.length === 1 && hosts[0] === host);
  const leaveOut = () => {
    prepared.value = orderOf(order!, verdict);
    location.hash = jobAddress(of.job, "control");
  };
  const recommended = advice.proposed && advice.condition === "" && order === advice.orders[0];
  const text = [...(advice.waits ? [`${advice.text}.`] : advice.steps.map((step) => step.text)), ...(recommended || advice.waits ? [] : advice.notes)].join(" ");
  const commands = advice.steps.filter(({ command }) => command !== "");
  return (
    <li class="of-job">
      <p class="what"><a href={jobAddress(of.job)}>{jobTitle(of)}</a>: {text}</p>
      <Alternatives of={advice.alternatives} />
      {order && <button type="button" class={recommended ? "go" : undefined} aria-label={`${order.words} … (${jobTitle(of)})`} onClick={leaveOut}>{order.words} …</button>}
      {order && <Remaining left={remaining} />}
      {advice.weighs_restart && known && known.verdict.restart_loses !== "" && <small>A restart {known.verdict.restart_loses}</small>}
      {commands.length > 0 && <details><summary>Command</summary>{commands.map(({ command, host: on, note }) => <Run key={command} command={command} host={on === host ? "" : on} {...(note ? { note } : {})} />)}</details>}
    </li>
  );
}

/** `process`: what the last command is about. */
function Commands({ commands, where, process = "" }: { commands: readonly string[]; where: string; process?: string }) {
  if (commands.length === 0) return null;
  return (
    <div class="commands">
      <p class="where">{where}</p>
      {commands.map((command, i) => <Run key={command} command={command} host="" note={i === commands.length - 1 ? process : ""} />)}
    </div>
  );
}
