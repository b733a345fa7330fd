// The tab "Kernels": which kernels make a rank late, how long each of the costliest takes, on which rank longest, and since when.

import { Fragment } from "preact";
import { useState } from "preact/hooks";
import { get } from "../api/client";
import type { KernelView, KernelsView, Straggler, Throttle } from "../api/types";
import { asOf } from "../api/connection";
import { usePolled } from "../live/poll";
import { alikeWords, besideWords, callsOf, callsWords, cutMiddle, hasChanged, isUneven, kernelName, lagOf, lagWords, moreOf, ownColumn, ownMedian, ratioOfSlowest, seenFrom, shareOfStep, slowerFirst, slowestInAll, type SlowRank, slowRankFigures, slowRanksOf, slowRankWords, spark, timedWords, trendWords, weighed } from "../logic/kernels";
import { jobAddress, rankAddress } from "../logic/route";
import { calmWords } from "../logic/stragglers";
import { ago, clock, count, fine, percent, plural, times, wholeDuration } from "../logic/text";
import { copyText } from "./clipboard";
import { NodeLink } from "./placelinks";
import { narrow } from "./preferences";
import { announcement } from "./shell";
import { Table } from "./table";

const EVERY_MS = 10_000;
/** Units of a sparkline, which is as wide as its place. */
const [WIDTH, HEIGHT] = [400, 44];
/** Characters of a family and of a variant that a phone has room for. */
const [FAMILY, VARIANT] = [20, 24];

/** `slow`: the costliest slow rank of the job; null: there is none. `throttled`: what throttles its GPU. */
export function Kernels({ id, over, slow, throttled }: { id: string; over: boolean; slow: Straggler | null; throttled: Throttle | null | undefined }) {
  const table = usePolled(EVERY_MS, async (ended) => weighed(await get<KernelsView>(`/jobs/${encodeURIComponent(id)}/kernels`, ended)), [id]);
  if (table === null) return <p class="note">Loading the kernels.</p>;
  const slower = table.kernels.filter((kernel) => kernel.slower_since !== null);
  const changed = table.kernels.some(hasChanged);
  const calm = calmWords(table.kernels, slow);
  const one = slowestInAll(table.kernels);
  const lines = table.kernels.map((kernel) => spark(kernel, table.points, WIDTH, HEIGHT));
  const until = table.points.at(-1) ?? null;
  const perStep = table.compute != null;
  const rank = ownColumn(table);
  const uneven = table.kernels.some(isUneven);
  const apart = rank !== null || uneven;
  return (
    <section class="kernels" aria-labelledby="kernels">
      <h2 id="kernels">
        Kernels <small>{table.at === null ? "none reported" : `${timedWords(table, over, asOf.value).replace(/\.$/, "")}; reported ${ago(table.at, asOf.value)}${over ? ", before the job ended" : ""}`}</small>
      </h2>
      {table.kernels.length === 0 ? <p class="note">{table.reason}</p> : (
        <>
          {calm !== "" && <p class="finding"><b>{calm}</b>{slow && <> <a href={jobAddress(id, "timeline")}>Section timeline</a> <a href={jobAddress(id, "charts")}>Charts</a></>}</p>}
          <Uneven table={table} slow={slow} alike={alikeWords(table.kernels, throttled)} />
          {slower.length > 0 && <p class="finding"><b>{plural(slower.length, "kernel takes", "kernels take")} longer than usual</b> on the median rank, shown first.</p>}
          <ul class="key" aria-label="Lines of the trends">
            <li><i aria-hidden="true" class="of-median" />median of all ranks{!lines.some(({ slowest }) => slowest.length > 0) && besideWords(table.kernels, rank)}</li>
            {lines.some(({ slowest }) => slowest.length > 0) && <li><i aria-hidden="true" class="of-slowest" />{one ? `rank ${one.slowest_rank}` : "slowest rank"}</li>}
            {lines.some(({ others }) => others.length > 0) && <li><i aria-hidden="true" class="of-others" />while another rank was the slowest</li>}
            {lines.some(({ uneven }) => uneven !== null) && <li><i aria-hidden="true" class="rule of-slowest" />{one?.uneven_since == null ? "a rank became slow" : `slow, ${seenFrom(one.uneven_since, asOf.value)}`}</li>}
            {lines.some(({ changed }) => changed !== null) && <li><i aria-hidden="true" class="rule" />the median became longer</li>}
            <li class="when">{clock(table.since, asOf.value)} to {clock(until, asOf.value)}</li>
          </ul>
          {narrow.value ? <ShortTable job={id} table={table} changed={changed} apart={apart} rank={rank} /> : (
            <Table name="Costliest kernels" heads={[
              "Kernel", table.step == null ? "Share of kernel time" : "Share of a step",
              [<>One call <small>median; tail: mean of the slower half</small></>, "number"],
              perStep && [<>Calls <small>in a step</small></>, "number"],
              apart && [<>{rank === null ? "Slowest rank" : <>Rank <a href={rankAddress(id, rank)}>{rank}</a></>} <small>its median{perStep && uneven && "; more in a step"}</small></>, ""],
              [<>{clock(table.since, asOf.value)} to {clock(until, asOf.value)} <small>from 0, one call</small></>, ""],
              changed && [<>Now / usual <small>of the median</small></>, "number"],
            ]}>
              {slowerFirst(table.kernels).map((kernel) => <Row key={kernel.name} job={id} kernel={kernel} table={table} changed={changed} apart={apart} rank={rank} />)}
            </Table>
          )}
          <p class="note">
            {table.omitted > 0 && `${count(table.omitted)} further kernels take less time. `}
            Collectives are left out, since they wait for other ranks. The trends have a point for each report of kernels, at most one every {wholeDuration(table.spacing)}.
            {" "}They are kept in the monitor's memory since {clock(table.since, asOf.value)} and begin anew when it restarts.
          </p>
        </>
      )}
    </section>
  );
}

