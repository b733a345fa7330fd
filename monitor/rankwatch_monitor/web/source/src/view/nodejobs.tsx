// All jobs of a node in one table: a row for the ranks of a job that are alike.

import { useState } from "preact/hooks";
import type { PlacedRank } from "../api/types";
import { asOf, stale } from "../api/connection";
import { troubleAge } from "../logic/fleet";
import { firstPlaces, type Place } from "../logic/errors";
import { factsOf, goneBesides, isElsewhere, launcherWords, linesOf, type Part, whyHere } from "../logic/nodejobs";
import { cellOf } from "../logic/levels";
import { jobAddress, rankAddress } from "../logic/route";
import { figures, isTrouble, moves, secondsIn, timeIn } from "../logic/severity";
import { restOf } from "../logic/stragglers";
import { capital, clock, count, elapsed, plural, roughly, runs } from "../logic/text";
import { Fold } from "./fold";
import { ErrorText } from "./errortext";
import { JobMark, RankMark } from "./marks";
import { InSection } from "./placedranks";
import { GroupLinks } from "./placelinks";
import { SlowNote, SlowTag } from "./slowtag";

/** So many jobs in trouble are shown at once on a phone. */
const FEW = 3;

/** Where each error stands in full. */
type Errors = ReadonlyMap<string, Place>;

/** `named`: the jobs whose open incident is about the node. */
export function NodeJobs({ parts, host, named }: { parts: readonly Part[]; host: string; named: ReadonlySet<string> }) {
  const [all, showAll] = useState(false);
  if (parts.length === 0) return null;
  const kind = (part: Part) => (part.trouble_since == null ? "calm" : isElsewhere(part, named) ? "elsewhere" : "here");
  const of = (wanted: string) => parts.filter((part) => kind(part) === wanted).length;
  const [calm, elsewhere] = [of("calm"), of("elsewhere")];
  const fold = (number: number) => !all && number > 1 && number < parts.length;
  const shown = parts.filter((part) => !(kind(part) === "calm" ? fold(calm) : kind(part) === "elsewhere" && fold(elsewhere)));
  const folded = [fold(elsewhere) && `${plural(elsewhere, "job")} in trouble elsewhere`, fold(calm) && `${plural(calm, "job")} without trouble`].filter(Boolean);
  const errors = firstPlaces(shown.map((part) => [{ id: part.job, label: part.job, href: jobAddress(part.job) }, whyHere(part, asOf.value)]));
  return (
    <Fold name="node-jobs" heading={<>Jobs here <small>{counted(parts)}</small></>} open={of("here") <= FEW}>
      <div class="scroll" role="region" aria-label={`Ranks of all jobs on ${host}`} tabIndex={0}>
        <table>
          <thead>
            <tr>
              <th scope="col">Job</th>
              <th scope="col" class="number">Ranks</th>
              <th scope="col">State</th>
              <th scope="col">Section</th>
              <th scope="col" class="number">Time in it</th>
              <th scope="col" class="number">Step</th>
              <th scope="col">Why</th>
            </tr>
          </thead>
          {shown.map((part) => <Rows key={part.job} part={part} errors={errors} />)}
        </table>
      </div>
      <SlowNote of={parts.flatMap(({ ranks }) => ranks).find(({ straggler }) => straggler)?.straggler} />
      {folded.length > 0 && <button type="button" class="quiet" onClick={() => showAll(true)}>Show {folded.join(", ")}</button>}
    </Fold>
  );
}

/** "10 now, 2 over; those in trouble first" */
function counted(parts: readonly Part[]): string {
  const over = parts.filter((part) => part.over).length;
  return `${[parts.length > over && `${count(parts.length - over)} now`, over > 0 && `${count(over)} over`].filter(Boolean).join(", ")}; those in trouble first`;
}

