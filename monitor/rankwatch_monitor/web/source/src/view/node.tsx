// One node over all jobs: its ranks and devices, launchers, groups, and the incidents that named it.

import type { ComponentChildren } from "preact";
import { useEffect, useMemo } from "preact/hooks";
import type { NodeDetail } from "../api/types";
import { asOf, now, stale } from "../api/connection";
import { watchPlace } from "../live/place";
import { firstPlaces, shortened } from "../logic/errors";
import { isGone, launcherWords, type Part, whyHere } from "../logic/nodejobs";
import { incidentAddress, jobAddress } from "../logic/route";
import { capital, clock, count, duration, plural, zoned } from "../logic/text";
import { NodeAction } from "./nodeaction";
import { NodeGpus } from "./nodegpus";
import { NodeJobs } from "./nodejobs";
import { showInTab } from "./tab";


export function NodePage({ host }: { host: string }) {
  const watch = useMemo(() => watchPlace<NodeDetail>(`/nodes/${encodeURIComponent(host)}`), [host]);
  useEffect(() => () => watch.close(), [watch]);
  useEffect(() => showInTab(null, host), [host]);
  const node = watch.answer.value;
  if (watch.unknown.value !== null) return <NoPlace title={`The monitor does not know node ${host}.`} detail={watch.unknown.value.message} />;
  if (node === null) return <p class="loading">Loading node {host}.</p>;
  const errors = errorsOf(node);
  return (
    <article class="place">
      <h1>Node <span class="code">{node.host}</span></h1>
      <p class="standing">{stale.value && `Unknown since ${clock(stale.value.since, now.value)}. Before: `}{node.verdict ?? node.summary}</p>
      {node.presence && <p>{node.presence}</p>}
      <NodeAction node={node} />
      {node.verdict !== undefined && !node.gpus?.length && <p class="note">{node.summary}</p>}
      <NodeGpus node={node} />
      <NodeJobs parts={node.jobs} host={host} errors={errors} />
      <Incidents node={node} errors={errors} />
      <LaunchersOf parts={node.jobs} />
    </article>
  );
}

const sentenceOf = (text: string) => `${capital(text).replace(/\.$/, "")}.`;

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

/** The launchers of all jobs, folded: one that is silent stands with its job. */
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

/** Where each error stands first: with the jobs, in their order, or with the incidents below them. */
function errorsOf({ jobs, incidents }: NodeDetail): Map<string, string> {
  return firstPlaces([
    ...jobs.flatMap((part) => [[part.job, whyHere(part, asOf.value)] as const, ...part.ranks.map(({ reason }) => [part.job, reason] as const)]),
    ...incidents.flatMap((each) => [[each.incident, each.headline] as const, [each.incident, each.outcome] as const]),
  ]);
}

function Incidents({ node, errors }: { node: NodeDetail; errors: ReadonlyMap<string, string> }) {
  const about = node.incidents.filter(({ named_as }) => named_as !== undefined && named_as !== "culprit").length;
  const names = new Map(node.jobs.map((part) => [part.job, part.name]));
  return (
    <section class="named" aria-label="Incidents that named this node">
      <h2>Incidents that named it <small>{count(node.incidents.length)}{node.named_by > node.incidents.length && ` of ${count(node.named_by)}`}, over all jobs{about > 0 && `; ${count(about)} of them not confirmed`}</small></h2>
      {node.incidents.length === 0 && <p class="note">No incident of the jobs that the monitor holds has named it.</p>}
      <ul>
        {node.incidents.map((each) => (
          <li key={`${each.job} ${each.incident}`} class={each.closed_at === null ? "open" : undefined}>
            <time>{clock(each.opened_at, asOf.value)}</time>
            <a href={incidentAddress(each.job, each.incident)}>{shortened(each.incident, zoned(each.headline, asOf.value), errors)}</a>
            <small>{each.named_as !== undefined && each.named_as !== "culprit" && `named as ${each.named_as === "quiet" ? "not heard" : each.named_as}; `}{each.closed_at === null ? <b>not over, {duration((each.until ?? asOf.value) - each.since)} so far</b> : shortened(each.incident, each.outcome, errors) || "closed"}, <a href={jobAddress(each.job)}>{names.get(each.job) ?? each.job}</a>{(names.get(each.job) ?? each.job) !== each.job && <> <span class="code">{each.job}</span></>}</small>
          </li>
        ))}
      </ul>
    </section>
  );
}
