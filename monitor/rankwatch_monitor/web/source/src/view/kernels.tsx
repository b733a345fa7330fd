// The tab "Kernels": how long each of the costliest kernels takes now, on which rank longest, and how that changed.

import { useEffect, useState } from "preact/hooks";
import { get } from "../api/client";
import type { Kernel, Kernels as Table, Straggler } from "../api/types";
import { asOf } from "../api/connection";
import { poll } from "../live/poll";
import { inKernels, isUneven, nameAndShape, ratioOfSlowest, slowerFirst, slowRanksOf, slowRankWords, spark, spread, timedWords, times, trendWords } from "../logic/kernels";
import { rankAddress } from "../logic/route";
import { score, slowIn } from "../logic/stragglers";
import { ago, clock, count, fine, percent, plural, wholeDuration } from "../logic/text";
import { NodeLink } from "./placelinks";

const EVERY_MS = 10_000;
/** CSS pixels of a sparkline, without the room for its end. */
const [WIDTH, HEIGHT, ROOM] = [140, 22, 3];

/** `slow`: the costliest slow rank of the job; null: there is none. */
export function Kernels({ id, over, slow }: { id: string; over: boolean; slow: Straggler | null }) {
  const table = useTable(id);
  if (table === null) return <p class="note">Loading the kernels.</p>;
  const slower = table.kernels.filter((kernel) => kernel.slower_since !== null);
  return (
    <section class="kernels" aria-labelledby="kernels">
      <h2 id="kernels">
        Kernels <small>{table.at === null ? "none reported" : `${slower.length > 0 ? "" : "the costliest first; "}reported ${ago(table.at, asOf.value)}${over ? ", before the job ended" : ""}`}</small>
      </h2>
      {table.kernels.length === 0 ? <p class="note">{table.reason}</p> : (
        <>
          {slow !== null && <Acquitted table={table} slow={slow} />}
          <Uneven table={table} />
          <p class="finding">
            {slower.length === 0 ? "Over the median of all ranks, no kernel takes longer than it did before." : (
              <><b>{plural(slower.length, "kernel takes", "kernels take")} longer than usual</b>, shown first.</>
            )}
          </p>
          <div class="scroll" role="region" aria-label="Costliest kernels" tabIndex={0}>
            <table>
              <thead>
                <tr>
                  <th scope="col">Kernel</th>
                  <th scope="col" class="number">Share</th>
                  <th scope="col" class="number">Median</th>
                  <th scope="col" class="number" title="Mean of the slower half of the calls">Tail</th>
                  <th scope="col" class="number" title="The median now, divided by the lower quartile of the trend">Now / usual</th>
                  <th scope="col">Median since {clock(table.since, asOf.value)}</th>
                  <th scope="col" title="Medians of the fastest and the slowest rank; the mark is the median over all ranks">Fastest to slowest rank</th>
                  <th scope="col" class="number">Slowest rank</th>
                  <th scope="col">Node</th>
                  <th scope="col" class="number" title="Median of the slowest rank, and how many times the median over all ranks that is">Its median</th>
                  <th scope="col" class="number" title="The fastest rank's median divided by that of the slowest; 1 is equally fast, below 0.90 is marked">Relative score</th>
                </tr>
              </thead>
              <tbody>
                {slowerFirst(table.kernels).map((kernel) => <Row key={kernel.name} job={id} kernel={kernel} points={table.points} />)}
              </tbody>
            </table>
          </div>
          <p class="note">
            {table.omitted > 0 && `${count(table.omitted)} further kernels take less time. `}
            {timedWords(table, over, asOf.value)}
            {" "}Medians are over the ranks; collectives are left out, since they wait for other ranks. A point of the trends covers {wholeDuration(table.spacing)}.
            {" "}The trends are kept in the monitor's memory since {clock(table.since, asOf.value)} and begin anew when it restarts.
          </p>
        </>
      )}
    </section>
  );
}

/** That the kernels are not why a rank is slow, where they are not. */
function Acquitted({ table, slow }: { table: Table; slow: Straggler }) {
  const timed = table.kernels.some(({ ranks }) => ranks > 1);
  if (!timed || slow.cause === "compute" || slowRanksOf(table.kernels).some(({ rank }) => rank === slow.rank)) return null;
  return <p class="finding"><b>The kernels of rank {slow.rank} are as fast as those of its peers: the cause is {slow.cause === "unexplained" ? "elsewhere" : `its ${slowIn(slow.cause)}`}.</b></p>;
}

const NAMED = 2;

