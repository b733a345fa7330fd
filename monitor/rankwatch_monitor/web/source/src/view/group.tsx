// One group of the parallel layout: its ranks, the worst first, what they wait for, and their collectives.

import { useEffect, useMemo } from "preact/hooks";
import type { Dimension, GroupDetail } from "../api/types";
import { asOf, now, stale } from "../api/connection";
import { watchPlace } from "../live/place";
import { groupAddress, incidentAddress, jobAddress } from "../logic/route";
import { clock, count, plural } from "../logic/text";
import { Collectives } from "./collectives";
import { Facts } from "./facts";
import { NoPlace } from "./node";
import { PlacedRanks } from "./placedranks";
import { showInTab } from "./tab";

export function GroupPage({ job, dimension, number }: { job: string; dimension: Dimension; number: number }) {
  const watch = useMemo(() => watchPlace<GroupDetail>(`/jobs/${encodeURIComponent(job)}/groups/${dimension}/${number}`), [job, dimension, number]);
  useEffect(() => () => watch.close(), [watch]);
  useEffect(() => showInTab(null, `${dimension} ${number} of ${job}`), [job, dimension, number]);
  const group = watch.answer.value;
  if (watch.unknown.value !== null) return <NoPlace title={`There is no group ${dimension} ${number}.`} detail={watch.unknown.value.message} />;
  if (group === null) return <p class="loading">Loading group {dimension} {number}.</p>;
  const { min, max } = group.iterations;
  const [first, ...others] = group.sentences;
  const named = group.incident && `${group.incident.headline.replace(/\.$/, "")}.`; // the link to the incident has the same words
  const { collectives } = group;
  return (
    <article class="place">
      <h1>Group {dimension} {number} of <a href={jobAddress(job)}>{group.name}</a></h1>
      <Siblings group={group} />
      <p class="standing">{stale.value && `Unknown since ${clock(stale.value.since, now.value)}. Before: `}{first}</p>
      {others.filter((sentence) => sentence !== named).map((sentence) => <p key={sentence}>{sentence}</p>)}
      {group.incident && <p>Open incident: <a href={incidentAddress(job, group.incident.id)}>{group.incident.headline}</a></p>}
      <Facts kind="facts" facts={[
        { label: "Ranks", value: count(group.total_ranks), note: `on ${plural(group.hosts, "node")}` },
        { label: "Steps, as last reported", value: min === null ? "–" : min === max ? count(min) : `${count(min)} to ${count(max)}` },
        { label: "Attempt", value: group.attempt },
      ]} />
      <section>
        <h2>Ranks <small>worst first</small></h2>
        <PlacedRanks job={job} ranks={group.ranks} name={`Ranks of ${dimension} ${number}`} without="groups" />
        {group.ranks.length < group.total_ranks && <p class="more">{count(group.ranks.length)} of {count(group.total_ranks)}</p>}
      </section>
      <Collectives rows={collectives.rows} />
      {collectives.incident !== null && (
        <p class="note">
          Collectives are those of <a href={incidentAddress(job, collectives.incident)}>an incident</a>{collectives.at !== null && `, captured at ${clock(collectives.at, asOf.value)}`}; ranks of other groups are left out.
        </p>
      )}
    </article>
  );
}

/** The groups beside this one. */
function Siblings({ group: { job, dimension, number, numbers } }: { group: GroupDetail }) {
  const at = numbers.indexOf(number);
  const beside = [numbers[at - 1], numbers[at + 1]];
  return (
    <nav class="links" aria-label="Groups beside this one">
      {["Previous", "Next"].map((word, i) => beside[i] !== undefined && (
        <a key={word} href={groupAddress(job, dimension, beside[i]!)}>{word}: {dimension} {beside[i]}</a>
      ))}
      <small>{plural(numbers.length, "group")} by {dimension} rank</small>
    </nav>
  );
}