const NAMED = 2;

/** Which ranks are slow in the kernels, in sentences; the costliest first. `alike`: that the only one is slow in all of them alike. */
function Uneven({ table, slow, alike }: { table: KernelsView; slow: Straggler | null; alike: string }) {
  const found = slowRanksOf(table.kernels);
  const since = (each: SlowRank) => each.worst.uneven_since;
  return (
    <>
      {found.slice(0, NAMED).map((each) => {
        const lag = lagOf(each.rank, table);
        const words = lag === null ? slowRankWords(each) : lagWords(lag, slow?.rank === each.rank ? slow.lateness : null);
        return (
          <p key={each.rank} class="finding uneven">
            {alike || words}.
            {alike !== "" ? <small>{lag !== null && `${words}. `}{each.host && <>Rank {each.rank} is on <NodeLink host={each.host} />.</>}</small> : <small>
              {lag !== null && `On rank ${each.rank} the ${slowRankFigures(each)}: `}
              {fine(each.worst.slowest)} against {fine(each.worst.ranks === 2 ? each.worst.slowest / each.ratio : each.worst.median)}{each.host && <>, on <NodeLink host={each.host} /></>}{since(each) != null && `, ${seenFrom(since(each)!, asOf.value)}`}.
            </small>}
          </p>
        );
      })}
      {found.length > NAMED && <p class="note">{plural(found.length - NAMED, "more rank is", "more ranks are")} the slowest in a kernel by 10 % or more: see the table.</p>}
    </>
  );
}

interface Listed {
  job: string;
  table: KernelsView;
  changed: boolean;
  /** There is a column of ranks. */
  apart: boolean;
  /** The rank whose column it is; null: that of the slowest of each kernel. */
  rank: number | null;
}

function Row({ job, kernel, table, changed, apart, rank }: Listed & { kernel: KernelView }) {
  const slower = kernel.slower_since !== null;
  const uneven = isUneven(kernel);
  const ofStep = shareOfStep(kernel, table);
  const more = moreOf(kernel, table);
  const longer = more === null ? "" : `, +${fine(more)}`;
  const own = ownMedian(kernel, rank);
  const other = kernel.slowest_rank !== rank;
  return (
    <tr class={slower ? "slower" : undefined}>
      <th scope="row" title={kernel.name}><Name name={kernel.name} /></th>
      <td class="part">
        <i aria-hidden="true" style={{ width: `${100 * (ofStep ?? kernel.share)}%` }} />
        <b>{percent(ofStep ?? kernel.share)}</b>
        {ofStep !== null && <small>{percent(kernel.share)} of kernel time</small>}
      </td>
      <td class="number"><b>{fine(kernel.median)}</b><small>tail {fine(kernel.tail)}</small></td>
      {table.compute != null && <td class="number">{callsWords(callsOf(kernel, table))}</td>}
      {apart && <td class={uneven ? "uneven" : undefined}>
        {own && <>{fine(own.seconds)}<small>{times(own.ratio)} the median{other ? "" : longer}</small></>}
        {!own && !uneven && <small>no rank stands out</small>}
        {uneven && other && (
          <>
            <a href={rankAddress(job, kernel.slowest_rank)}>{kernel.slowest_rank}</a> <NodeLink host={kernel.slowest_host} />
            <small>{fine(kernel.slowest)}, {times(ratioOfSlowest(kernel))} the median{longer}</small>
            {kernel.uneven_since != null && <small>{seenFrom(kernel.uneven_since, asOf.value)}</small>}
          </>
        )}
      </td>}
      <td class="trend"><Sparkline kernel={kernel} points={table.points} /></td>
      {changed && (
        <td class="number longer-than-usual">
          {times(kernel.change)}
          {slower && <small>since {clock(kernel.slower_since, asOf.value)}</small>}
        </td>
      )}
    </tr>
  );
}

