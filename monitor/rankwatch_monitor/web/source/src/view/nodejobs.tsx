// All jobs of a node in one table: the ranks here by state, and what is wrong with the job.

import type { RankState } from "../api/types";
import { asOf, stale } from "../api/connection";
import { ageOf } from "../logic/fleet";
import { factsOf, goneBesides, launcherWords, type Part } from "../logic/nodejobs";
import { cellOf } from "../logic/levels";
import { jobAddress, rankAddress } from "../logic/route";
import { isTrouble, WORST_FIRST } from "../logic/severity";
import { count, plural, runs } from "../logic/text";
import { Folded } from "./folded";
import { JobMark, RankMark } from "./marks";
import { SlowTag } from "./slowtag";
import { Table } from "./table";

export function NodeJobs({ parts, host }: { parts: readonly Part[]; host: string }) {
  if (parts.length === 0) return null;
  const over = parts.filter((part) => part.over), now = parts.filter((part) => !part.over);
  return (
    <section class="node-jobs">
      <h2>Jobs here <small>{count(now.length)}</small></h2>
      {now.length > 0 && <Jobs name={`Ranks of all jobs on ${host}`} parts={now} />}
      {over.length > 0 && <Folded name="over" title={`${count(over.length)} ended`}><Jobs name={`Jobs that ended on ${host}`} parts={over} /></Folded>}
    </section>
  );
}

const Jobs = ({ name, parts }: { name: string; parts: readonly Part[] }) => (
  <Table name={name} heads={["Job", "Ranks here", "Why"]}>{parts.map((part) => <Row key={part.job} part={part} />)}</Table>
);

function Row({ part }: { part: Part }) {
  const { state, name, headline } = part.verdict;
  const age = stale.value !== null ? "" : ageOf(part.verdict, asOf.value);
  const more = part.total_ranks - part.ranks.length;
  return (
    <tr data-state={state} data-over={part.over || undefined}>
      <th scope="row" class="job">
        <JobMark state={state} />
        {age !== "" && <b class="age">{age}</b>}
        <span class="of"><a href={jobAddress(part.job)}>{name}</a>{name !== part.job && <small class="code">{part.job}</small>}</span>
      </th>
      <td class="of-rank">
        {WORST_FIRST.map((state) => <Ranks key={state} part={part} state={state} />)}
        {part.ranks.length === 0 && <small>no rank here</small>}
        {more > 0 && <small>{plural(more, "more rank")}</small>}
      </td>
      <td class="why">
        {headline !== "" && <p>{headline}</p>}
        {goneBesides(part).map((each) => <p key={each.node} class="gone">{launcherWords(each, asOf.value)}</p>)}
        <small>{factsOf(part.ranks)}</small>
      </td>
    </tr>
  );
}

/** The ranks in one state; slow ones by themselves. */
function Ranks({ part, state }: { part: Part; state: RankState }) {
  const same = part.ranks.filter((rank) => rank.state === state);
  const slow = same.filter(({ straggler }) => straggler !== null);
  const rest = same.filter(({ straggler }) => straggler === null).map(({ rank }) => rank);
  return (
    <>
      {slow.map(({ rank, straggler }) => <span key={rank} class="standing-of"><RankMark state={cellOf(state, true)} /> <a href={rankAddress(part.job, rank)}>{rank}</a> <SlowTag of={straggler!} /></span>)}
      {rest.length > 0 && <span class="standing-of" data-calm={!isTrouble(state) || undefined}><RankMark state={state} /> {rest.length === 1 ? <>{state} <a href={rankAddress(part.job, rest[0]!)}>{rest[0]}</a></> : isTrouble(state) ? `${state} ${runs(rest)}` : `${rest.length} ${state}`}</span>}
    </>
  );
}
