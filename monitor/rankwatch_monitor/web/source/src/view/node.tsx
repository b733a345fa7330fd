// One node over all jobs: its ranks and devices, launchers, groups, and the incidents that named it.

import { useEffect, useMemo } from "preact/hooks";
import type { NodeDetail } from "../api/types";
import { asOf, now, stale } from "../api/connection";
import { watchPlace } from "../live/place";
import { labelOf, troubleAge, whyOf } from "../logic/fleet";
import { groupAddress, incidentAddress, jobAddress } from "../logic/route";
import { ago, clock, count, duration, plural, wholeDuration, words } from "../logic/text";
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
  const live = node.jobs.filter((part) => !part.over);
  return (
    <article class="place">
      <h1>Node <span class="code">{node.host}</span></h1>
      <p class="standing">{stale.value && `Unknown since ${clock(stale.value.since, now.value)}. Before: `}{node.summary}</p>
      <div class={live.length > 1 ? "many" : "sides"}>
        <div>
          {live.map((part) => <OfJob key={part.job} part={part} host={host} />)}
          <Ended parts={node.jobs.filter((part) => part.over)} host={host} />
        </div>
        <div>
          <Incidents node={node} />
        </div>
      </div>
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
  const age = stale.value === null ? troubleAge(part, asOf.value) : "";
  const why = whyOf(part);
  return (
    <section class="on">
      <h2>
        <JobMark state={part.state} label={labelOf(part)} />
        {age !== "" && <b class="age">{age}</b>}
        <a href={jobAddress(part.job)}>{part.name}</a>{part.name !== part.job && <small class="code">{part.job}</small>}
        <small>{part.total_ranks === 0 ? "runs no rank here" : `${plural(part.total_ranks, "rank")} here`}{part.attempt > 0 && `, attempt ${part.attempt}`}</small>
      </h2>
      {why !== "" && <p class="because">{why}</p>}
      <Launchers part={part} />
      <Ranks part={part} host={host} />
      {shared.length > 0 && (
        <p class="links">
          Shared groups{" "}
          {shared.map(({ dimension, number, ranks }) => (
            <span key={`${dimension}${number}`}><a href={groupAddress(part.job, dimension, number)}>{dimension} {number}</a> <small>{plural(ranks, "rank")}</small></span>
          ))}
        </p>
      )}
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

function Launchers({ part }: { part: Part }) {
  if (part.launchers.length === 0) return <p class="note">No launcher of Rankwatch here: the ranks were started by something else.</p>;
  return <>{part.launchers.map((each) => <p key={each.node} class={each.silent || each.lost !== null ? "note gone" : "note"}>{launcherWords(each)}</p>)}</>;
}

function launcherWords(launcher: Part["launchers"][number]): string {
  const { silent, last_seen: seen } = launcher;
  const contact = silent && seen !== undefined ? `not heard since ${clock(seen, asOf.value)}, for ${wholeDuration(asOf.value - seen)}` : `last message ${duration(launcher.last_seen_age)} ago`;
  const ended = launcher.ended === null ? "" : `ended: ${launcher.ended_reason || words(launcher.ended)}`;
  return [
    `Launcher ${launcher.node}, process ${launcher.launcher_pid}, ${launcher.role}`,
    launcher.role_reason,
    launcher.lost === null ? "" : `lost: ${launcher.lost}`,
    ended || contact,
  ].filter(Boolean).join("; ") + ".";
}

function Incidents({ node }: { node: NodeDetail }) {
  const names = new Map(node.jobs.map((part) => [part.job, part.name]));
  return (
    <section class="named" aria-label="Incidents that named this node">
      <h2>Incidents that named it <small>{count(node.named_by)}, over all jobs</small></h2>
      {node.named_by === 0 && <p class="note">No incident of the jobs that the monitor holds has named it: nothing points to a fault of this node.</p>}
      <ul>
        {node.incidents.map((each) => (
          <li key={`${each.job} ${each.incident}`} class={each.closed_at === null ? "open" : undefined}>
            <time>{clock(each.opened_at, asOf.value)}</time>
            <a href={incidentAddress(each.job, each.incident)}>{each.headline}</a>
            <small>{each.closed_at === null ? <b>not over, {duration((each.until ?? asOf.value) - each.since)} so far</b> : each.outcome || "closed"}, <a href={jobAddress(each.job)}>{names.get(each.job) ?? each.job}</a>{(names.get(each.job) ?? each.job) !== each.job && <> <span class="code">{each.job}</span></>}</small>
          </li>
        ))}
      </ul>
    </section>
  );
}
