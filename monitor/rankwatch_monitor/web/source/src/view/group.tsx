// One group of the parallel layout: its ranks, the worst first, what they wait for, and their collectives.

import { useEffect, useMemo, useState } from "preact/hooks";
import type { Dimension, GroupDetail } from "../api/types";
import { asOf, now, stale } from "../api/connection";
import { readGroups } from "../live/grid";
import { watchPlace } from "../live/place";
import { troubleAge } from "../logic/fleet";
import { cellOf } from "../logic/levels";
import { groupAddress, groupName, incidentAddress, jobAddress, rankAddress } from "../logic/route";
import { asOfNow, isTrouble } from "../logic/severity";
import { capital, clock, count, duration, plural, zoned } from "../logic/text";
import { Collectives } from "./collectives";
import { JobMark, RankMark } from "./marks";
import { NextLine } from "./nextlink";
import { NoPlace } from "./node";
import { PlacedRanks } from "./placedranks";
import { narrow } from "./preferences";
import { showInTab } from "./tab";

const LINKS = 24;

/** Other groups in one state from which on they share a line on a phone. */
const FOLDED = 4;

export function GroupPage({ job, dimension, number }: { job: string; dimension: Dimension; number: number }) {
  const watch = useMemo(() => watchPlace<GroupDetail>(`/jobs/${encodeURIComponent(job)}/groups/${dimension}/${number}`), [job, dimension, number]);
  useEffect(() => () => watch.close(), [watch]);
  useEffect(() => showInTab(null, `${groupName(dimension, number)} of ${job}`), [job, dimension, number]);
  const group = watch.answer.value;
  if (watch.unknown.value !== null) return <NoGroup job={job} dimension={dimension} number={number} detail={watch.unknown.value.message} />;
  if (group === null) return <p class="loading">Loading {groupName(dimension, number)}.</p>;
  const { advice, collectives, incident, label, standing } = group;
  const alone = group.total_ranks === 1 ? group.ranks[0] : undefined;
  const age = stale.value === null ? troubleAge(label, asOf.value) : "";
  return (
    <article class="place group" data-role={standing.role} data-state={label.state}>
      <h1>{capital(groupName(dimension, number))} of <a href={jobAddress(job)}>{group.name}{group.name !== job && <> <span class="code">{job}</span></>}</a></h1>
      <Neighbours group={group} />
      <p class="job-state">
        The job: <JobMark state={label.state} />
        {age !== "" && <> <b>{age}</b> <small>{label.state === "failed" ? "at" : "since"} {clock(label.trouble_since!, asOf.value)}</small></>}
      </p>
      <p class="standing">{stale.value && `Unknown since ${clock(stale.value.since, now.value)}. Before: `}{zoned(standing.text, asOf.value)}</p>
      {standing.detail && <p class="note">{standing.detail}</p>}
      <section class="todo" aria-label="Where to go">
        {standing.role === "waits" && standing.rank !== null && (
          <p>It waits for <a href={rankAddress(job, standing.rank)}>rank {standing.rank}</a>{standing.number !== null && <> of <a href={groupAddress(job, dimension, standing.number)}>{groupName(dimension, standing.number)}</a></>}</p>
        )}
        {advice !== null && <p><NextLine job={job} advice={advice} why={standing.text} /></p>}
        {incident && <p class="also"><a href={incidentAddress(job, incident.id)}>The incident</a>, with stacks and timeline</p>}
        {advice === null && incident === null && standing.role !== "waits" && <p>Nothing to do for this group.</p>}
      </section>
      {alone && <p class="note">A group of one rank: what it waits for stands on the page of the job, at <a href={rankAddress(job, alone.rank)}>rank {alone.rank}</a>.</p>}
      <RankCells group={group} />
      <Beside group={group} />
      <section>
        <h2>Ranks in detail <small>worst first</small></h2>
        <PlacedRanks job={job} ranks={group.ranks.map((rank) => asOfNow(rank, asOf.value - watch.at.value))} name={`Ranks of ${groupName(dimension, number)}`} above={`${standing.text} ${standing.detail}`} />
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

/** A cell for each rank, in their order, coloured by state. */
function RankCells({ group: { job, ranks, total_ranks: total, hosts, iterations: { min, max }, summary, attempt } }: { group: GroupDetail }) {
  const step = min === null ? "" : `, at step ${min === max ? count(min) : `${count(min)} to ${count(max)}`}`;
  return (
    <section class="cells">
      <h2>Ranks <small>{plural(total, "rank")} on {plural(hosts, "node")}{step}, attempt {attempt}{ranks.length < total && `; the worst ${count(ranks.length)} shown`}</small></h2>
      <p>{summary}</p>
      <ul>
        {[...ranks].sort((a, b) => a.rank - b.rank).map(({ rank, host, state, straggler }) => (
          <li key={rank} class={isTrouble(state) ? "troubled" : undefined} data-slow={straggler != null || undefined}>
            <a href={rankAddress(job, rank)} title={`Rank ${rank} on ${host || "an unknown node"}: ${state}${straggler != null ? ", slow" : ""}`}>
              <RankMark state={cellOf(state, straggler != null)} size={18} />
              <span>{rank}</span>
            </a>
          </li>
        ))}
      </ul>
    </section>
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
    <NoPlace title={`There is no ${groupName(dimension, number)}.`} detail={detail}>
      {shown.length > 0 && (
        <p>
          Its groups: {shown.map(([name, each]) => <span key={`${name} ${each}`}><a href={groupAddress(job, name, each)}>{groupName(name, each)}</a> </span>)}
          {known.length > shown.length && `and ${count(known.length - shown.length)} more`}
        </p>
      )}
      <p><a href={jobAddress(job)}>Job {job}</a></p>
    </NoPlace>
  );
}

/** All groups of the dimension: state and step of each, and how long its slowest rank works in a step, which is as long for all. */
function Beside({ group: { job, dimension, number, numbers, beside } }: { group: GroupDetail }) {
  if (beside.length < 2) return null;
  const same = narrow.value ? alikeBeside(beside, number) : [];
  const apart = same.length < FOLDED ? beside : beside.filter((each) => !same.includes(each));
  const worked = beside.some(({ work, step }) => work !== null && step !== null);
  return (
    <section class="beside">
      <h2>
        Against the other groups{" "}
        <small>
          by {groupName(dimension)}, each with the state of its worst rank{worked && "; the bar is the own work of its slowest rank in its last profiled step, the rest is in collectives"}
          {beside.length < numbers.length && `; ${count(beside.length)} of ${count(numbers.length)}`}
        </small>
      </h2>
      <ul>
        {apart.map((each) => (
          <li key={each.number} class={isTrouble(each.state) ? "troubled" : undefined} data-slow={each.slow > 0 || undefined}>
            <a href={groupAddress(job, dimension, each.number)} aria-current={each.number === number ? "page" : undefined}>
              <RankMark state={cellOf(each.state, each.slow > 0)} /> {groupName(dimension, each.number)} <small>{each.slow > 0 ? `${each.slow} slow` : each.state}{each.iteration !== null && `, step ${count(each.iteration)}`}</small>
              {each.work !== null && each.step !== null && (
                <span class="work"><i style={{ width: `${Math.min(100, (100 * each.work) / each.step)}%` }} /><small>works {duration(each.work)} of {duration(each.step)}</small></span>
              )}
            </a>
          </li>
        ))}
      </ul>
      {apart !== beside && <p class="more"><RankMark state={same[0]!.state} /> {same[0]!.state}: {groupName(dimension)} {same.map((each) => <a key={each.number} href={groupAddress(job, dimension, each.number)}>{each.number}</a>)}</p>}
    </section>
  );
}

/** Of the other groups without a slow rank, those in the state that most of them share. */
function alikeBeside(beside: GroupDetail["beside"], number: number): GroupDetail["beside"] {
  const calm = beside.filter((each) => each.number !== number && each.slow === 0 && !isTrouble(each.state));
  const sizes = calm.map(({ state }) => calm.filter((each) => each.state === state).length);
  const state = calm[sizes.indexOf(Math.max(...sizes))]?.state;
  return calm.filter((each) => each.state === state);
}

/** What the number of a group stands for. */
const PLACES: Record<Dimension, string> = {
  data: "the place of a rank among the copies of the model",
  tensor: "the place of a rank among those that split each layer",
  pipeline: "the part of the model's layers that a rank computes",
  expert: "the place of a rank among those that split the experts",
};

/** The groups beside this one. */
function Neighbours({ group: { job, dimension, number, numbers } }: { group: GroupDetail }) {
  const beside = [numbers.findLast((each) => each < number), numbers.find((each) => each > number)];
  const place = `: ${PLACES[dimension]}`;
  return (
    <nav class="links" aria-label="Groups beside this one">
      {["Previous", "Next"].map((word, i) => beside[i] !== undefined && (
        <a key={word} href={groupAddress(job, dimension, beside[i]!)}>{word}: {groupName(dimension, beside[i])}</a>
      ))}
      <small>{numbers.length === 0 ? `Each rank has a ${groupName(dimension)} of its own` : `${plural(numbers.length, "group")} by ${groupName(dimension)}`}{place}</small>
    </nav>
  );
}
