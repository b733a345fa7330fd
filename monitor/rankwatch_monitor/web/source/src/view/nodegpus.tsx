// The GPUs of a node: the faults of each over all jobs, its reading, and the ranks on it now.

import { useState } from "preact/hooks";
import type { NodeDetail } from "../api/types";
import { asOf } from "../api/connection";
import { deviceFacts } from "../logic/device";
import { alikeGpus, byState, type Gpu, jobTitle, namesOf, type RankOnGpu, standsOut } from "../logic/nodegpus";
import { jobAddress, rankAddress } from "../logic/route";
import { isTrouble } from "../logic/severity";
import { clock, elapsed, plural, range, roughly } from "../logic/text";
import { Folded } from "./folded";
import { RankMark } from "./marks";
import { narrow } from "./preferences";
import { Table } from "./table";

/** Ranks of one state that are named; more are counted. */
const NAMED = 2;

export function NodeGpus({ node: { gpus, host } }: { node: NodeDetail }) {
  const [each, showEach] = useState(false);
  if (gpus.length === 0) return null;
  const rows = each ? gpus.map((gpu) => [gpu]) : alikeGpus(gpus);
  const suspect = standsOut(gpus) ? gpus[0] : undefined;
  const worst = (gpu: Gpu) => byState(gpu.ranks)[0]?.[0];
  const read = gpus.some(({ reading }) => deviceFacts(reading) !== "");
  return (
    <Folded name="gpus" title={plural(gpus.length, "GPU")}>
      <Table name={`GPUs of ${host}`} heads={["GPU", "Faults, over all jobs", "Ranks now", read && "Reading"]}>
        {rows.map((same) => {
          const [gpu] = same as [Gpu];
          return (
            <tr key={gpu.name} class={gpu === suspect ? "troubled" : undefined} data-rank-state={worst(gpu)}>
              <th scope="row" title={same.length === 1 && gpu.uuid !== null ? gpu.uuid : undefined}>
                {namesOf(same)}
                {same.length > 1 && <button type="button" class="quiet" aria-label={`${same.length} alike: show each`} onClick={() => showEach(true)}>show {same.length}</button>}
              </th>
              <td class="faults">{gpu.history || (gpu.slow_now.some(({ by_gpu: by }) => by) ? "" : <small>no fault</small>)}{gpu.slow_now.map((slow) => <small key={slow.job} class="slow">in <a href={jobAddress(slow.job)}>{jobTitle(slow)}</a>, {slow.text} since {clock(slow.since, asOf.value)}</small>)}</td>
              <td class="on">{gpu.ranks.length === 0 ? <small>no rank</small> : byState(gpu.ranks).map(([state, ranks]) => (
                <span key={state} class="standing-of" data-calm={!isTrouble(state) || undefined}><span class="nowrap"><RankMark state={state} /> {state}</span> <Places ranks={ranks} single={same.length === 1} counted={!isTrouble(state)} /></span>
              ))}</td>
              {read && <td class="device">{deviceFacts(...same.map(({ reading }) => reading)) || "–"}{age(same)}</td>}
            </tr>
          );
        })}
      </Table>
      {each && <button type="button" class="quiet fold" onClick={() => showEach(false)}>One line for GPUs that are alike</button>}
    </Folded>
  );
}

/** ", 2 s ago" */
function age(same: readonly Gpu[]): string {
  const known = range(same.map(({ reading }) => (reading?.at == null ? null : elapsed(reading.at, asOf.value))), roughly);
  return known === "" ? "" : `, ${known} ago`;
}

/** `single`: of one GPU, whose ranks are named; `counted`: several need no names, on a phone none does. */
function Places({ ranks, single, counted }: { ranks: readonly RankOnGpu[]; single: boolean; counted: boolean }) {
  if (counted && (ranks.length > NAMED || narrow.value)) return <>in {plural(ranks.length, "job")}</>;
  const more = ranks.length - NAMED;
  return (
    <>
      {!single && "in "}
      {ranks.slice(0, NAMED).map((each, i) => (
        <span key={each.job}>
          {i > 0 && ", "}
          {single ? <a href={rankAddress(each.job, each.rank)}>rank {each.rank} of {jobTitle(each)}</a> : <a href={jobAddress(each.job)}>{jobTitle(each)}</a>}
          {single && !counted && !narrow.value && each.pid !== null && <small> process {each.pid}</small>}
        </span>
      ))}
      {more > 0 && ` and ${more} more`}
    </>
  );
}
