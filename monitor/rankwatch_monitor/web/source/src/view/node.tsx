// One node over all jobs: its ranks and devices, launchers, groups, and the incidents that named it.

import { useEffect, useMemo } from "preact/hooks";
import type { NodeDetail } from "../api/types";
import { asOf, now, stale } from "../api/connection";
import { watchPlace } from "../live/place";
import { groupAddress, incidentAddress, jobAddress } from "../logic/route";
import { clock, count, duration, plural, roughly, words } from "../logic/text";
import { JobMark } from "./marks";
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
  return (
    <article class="place">
      <h1>Node <span class="code">{node.host}</span></h1>
      <p class="standing">{stale.value && `Unknown since ${clock(stale.value.since, now.value)}. Before: `}{node.summary}</p>
      {node.named_by === 0 ? <p class="note">No incident has named it.</p> : (
        <section>
          <h2>Incidents that named it <small>{count(node.named_by)}, over all jobs</small></h2>
          <Incidents node={node} />
        </section>
      )}
      {node.jobs.map((part) => <OfJob key={part.job} part={part} host={host} />)}
    </article>
  );
}

export function NoPlace({ title, detail }: { title: string; detail: string }) {
  return (
    <section class="empty">
      <h1>{title}</h1>
      <p>{detail}</p>
      <p><a href="#/">All jobs of this monitor</a></p>
    </section>
  );
}

function OfJob({ part, host }: { part: Part; host: string }) {
  const shared = part.groups.filter(({ ranks }) => ranks > 1); // each rank's own groups are in its row
  return (
    <section>
      <h2>
        <a href={jobAddress(part.job)}>{part.name}</a>{part.name !== part.job && <small class="code">{part.job}</small>} <JobMark state={part.state} />{" "}
        <small>{part.trouble_since != null && <b>in trouble {roughly(asOf.value - part.trouble_since)}, </b>}{part.total_ranks === 0 ? "runs no rank here" : `${plural(part.total_ranks, "rank")} here`}{part.attempt > 0 && `, attempt ${part.attempt}`}</small>
      </h2>
      {part.ranks.length > 0 && <PlacedRanks job={part.job} ranks={part.ranks} name={`Ranks of ${part.name} on ${host}`} without="node" />}
      {part.ranks.length < part.total_ranks && <p class="more">{count(part.ranks.length)} of {count(part.total_ranks)}</p>}
      {shared.length > 0 && (
        <p class="links">
          Shared groups{" "}
          {shared.map(({ dimension, number, ranks }) => (
            <span key={`${dimension}${number}`}><a href={groupAddress(part.job, dimension, number)}>{dimension} {number}</a> <small>{plural(ranks, "rank")}</small></span>
          ))}
        </p>
      )}
      {part.launchers.map((launcher) => <p key={launcher.node} class="note">{launcherWords(launcher)}</p>)}
    </section>
  );
}

function launcherWords(launcher: Part["launchers"][number]): string {
  const ended = launcher.ended === null ? "" : `ended: ${launcher.ended_reason || words(launcher.ended)}`;
  return [
    `Launcher ${launcher.node}, process ${launcher.launcher_pid}, ${launcher.role}`,
    launcher.role_reason,
    launcher.lost === null ? "" : `lost: ${launcher.lost}`,
    ended || `last message ${duration(launcher.last_seen_age)} ago`,
  ].filter(Boolean).join("; ") + ".";
}

function Incidents({ node }: { node: NodeDetail }) {
  const names = new Map(node.jobs.map((part) => [part.job, part.name]));
  return (
    <div class="scroll" role="region" aria-label="Incidents that named this node" tabIndex={0}>
      <table>
        <thead>
          <tr><th scope="col">Opened</th><th scope="col">Incident</th><th scope="col">Outcome</th><th scope="col">Job</th></tr>
        </thead>
        <tbody>
          {node.incidents.map((each) => (
            <tr key={`${each.job} ${each.incident}`} class={each.closed_at === null ? "open" : undefined}>
              <td>{clock(each.opened_at, asOf.value)}</td>
              <td class="what"><a href={incidentAddress(each.job, each.incident)}>{each.headline}</a></td>
              <td class="why">{each.closed_at === null ? `not over, ${duration((each.until ?? asOf.value) - each.since)} so far` : each.outcome || "closed"}</td>
              <td><a href={jobAddress(each.job)}>{names.get(each.job) ?? each.job}</a>{(names.get(each.job) ?? each.job) !== each.job && <> <small class="code">{each.job}</small></>}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
