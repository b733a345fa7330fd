// One node over all jobs: its ranks and devices, launchers, groups, and the incidents that named it.

import type { ComponentChildren } from "preact";
import { useEffect, useMemo } from "preact/hooks";
import type { NodeDetail } from "../api/types";
import { asOf, now, stale } from "../api/connection";
import { watchPlace } from "../live/place";
import { labelOf, whyOf } from "../logic/fleet";
import { isGone, launcherWords } from "../logic/nodejobs";
import { incidentAddress, jobAddress } from "../logic/route";
import { ago, clock, count, duration, plural, zoned } from "../logic/text";
import { JobMark } from "./marks";
import { NodeAction } from "./nodeaction";
import { NodeJobs } from "./nodejobs";
import { PlacedRanks } from "./placedranks";
import { showInTab } from "./tab";

type Part = NodeDetail["jobs"][number];

export function NodePage({ host }: { host: string }) {
  const watch = useMemo(() => watchPlace<NodeDetail>(`/nodes/${encodeURIComponent(host)}`), [host]);
  useEffect(() => () => watch.close(), [watch]);
  useEffect(() => showInTab(null, host), [host]);
  const node = watch.answer.value;
  if (watch.unknown.value !== null) return <NoPlace title={`The monitor does not know node ${host}.`} detail={watch.unknown.value.message} />;
  if (node === null) return <p class="loading">Loading node {host}.</p>;
  const live = node.jobs.filter((part) => !part.over);
  return (
    <article class="place">
      <h1>Node <span class="code">{node.host}</span></h1>
      <p class="standing">{stale.value && `Unknown since ${clock(stale.value.since, now.value)}. Before: `}{node.verdict ?? node.summary}</p>
      <NodeAction node={node} />
      {node.verdict !== undefined && <p class="note">{node.summary}</p>}
      <NodeJobs parts={live} host={host} />
      <div class="pair">
        <Incidents node={node} />
        <div>
          <Ended parts={node.jobs.filter((part) => part.over)} host={host} />
          <LaunchersOf parts={live} />
        </div>
      </div>
    </article>
  );
}

const sentenceOf = (text: string) => `${text.charAt(0).toUpperCase()}${text.slice(1).replace(/\.$/, "")}.`;

export function NoPlace({ title, detail, children }: { title: string; detail: string; children?: ComponentChildren }) {
  return (
    <section class="empty">
      <h1>{title}</h1>
      <p>{sentenceOf(detail)}</p>
      {children}
      <p><a href="#/">All jobs of this monitor</a></p>
    </section>
  );
}

function Ranks({ part, host }: { part: Part; host: string }) {
  return (
    <>
      {part.ranks.length > 0 && <PlacedRanks job={part.job} ranks={part.ranks} name={`Ranks of ${part.name} on ${host}`} without="node" />}
      {part.ranks.length < part.total_ranks && <p class="more">{count(part.ranks.length)} of {count(part.total_ranks)}</p>}
    </>
  );
}

/** Jobs that are over, a line for each, which opens to its ranks at their end. */
function Ended({ parts, host }: { parts: readonly Part[]; host: string }) {
  if (parts.length === 0) return null;
  return (
    <section class="over">
      <h2>Jobs that ended here <small>{parts.length}</small></h2>
      {parts.map((part) => (
        <details key={part.job}>
          <summary>
            <JobMark state={part.state} label={labelOf(part)} /> {part.ended_at != null && <>{ago(part.ended_at, asOf.value)} </>}
            <a href={jobAddress(part.job)}>{part.name}</a>{part.name !== part.job && <small class="code">{part.job}</small>}
            {whyOf(part) !== "" && <span class="because">{whyOf(part)}</span>}
          </summary>
          <Launchers part={part} />
          <p class="note">{plural(part.total_ranks, "rank")}, as last reported:</p>
          <Ranks part={part} host={host} />
        </details>
      ))}
    </section>
  );
}

/** The launchers of all jobs that are not over, folded: one that is silent stands with its job. */
function LaunchersOf({ parts }: { parts: readonly Part[] }) {
  const number = parts.reduce((sum, { launchers }) => sum + launchers.length, 0);
  if (number === 0) return parts.length > 0 ? <p class="note">No launcher of Rankwatch here: the ranks were started by something else.</p> : null;
  return (
    <details class="of-launchers">
      <summary>{plural(number, "launcher")} here</summary>
      {parts.map((part) => <div key={part.job}><b>{part.name}</b>{part.name !== part.job && <small class="code">{part.job}</small>}<Launchers part={part} /></div>)}
    </details>
  );
}

function Launchers({ part }: { part: Part }) {
  return <>{part.launchers.map((each) => <p key={each.node} class={isGone(each) ? "note gone" : "note"}>{launcherWords(each, asOf.value)}</p>)}</>;
}

function Incidents({ node }: { node: NodeDetail }) {
  const names = new Map(node.jobs.map((part) => [part.job, part.name]));
  return (
    <section class="named" aria-label="Incidents that named this node">
      <h2>Incidents that named it <small>{count(node.named_by)}, over all jobs</small></h2>
      {node.named_by === 0 && <p class="note">No incident of the jobs that the monitor holds has named it.</p>}
      <ul>
        {node.incidents.map((each) => (
          <li key={`${each.job} ${each.incident}`} class={each.closed_at === null ? "open" : undefined}>
            <time>{clock(each.opened_at, asOf.value)}</time>
            <a href={incidentAddress(each.job, each.incident)}>{zoned(each.headline, asOf.value)}</a>
            <small>{each.named_as !== undefined && each.named_as !== "culprit" && `named as ${each.named_as === "quiet" ? "not heard" : each.named_as}; `}{each.closed_at === null ? <b>not over, {duration((each.until ?? asOf.value) - each.since)} so far</b> : each.outcome || "closed"}, <a href={jobAddress(each.job)}>{names.get(each.job) ?? each.job}</a>{(names.get(each.job) ?? each.job) !== each.job && <> <span class="code">{each.job}</span></>}</small>
          </li>
        ))}
      </ul>
    </section>
  );
}