function Rows({ part, errors }: { part: Part; errors: Errors }) {
  const [each, showEach] = useState(false);
  const lines = linesOf(part, each);
  const why = whyHere(part, asOf.value);
  const more = part.total_ranks - part.ranks.length;
  return (
    <tbody data-state={part.state} data-over={part.over || undefined}>
      {(lines.length > 0 ? lines : [[]]).map((same, i) => {
        const first = same[0];
        return (
          <tr key={first?.rank ?? "none"} data-rank-state={first?.state} class={first && isTrouble(first.state) ? "troubled" : undefined} data-slow={first?.straggler != null || undefined} data-alike={same.length > 1 ? same.length : undefined}>
            {i === 0 && <th scope="rowgroup" rowSpan={Math.max(1, lines.length)} class="job"><JobCell part={part} /></th>}
            {first === undefined ? <td colSpan={5} class="note">no rank here</td> : <RankCells job={part.job} over={part.over} same={same} open={() => showEach(true)} />}
            <td class="why">
              {i === 0 && <JobWhy part={part} why={why} errors={errors} />}
              {first !== undefined && <RankWhy job={part.job} same={same} above={why} />}
              {i === lines.length - 1 && more > 0 && <small>{plural(more, "more rank")} not shown</small>}
              {i === 0 && each && <button type="button" class="quiet" onClick={() => showEach(false)}>One line for ranks that are alike</button>}
            </td>
          </tr>
        );
      })}
    </tbody>
  );
}

function JobCell({ part }: { part: Part }) {
  const age = stale.value !== null ? "" : troubleAge(part, asOf.value) || (part.over && part.ended_at !== null ? `${roughly(elapsed(part.ended_at, asOf.value))} ago` : "");
  return (
    <>
      <JobMark state={part.state} />
      {age !== "" && <b class="age">{age}</b>}
      <span class="of"><a href={jobAddress(part.job)}>{part.name}</a>{part.name !== part.job && <small class="code">{part.job}</small>}</span>
    </>
  );
}

/** `over`: the job has ended, and no section of its ranks is open any more. */
function RankCells({ job, over, same, open }: { job: string; over: boolean; same: readonly PlacedRank[]; open: () => void }) {
  const first = same[0]!;
  const { straggler } = first;
  const still = over || first.state === "silent" || first.state === "dead" || moves(first.state) ? null : secondsIn(first);
  return (
    <>
      <th scope="row" class="number ranks">{same.length > 1 ? runs(same.map(({ rank }) => rank)) : <a href={rankAddress(job, first.rank)}>{first.rank}</a>}</th>
      <td class="of-rank">
        <span class="nowrap"><RankMark state={cellOf(first.state, straggler != null)} /> {first.state}</span>
        {straggler && <SlowTag of={straggler} />}
        {same.length > 1 && <button type="button" class="quiet" aria-label={`${same.length} alike: show each`} onClick={open}>show {same.length}</button>}
      </td>
      <td class="code section">{over ? "–" : <InSection of={first} />}</td>
      <td class="number time">{over ? "–" : timeIn(same, asOf.value)}{still !== null && <small> since {clock(asOf.value - still, asOf.value)}</small>}</td>
      <td class="number step">{figures(same, ({ iteration }) => iteration, count)}</td>
    </>
  );
}

function JobWhy({ part, why, errors }: { part: Part; why: string; errors: Errors }) {
  return (
    <>
      {why !== "" && <p><ErrorText id={part.job} text={why} errors={errors} /></p>}
      {goneBesides(part).map((each) => <p key={each.node} class="gone">{launcherWords(each, asOf.value)}</p>)}
    </>
  );
}

/** `above`: what is wrong with the job, which is not repeated. */
function RankWhy({ job, same, above }: { job: string; same: readonly PlacedRank[]; above: string }) {
  const first = same[0]!;
  const { reason, straggler } = first;
  const notes = [
    straggler && `${restOf(above.startsWith(`Rank ${first.rank} `) ? capital(straggler.reason.replace(/^Rank .*?; /, "")) : straggler.reason, above).replace(/\.$/, "") || "Slow"}. Since ${clock(straggler.since, asOf.value)}, for ${roughly(asOf.value - straggler.since)}`,
    above.includes(reason.replace(/^its process /, "")) ? "" : reason,
    factsOf(same),
  ].filter(Boolean);
  const grouped = same.length === 1 && Object.keys(first.groups).length > 0;
  return (
    <>
      {notes.map((note) => <small key={note}>{note}</small>)}
      {grouped && <small>groups <GroupLinks job={job} groups={first.groups} /></small>}
    </>
  );
}