/** Which ranks are slow in the kernels, in sentences; the costliest first. */
function Uneven({ table }: { table: Table }) {
  const slow = slowRanksOf(table.kernels);
  if (slow.length === 0) return table.kernels.some(({ ranks }) => ranks > 1) ? <p class="finding">No rank is much slower than the others in these kernels.</p> : null;
  return (
    <>
      {slow.slice(0, NAMED).map((each) => (
        <p key={each.rank} class="finding uneven">
          {slowRankWords(each)}.
          <small>
            {fine(each.worst.slowest)} against {fine(each.worst.ranks === 2 ? each.worst.slowest / each.ratio : each.worst.median)}{each.host && <>, on <NodeLink host={each.host} /></>}. It is the slowest in {inKernels(each.kernels, table.kernels.length)} below, {percent(each.share)} of the kernel time.
          </small>
        </p>
      ))}
      {slow.length > NAMED && <p class="note">{plural(slow.length - NAMED, "more rank is", "more ranks are")} the slowest in a kernel by 10 % or more: see the column "Slowest rank".</p>}
    </>
  );
}

function Row({ job, kernel, points }: { job: string; kernel: Kernel; points: readonly number[] }) {
  const slower = kernel.slower_since !== null;
  const [name, shape] = nameAndShape(kernel.name);
  const uneven = isUneven(kernel) ? "number uneven" : "number";
  return (
    <tr class={slower ? "slower" : undefined}>
      <th scope="row" class="code" title={kernel.name}>
        {name}
        {shape && <small>{shape}</small>}
      </th>
      <td class="number">{percent(kernel.share)}</td>
      <td class="number force">{fine(kernel.median)}</td>
      <td class="number">{fine(kernel.tail)}</td>
      <td class="number longer-than-usual">
        {times(kernel.change)}
        {slower && <small>since {clock(kernel.slower_since, asOf.value)}</small>}
      </td>
      <td><Sparkline kernel={kernel} points={points} /></td>
      <td><Spread kernel={kernel} /></td>
      <td class={uneven}>
        {kernel.ranks > 1 ? <a href={rankAddress(job, kernel.slowest_rank)}>{kernel.slowest_rank}</a> : kernel.slowest_rank}
      </td>
      <td><NodeLink host={kernel.slowest_host} /></td>
      <td class="number">{fine(kernel.slowest)}{isUneven(kernel) && <small>{times(ratioOfSlowest(kernel))} the median</small>}</td>
      <td class={uneven}>{score(kernel.relative)}</td>
    </tr>
  );
}

function Sparkline({ kernel, points }: { kernel: Kernel; points: readonly number[] }) {
  const { lines, end, changed } = spark(kernel, points, WIDTH, HEIGHT);
  const words = trendWords(kernel, asOf.value);
  return (
    <svg class="spark" role="img" aria-label={`Median: ${words}`} width={WIDTH + 2 * ROOM} height={HEIGHT + 2 * ROOM} viewBox={`${-ROOM} ${-ROOM} ${WIDTH + 2 * ROOM} ${HEIGHT + 2 * ROOM}`}>
      <title>{words}</title>
      <path class="zero" d={`M0 ${HEIGHT}H${WIDTH}`} />
      {changed !== null && <path class="changed" d={`M${changed.toFixed(1)} 0V${HEIGHT}`} />}
      {lines.map((line) => <polyline key={line} points={line} />)}
      {end && <circle cx={end.x} cy={end.y} r="2.2" />}
    </svg>
  );
}

function Spread({ kernel }: { kernel: Kernel }) {
  const found = kernel.ranks > 1 ? spread(kernel, WIDTH) : null;
  if (found === null) return <>–</>;
  const [from, middle, to] = found;
  const words = `${fine(kernel.fastest)} to ${fine(kernel.slowest)}, median ${fine(kernel.median)}`;
  const y = HEIGHT / 2;
  return (
    <svg class="spread" role="img" aria-label={`Ranks: ${words}`} width={WIDTH + 2 * ROOM} height={HEIGHT + 2 * ROOM} viewBox={`${-ROOM} ${-ROOM} ${WIDTH + 2 * ROOM} ${HEIGHT + 2 * ROOM}`}>
      <title>{words}</title>
      <path class="zero" d={`M0 ${y}H${WIDTH}`} />
      <path class={isUneven(kernel) ? "range uneven" : "range"} d={`M${from.toFixed(1)} ${y}H${Math.max(to, from + 1).toFixed(1)}`} />
      <path class="middle" d={`M${middle.toFixed(1)} ${y - 6}v12`} />
    </svg>
  );
}

/** Null until the first answer. */
function useTable(id: string): Table | null {
  const [table, take] = useState<Table | null>(null);
  useEffect(() => poll(EVERY_MS, async (ended) => take(await get<Table>(`/jobs/${encodeURIComponent(id)}/kernels`, ended))), [id]);
  return table;
}
