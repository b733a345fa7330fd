// What to do about a node to which something points: commands to copy, and the order to restart a job without it.

import type { NodeDetail } from "../api/types";
import { asOf } from "../api/connection";
import { dueBy } from "../logic/incidents";
import { orderOf } from "../logic/nextaction";
import { jobTitle } from "../logic/nodegpus";
import { jobAddress } from "../logic/route";
import { Run } from "./copy";
import { prepared } from "./selection";

export function NodeAction({ node: { host, todo = null, of_jobs: jobs = [], verdict = "" } }: { node: NodeDetail }) {
  if (todo === null && jobs.length === 0) return null;
  const leaveOut = (job: string, ranks: readonly number[]) => {
    prepared.value = orderOf({ action: "restart_excluding_node", ranks }, verdict);
    location.hash = jobAddress(job, "control");
  };
  return (
    <section class="todo" aria-label="What to do about this node">
      {todo !== null && (
        <>
          <p class="what">{todo.text}</p>
          <Commands commands={todo.here} where={`On ${host}:`} process={todo.process ?? ""} />
          <Commands commands={todo.anywhere} where="Anywhere in the cluster:" />
        </>
      )}
      {jobs.map((each) => (
        <div key={each.job} class="of-job">
          <p class="what"><a href={jobAddress(each.job)}>{jobTitle(each)}</a>: {dueBy(each, asOf.value)}</p>
          {each.command !== "" && <Run command={each.command} host={each.host === host ? "" : each.host} />}
          {each.note && <small>{each.note}</small>}
          <p class="ways">
            {each.ranks.length > 0 && <button type="button" class={each.recommended ? "go" : undefined} onClick={() => leaveOut(each.job, each.ranks)}>Restart {jobTitle(each)} without {host} …</button>}
            {each.runbook && <a href={`/manual/${each.runbook}`} aria-label={`Runbook for ${jobTitle(each)}`}>Runbook</a>}
          </p>
        </div>
      ))}
    </section>
  );
}

/** `process`: what the last command is about. */
function Commands({ commands, where, process = "" }: { commands: readonly string[]; where: string; process?: string }) {
  if (commands.length === 0) return null;
  return (
    <>
      <p class="where">{where}</p>
      {commands.map((command, i) => <Run key={command} command={command} host="" note={i === commands.length - 1 ? process : ""} />)}
    </>
  );
}
