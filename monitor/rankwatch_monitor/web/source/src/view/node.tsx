// One node over all jobs: its ranks and devices, launchers, groups, and the incidents that named it.

import { useEffect } from "preact/hooks";
import { get } from "../api/client";
import type { NodeDetail } from "../api/types";
import { asOf, stale } from "../api/connection";
import { useAnswer } from "../live/poll";
import { listen } from "../live/stream";
import { isGone, launcherWords, type Part } from "../logic/nodejobs";
import { incidentAddress, jobAddress } from "../logic/route";
import { took } from "../logic/phases";
import { capital, clock, plural } from "../logic/text";
import { Folded } from "./folded";
import { JobActions, NodeAction } from "./nodeaction";
import { NodeGpus } from "./nodegpus";
import { NodeJobs } from "./nodejobs";
import { Before } from "./shell";
import { showInTab } from "./tab";

const EVERY_MS = 2000;

export function NodePage({ host }: { host: string }) {
  const { answer: node, problem } = useAnswer(EVERY_MS, (ended) => get<NodeDetail>(`/nodes/${encodeURIComponent(host)}`, ended), [host]);
  // The stream of all jobs shows whether the monitor is alive.
  useEffect(() => listen("/events", {}).close, []);
  useEffect(() => showInTab(null, host), [host]);
  if (problem !== null) return <NoPlace title={`The monitor does not know node ${host}.`} detail={problem.message} />;
  if (node === null) return <p class="loading">Loading node {host}.</p>;
  return (
    <article class="place">
      <header>
        <h1>Node <span class="code">{node.host}</span></h1>
        <p class="job-state" data-state={node.state === "up" || node.state === "idle" ? undefined : "suspected"}><b>{node.state}</b> <small>{stale.value === null ? node.presence : "when last heard"}</small></p>
      </header>
      <p class="standing"><Before />{node.verdict}</p>
      <NodeAction node={node} />
      <JobActions node={node} />
      <NodeJobs parts={node.jobs} host={host} />
      <NodeGpus node={node} />
      {node.incidents.length > 0 && <Incidents node={node} />}
      <LaunchersOf parts={node.jobs} />
    </article>
  );
}

const sentenceOf = (text: string) => `${capital(text).replace(/\.$/, "")}.`;

export function NoPlace({ title, detail }: { title: string; detail: string }) {
  return (
    <section class="empty">
      <h1>{title}</h1>
      <p>{sentenceOf(detail)}</p>
      <p><a href="#/">All jobs of this monitor</a></p>
    </section>
  );
}

/** The launchers of all jobs, folded: one that is silent stands with its job. */
function LaunchersOf({ parts }: { parts: readonly Part[] }) {
  const number = parts.reduce((sum, { launchers }) => sum + launchers.length, 0);
  if (number === 0) return parts.length > 0 ? <p class="note">No launcher of Rankwatch here: the ranks were started by something else.</p> : null;
  return (
    <Folded name="of-launchers" title={plural(number, "launcher")}>
      {parts.map((part) => (
        <div key={part.job}>
          <b>{part.verdict.name}</b>{part.verdict.name !== part.job && <small class="code">{part.job}</small>}
          {part.launchers.map((each) => <p key={each.node} class={isGone(each) ? "note gone" : "note"}>{launcherWords(each, asOf.value)}</p>)}
        </div>
      ))}
    </Folded>
  );
}

/** As what an incident that is not about a culprit here names the node. */
const NAMED = { suspect: "suspected", quiet: "silent here" };

function Incidents({ node }: { node: NodeDetail }) {
  const names = new Map(node.jobs.map((part) => [part.job, part.verdict.name]));
  return (
    <Folded name="named" title={node.counted}>
      <ul>
        {node.incidents.map((each) => (
          <li key={`${each.job} ${each.incident}`} class={each.closed_at === null ? "open" : undefined}>
            <time>{clock(each.since, asOf.value)}</time>
            <span><a href={incidentAddress(each.job, each.incident)}>{each.headline}</a></span>
            <small>{each.named_as !== "culprit" && `${NAMED[each.named_as]} · `}{each.closed_at === null ? <b>{took((each.until ?? asOf.value) - each.since, true)} so far</b> : each.outcome === "" ? "closed" : each.outcome}, <a href={jobAddress(each.job)}>{names.get(each.job) ?? each.job}</a>{(names.get(each.job) ?? each.job) !== each.job && <> <span class="code">{each.job}</span></>}</small>
          </li>
        ))}
      </ul>
    </Folded>
  );
}
