// One group of the parallel layout: its ranks, the worst first, what they wait for, and their collectives.

import { useEffect, useMemo, useState } from "preact/hooks";
import type { Dimension, GroupDetail } from "../api/types";
import { asOf, now, stale } from "../api/connection";
import { readGroups } from "../live/grid";
import { watchPlace } from "../live/place";
import { groupAddress, incidentAddress, jobAddress, rankAddress } from "../logic/route";
import { clock, count, plural } from "../logic/text";
import { Collectives } from "./collectives";
import { Facts } from "./facts";
import { RankMark } from "./marks";
import { NoPlace } from "./node";
import { PlacedRanks } from "./placedranks";
import { showInTab } from "./tab";

const LINKS = 24;

export function GroupPage({ job, dimension, number }: { job: string; dimension: Dimension; number: number }) {
  const watch = useMemo(() => watchPlace<GroupDetail>(`/jobs/${encodeURIComponent(job)}/groups/${dimension}/${number}`), [job, dimension, number]);
  useEffect(() => () => watch.close(), [watch]);
  useEffect(() => showInTab(null, `${dimension} ${number} of ${job}`), [job, dimension, number]);
  const group = watch.answer.value;
  if (watch.unknown.value !== null) return <NoGroup job={job} dimension={dimension} number={number} detail={watch.unknown.value.message} />;
  if (group === null) return <p class="loading">Loading group {dimension} {number}.</p>;
  const { min, max } = group.iterations;
  const [first, ...others] = group.sentences;
  const named = group.incident && `${group.incident.headline.replace(/\.$/, "")}.`; // the link to the incident has the same words
  const { collectives } = group;
  const alone = group.total_ranks === 1 ? group.ranks[0] : undefined;
  return (
    <article class="place">
      <h1>Group {dimension} {number} of <a href={jobAddress(job)}>{group.name}</a></h1>
      <Neighbours group={group} />
      <p class="standing">{stale.value && `Unknown since ${clock(stale.value.since, now.value)}. Before: `}{group.incident && first === named ? <a href={incidentAddress(job, group.incident.id)}>{first}</a> : first}</p>
      {others.filter((sentence) => sentence !== named).map((sentence) => <p key={sentence}>{sentence}</p>)}
      {group.incident && first !== named && <p>Open incident: <a href={incidentAddress(job, group.incident.id)}>{group.incident.headline}</a></p>}
      {alone && <p class="note">A group of one rank: what it waits for stands on the page of the job, at <a href={rankAddress(job, alone.rank)}>rank {alone.rank}</a>.</p>}
      <div class="sides">
        <section>
          <h2>Ranks <small>worst first</small></h2>
          <PlacedRanks job={job} ranks={group.ranks} name={`Ranks of ${dimension} ${number}`} without="groups" above={group.sentences.join(" ")} />
          {group.ranks.length < group.total_ranks && <p class="more">{count(group.ranks.length)} of {count(group.total_ranks)}</p>}
        </section>
        <div>
          <Facts kind="facts" facts={[
            { label: "Ranks", value: count(group.total_ranks), note: `on ${plural(group.hosts, "node")}` },
            { label: "Steps, as last reported", value: min === null ? "–" : min === max ? count(min) : `${count(min)} to ${count(max)}` },
            { label: "Attempt", value: group.attempt },
          ]} />
          <Beside group={group} />
          <Collectives rows={collectives.rows} />
          {collectives.incident !== null && (
            <p class="note">
              Collectives are those of <a href={incidentAddress(job, collectives.incident)}>an incident</a>{collectives.at !== null && `, captured at ${clock(collectives.at, asOf.value)}`}; ranks of other groups are left out.
            </p>
          )}
        </div>
      </div>
    </article>
  );
}

/** The groups that the job has instead, as links. */
function NoGroup({ job, dimension, number, detail }: { job: string; dimension: Dimension; number: number; detail: string }) {
  const [known, setKnown] = useState<readonly (readonly [Dimension, number])[]>([]);
  useEffect(() => {
    const ended = new AbortController();
    readGroups(job, ended.signal).then(setKnown, () => undefined); // shown by the connection bar
    return () => ended.abort();
  }, [job]);
  const shown = known.slice(0, LINKS);
  return (
    <NoPlace title={`There is no group ${dimension} ${number}.`} detail={detail}>
      {shown.length > 0 && (
        <p>
          Its groups: {shown.map(([name, each]) => <span key={`${name} ${each}`}><a href={groupAddress(job, name, each)}>{name} {each}</a> </span>)}
          {known.length > shown.length && `and ${count(known.length - shown.length)} more`}
        </p>
      )}
      <p><a href={jobAddress(job)}>Job {job}</a></p>
    </NoPlace>
  );
}

/** All groups of the dimension, each with its worst rank. */
function Beside({ group: { job, dimension, number, numbers, beside = [] } }: { group: GroupDetail }) {
  if (beside.length < 2) return null;
  return (
    <section class="beside">
      <h2>Groups by {dimension} rank <small>each with the state of its worst rank{beside.length < numbers.length && `; ${count(beside.length)} of ${count(numbers.length)}`}</small></h2>
      <ul>
        {beside.map((each) => (
          <li key={each.number} data-slow={each.slow > 0 || undefined}>
            <a href={groupAddress(job, dimension, each.number)} aria-current={each.number === number ? "page" : undefined}>
              <RankMark state={each.state} /> {dimension} {each.number} <small>{each.slow > 0 ? `${each.slow} slow` : each.state}</small>
            </a>
          </li>
        ))}
      </ul>
    </section>
  );
}

/** The groups beside this one. */
function Neighbours({ group: { job, dimension, number, numbers } }: { group: GroupDetail }) {
  const beside = [numbers.findLast((each) => each < number), numbers.find((each) => each > number)];
  return (
    <nav class="links" aria-label="Groups beside this one">
      {["Previous", "Next"].map((word, i) => beside[i] !== undefined && (
        <a key={word} href={groupAddress(job, dimension, beside[i]!)}>{word}: {dimension} {beside[i]}</a>
      ))}
      <small>{numbers.length === 0 ? `Each rank has a ${dimension} rank of its own` : `${plural(numbers.length, "group")} by ${dimension} rank`}</small>
    </nav>
  );
}