/** For a phone: a kernel in a line, the others of its figures on demand. */
function ShortTable({ job, table, changed, apart, rank }: Listed) {
  const kernels = slowerFirst(table.kernels);
  const [shown, show] = useState<string | undefined>(kernels[0]?.name);
  return (
    <Table name="Costliest kernels" heads={["Kernel", changed && ["Now / usual", "number"], apart && [`${rank === null ? "Slowest" : `Rank ${rank}`} / median`, "number"], [table.step == null ? "Kernel time" : "Of a step", "number"]]}>
      {kernels.map((kernel) => {
        const { name, slower_since: since, slowest_rank } = kernel;
        const own = ownMedian(kernel, rank ?? slowest_rank);
        const { family, variant } = kernelName(name);
        const more = rank === null || rank === slowest_rank ? moreOf(kernel, table) : null;
        const open = name === shown;
        return (
          <Fragment key={name}>
            <tr class={since === null ? undefined : "slower"}>
              <th scope="row">
                <button type="button" aria-expanded={open} onClick={() => show(open ? undefined : name)}>
                  <span class="code family">{open ? "▾" : "▸"} {cutMiddle(family, FAMILY)}</span>
                  <small class="code">{cutMiddle(variant, VARIANT)}</small>
                </button>
              </th>
              {changed && <td class="number longer-than-usual">{times(kernel.change)}</td>}
              {apart && <td class={isUneven(kernel) ? "number uneven" : "number"}>{kernel.ranks > 1 && own ? times(own.ratio) : "–"}{more !== null && <small>+{fine(more)}</small>}</td>}
              <td class="number">{percent(shareOfStep(kernel, table) ?? kernel.share)}</td>
            </tr>
            {open && (
              <tr class="more">
                <td colSpan={2 + Number(apart) + Number(changed)}>
                  One call: median {fine(kernel.median)}, tail {fine(kernel.tail)}
                  {kernel.ranks > 1 && <span>, <a href={rankAddress(job, slowest_rank)}>rank {slowest_rank}</a> {fine(kernel.slowest)}</span>}
                  {table.compute != null && `; ${callsWords(callsOf(kernel, table))} calls in a step`}
                  {since !== null && `; longer since ${clock(since, asOf.value)}`}.
                  <Sparkline kernel={kernel} points={table.points} />
                  <Name name={name} />
                </td>
              </tr>
            )}
          </Fragment>
        );
      })}
    </Table>
  );
}

/** What kind of kernel first; the whole name by the pointer, and to copy. */
function Name({ name }: { name: string }) {
  const { family, variant, shape } = kernelName(name);
  const copy = async () => (announcement.value = (await copyText(name)) ? "Name copied" : "The browser does not allow to copy.");
  return (
    <>
      <span class="code family">{family}</span>
      <button type="button" class="copy" aria-label={`Copy the whole name of ${family}`} title={`Copy ${name}`} onClick={() => void copy()}>copy</button>
      {variant && <small class="code">{variant}</small>}
      {shape && <small>{shape}</small>}
    </>
  );
}

/** The median and the slowest rank over time, with what they are now at the end. */
function Sparkline({ kernel, points }: { kernel: KernelView; points: readonly number[] }) {
  const { median, slowest, others, ends, changed, uneven } = spark(kernel, points, WIDTH, HEIGHT);
  const words = trendWords(kernel, asOf.value);
  const rule = (name: string, x: number | null) => x !== null && <path class={name} d={`M${x.toFixed(1)} 0V${HEIGHT}`} />;
  return (
    <div class="sparkline">
      <svg class="spark" role="img" aria-label={`Median: ${words}`} viewBox={`0 -2 ${WIDTH} ${HEIGHT + 4}`} preserveAspectRatio="none">
        <title>{words}</title>
        <path class="zero" d={`M0 ${HEIGHT}H${WIDTH}`} />
        {rule("changed", changed)}
        {rule("changed of-slowest", uneven)}
        {others.map((line) => <polyline key={line} class="of-others" points={line} />)}
        {slowest.map((line) => <polyline key={line} class="of-slowest" points={line} />)}
        {median.map((line) => <polyline key={line} class="of-median" points={line} />)}
      </svg>
      <span aria-hidden="true" class="ends">
        {slowest.length > 0 && <b class="of-slowest" style={{ top: `${100 * ends.slowest}%` }}>{fine(kernel.slowest)}</b>}
        <b class="of-median" style={{ top: `${100 * ends.median}%` }}>{fine(kernel.median)}</b>
      </span>
    </div>
  );
}
