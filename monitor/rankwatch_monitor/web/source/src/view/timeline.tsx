// The tab "Section timeline": sections of chosen ranks in their last sampled steps.

import type { ComponentChildren } from "preact";
import { useMemo, useState } from "preact/hooks";
import { get } from "../api/client";
import type { Incident, SectionTimeline } from "../api/types";
import type { JobWatch } from "../live/job";
import { type Answer, useAnswer } from "../live/poll";
import { blame } from "../logic/incidents";
import { absence, choiceWords, lanes, type Lanes, led, median, onlyMeasured, pannedView, type Placed, sums, total, type View, waited, WHOLE, withPeers, written, zoomedView } from "../logic/timeline";
import { PARTS, sectionTone } from "../logic/parts";
import { jobAddress } from "../logic/route";
import { count, duration, percent } from "../logic/text";
import { Step } from "./chartrange";
import { Run } from "./copy";
import { LaneField } from "./lanefield";
import { narrow } from "./preferences";
import { selected } from "./selection";
import { Table } from "./table";

const EVERY_MS = 3000;
const SHOWN_RANKS = 8;
const COLUMNS = 8;
/** Ranks at this multiple of the median time in a section, or above, are marked. */
const LONGER = 1.25;
const STEPS = [1, 2, 3, 5, 10];

export function Timeline({ watch, incident }: { watch: JobWatch; incident: Incident | null }) {
  const [chosen, setChosen] = useState<string | null>(null);
  const [proposed, choice] = proposal(watch, incident);
  const ranks = chosen ?? proposed;
  const [last, setLast] = useState(() => (narrow.value ? 1 : 3)); // as many as have room
  /** The last step shown; null: follow the newest. */
  const [until, setUntil] = useState<number | null>(null);
  /** Only steps whose time in collectives is known; null: if there are any, but while ranks hang the newest steps count. */
  const [asked, setAsked] = useState<boolean | null>(null);
  const wanted = asked ?? (incident !== null && incident.closed_at === null ? false : null);
  const { answer, problem } = useTimeline(watch.id, ranks, last, until, wanted);
  const profiled = onlyMeasured(wanted, answer);
  const blamed = blamedRanks(watch, incident);
  const first = [...blamed.keys()];
  const timeline = useMemo(() => (answer === null ? null : led(answer, first)), [answer, first.join()]);
  const [width, setWidth] = useState(0);
  const placed = useMemo(() => (timeline && width > 0 ? lanes(timeline, width) : null), [timeline, width]);
  const [at, setAt] = useState<number | null>(null);
  const [view, setView] = useState(WHOLE);
  const sampled = (profiled ? timeline?.profiled : timeline?.sampled) ?? [];
  const newest = until === null ? sampled.length - 1 : sampled.indexOf(until);
  const restart = () => (setAt(null), setView(WHOLE));
  /** Steps that are looked at closely must not be replaced by newer ones. */
  const show = (next: View) => {
    if (next[1] - next[0] < 1 && until === null && placed?.columns.length) setUntil(placed.columns.at(-1)!.iteration);
    setView(next);
  };
  const go = (by: number) => {
    const next = Math.max(0, Math.min(sampled.length - 1, newest + by));
    restart();
    setUntil(next === sampled.length - 1 ? null : sampled[next]!);
  };
  const choose = (event: SubmitEvent) => {
    event.preventDefault();
    const text = String(new FormData(event.currentTarget as HTMLFormElement).get("ranks") ?? "").replace(/\s/g, "");
    restart();
    setChosen(text === "" ? null : text);
  };
  const span = at === null ? null : placed?.spans[at] ?? null;
  return (
    <section class="timeline" aria-labelledby="timeline">
      <h2 id="timeline">
        Section timeline{" "}
        <small>
          one lane per rank; each step starts with the rank's own first section{timeline && timeline.attempt > 0 ? `; attempt ${timeline.attempt}` : ""}
        </small>
      </h2>
      {timeline !== null && sampled.length > 0 && <p class="finding">{timeline.finding} <small>{timeline.basis}</small></p>}
      {timeline?.ranks_known !== 0 && <form class="choose" onSubmit={choose}>
        <label>
          Ranks <input name="ranks" key={ranks} defaultValue={ranks} autocomplete="off" spellcheck={false} placeholder="0,8-11" />
        </label>
        <button type="submit">Show</button>
        {chosen !== null ? <button type="button" class="quiet" onClick={() => (restart(), setChosen(null))}>Suggested ranks</button> : choice && <small>{choice}</small>}
        {sampled.length > 0 && (
          <>
            <label>
              Steps{" "}
              <select value={Math.min(last, sampled.length)} onChange={(event) => (restart(), setLast(Number(event.currentTarget.value)))}>
                {[...new Set(STEPS.map((each) => Math.min(each, sampled.length)))].map((each) => <option key={each} value={each}>{each}</option>)}
              </select>
            </label>
            <span class="turn">
              <button type="button" disabled={newest <= 0} onClick={() => go(-last)}>Earlier</button>
              <button type="button" disabled={newest >= sampled.length - 1} onClick={() => go(last)}>Later</button>
              <button type="button" class="quiet" disabled={until === null} onClick={() => (restart(), setUntil(null))}>Newest</button>
            </span>
          </>
        )}
        {timeline !== null && (timeline.profiled.length > 0 || profiled) && (
          <label>
            <input type="checkbox" checked={profiled} onChange={() => (restart(), setUntil(null), setAsked(!profiled))} /> Only steps with known waiting ({count(timeline.profiled.length)})
          </label>
        )}
        {sampled.length > 0 && <span class="turn" role="toolbar" aria-label="Part of the steps shown">
          <Step name="Move left" onClick={() => show(pannedView(view, -0.5))}>‹</Step>
          <Step name="Move right" onClick={() => show(pannedView(view, 0.5))}>›</Step>
          <Step name="Zoom in" onClick={() => show(zoomedView(view, 0.5))}>+</Step>
          <Step name="Zoom out" onClick={() => show(zoomedView(view, 2))}>−</Step>
          {view[1] - view[0] < 1 && <button type="button" onClick={() => setView(WHOLE)}>Whole steps</button>}
        </span>}
      </form>}
      {problem !== null && <p class="refused" role="alert">{problem.message}</p>}
      {problem === null && timeline === null && <p class="note">Loading the timeline.</p>}
      {timeline !== null && sampled.length === 0 && <Absent job={watch.id} reasons={absence(timeline, profiled)} />}
      {timeline !== null && sampled.length > 0 && (
        <>
          <Key timeline={timeline} placed={placed} />
          <LaneField blamed={blamed} timeline={timeline} placed={placed} at={at} choose={setAt} width={width} view={view} show={show} resized={setWidth} />
          <p class="readout" id="lane-keys" aria-live="polite">
            {span && placed ? <Words timeline={timeline} placed={placed} span={span} /> : <small>{narrow.value ? "Tap a section for its time; + and − zoom." : "Point at a section, or use the arrow keys. Drag, + and − zoom; Shift with the arrows moves; 0 shows whole steps."}</small>}
          </p>
          <Sums timeline={timeline} blamed={blamed} />
          <p class="links">
            <a href={`/api/v1/jobs/${encodeURIComponent(watch.id)}/timeline/trace?ranks=${encodeURIComponent(ranks)}`} download>
              All sampled steps of these ranks for Perfetto
            </a>
          </p>
        </>
      )}
    </section>
  );
}

/** Culprits of the open incident and slow ranks, the costliest first, with the word for each. */
function blamedRanks(watch: JobWatch, incident: Incident | null): Map<number, string> {
  const culprits = incident?.closed_at === null ? incident.culprits.slice(0, 4) : [];
  const slow = (watch.performance.value?.stragglers ?? []).slice(0, 4);
  return new Map([...slow.map(({ rank }) => [rank, "slow"] as const), ...culprits.map(({ rank }) => [rank, blame(incident!)] as const)].reverse());
}

/** The selected rank, culprits, stragglers, and other ranks for comparison; and that choice in words. */
function proposal(watch: JobWatch, incident: Incident | null): [ranks: string, words: string] {
  const size = watch.job.value?.world_size ?? 0;
  const wanted = [...new Set([...(selected.peek() === null ? [] : [selected.peek()!]), ...blamedRanks(watch, incident).keys()])];
  const { byRank } = watch.reports.value;
  const hostOf = (rank: number) => byRank[rank]?.host;
  const ranks = withPeers(wanted, size, SHOWN_RANKS, hostOf);
  return [written(ranks), choiceWords(wanted, ranks, hostOf)];
}

function Absent({ job, reasons: [why, ...checks] }: { job: string; reasons: readonly string[] }) {
  return (
    <div class="absent">
      <p>{why}</p>
      {checks.length > 0 && <ul>{checks.map((each) => <li key={each}>{each.split("`").map((part, i) => (i % 2 === 0 ? part : <Run command={part} host="" />))}</li>)}</ul>}
      <p class="links">
        {checks.length > 0 && <><a href="/manual/adopt.html">How steps and sections get into a script</a>{" "}</>}
        <a href={jobAddress(job, "charts")}>Step time and speed in the charts</a>
      </p>
    </div>
  );
}

function Part({ of, children }: { of: string; children: ComponentChildren }) {
  return <li><i class="area" aria-hidden="true" style={{ color: `var(--${of})` }} />{children}</li>;
}

function Key({ timeline, placed }: { timeline: SectionTimeline; placed: Lanes | null }) {
  const measured = timeline.ranks.filter(({ waits }) => waits !== null).length;
  const used = new Set(placed?.spans.map(({ section }) => section));
  return (
    <ul class="key">
      {[...used].sort((a, b) => a - b).slice(0, 16).map((section) => (
        <Part key={section} of={sectionTone(timeline.sections[section]!, section)}><span class="code">{timeline.sections[section]}</span></Part>
      ))}
      {measured === 0 && <li><small>Waiting for others is not drawn in these steps: {timeline.no_waits}.</small></li>}
      {measured > 0 && <Part of={PARTS.waiting}>{measured === 1 ? "in collectives: waiting for others, and the transfer" : "waiting for others in collectives"}</Part>}
      {measured > 1 && <Part of={PARTS.communication}>transfer (what even the last rank to arrive spends in collectives)</Part>}
    </ul>
  );
}

function Words({ timeline, placed, span }: { timeline: SectionTimeline; placed: Lanes; span: Placed }) {
  const lane = timeline.ranks[span.lane]!;
  const column = placed.columns[span.step]!;
  const here = total(placed, span.lane, span.step, span.section);
  const others = timeline.ranks.map((_, i) => total(placed, i, span.step, span.section)).filter((seconds) => seconds > 0);
  const middle = median(others);
  const stepOf = (each: SectionTimeline["ranks"][number]) => each.steps.find((candidate) => candidate.iteration === column.iteration);
  const step = stepOf(lane)!;
  const inside = waited(step, span.start, span.start + span.seconds);
  const more = (waited(step) ?? 0) - Math.min(...timeline.ranks.flatMap((each) => waited(stepOf(each)) ?? []));
  return (
    <>
      <b>Rank {lane.rank}</b>
      {lane.host && <span>{lane.host}</span>}
      <span>step {count(column.iteration)}</span>
      <span><span class="code">{timeline.sections[span.section]}</span> took <b>{duration(span.seconds)}</b></span>
      <span>{percent(span.seconds / step.seconds)} of its step</span>
      {inside !== null && <span>{inside < 0.0005 ? "none" : duration(inside)} of it in collectives{more > 0.0005 && `, in the whole step ${duration(more)} longer than the last rank to arrive`}</span>}
      {inside === null && <span>waiting not measured</span>}
      {here > span.seconds * 1.01 && <span>{duration(here)} in all its entries</span>}
      {others.length > 1 && <span>median of these ranks {duration(middle)}{here / middle >= LONGER && `: ${(here / middle).toFixed(1)} times as long`}</span>}
    </>
  );
}

function Sums({ timeline, blamed }: { timeline: SectionTimeline; blamed: ReadonlyMap<number, string> }) {
  const { sections, rests, longer } = sums(timeline, COLUMNS, narrow.value);
  const least = Math.min(...timeline.ranks.flatMap(({ waits }) => waits ?? []));
  return (
    <>
      <h3>
        Time per step by section{" "}
        <small>{Number.isFinite(least) ? "what each works itself, without the time in collectives" : "without what is nested in it; time in collectives is not known, and included"}</small>
      </h3>
      <Table name="Time per step by section" heads={[
        ["Rank", "number"], !narrow.value && "Node",
        Number.isFinite(least) && ["Works", "number", "Of the step what is not in collectives"],
        Number.isFinite(least) && [<>In {narrow.value ? "collec\u00adtives" : "collectives"} <small>(waiting)</small></>, "number in-collectives", "While nothing was computed; of the steps in which it was measured"],
        ...sections.map((section) => [<>{timeline.sections[section]}{rests.has(section) && <small> rest</small>}</>, "number code"] as const),
      ]}>
        {timeline.ranks.map((lane, i) => {
          const node = <>{lane.host || "–"}{blamed.has(lane.rank) && <small class="mark">{blamed.get(lane.rank)}</small>}</>;
          return <tr key={lane.rank} aria-selected={selected.value === lane.rank} onClick={() => (selected.value = lane.rank)}>
            <th scope="row" class="number">{lane.rank}{narrow.value && <small>{node}</small>}</th>
            {!narrow.value && <td>{node}</td>}
            {Number.isFinite(least) && <td class="number force">{duration(lane.works)}</td>}
            {Number.isFinite(least) && (
              <td class="number">
                {duration(lane.waits)}
                {lane.waits !== null && lane.waits - least > 0.0005 && <small> ({duration(lane.waits - least)}{!narrow.value && " waiting"})</small>}
              </td>
            )}
            {sections.map((section, j) => {
              const more = longer[i]![j]!;
              return (
                <td key={section} class={more === null ? "number" : "number longer"}>
                  {duration(lane.own[section])}
                  {more !== null && <small> {narrow.value ? `+${duration(more)}` : `(${duration(more)} more)`}</small>}
                </td>
              );
            })}
          </tr>;
        })}
      </Table>
    </>
  );
}

function useTimeline(job: string, ranks: string, last: number, until: number | null, wanted: boolean | null): Answer<SectionTimeline | null> {
  return useAnswer(EVERY_MS, async (ended) => {
    if (ranks === "") return null;
    const read = (steps: string) => get<SectionTimeline>(`/jobs/${encodeURIComponent(job)}/timeline?ranks=${encodeURIComponent(ranks)}&${steps}`, ended);
    const timeline = await read(`last=${last}`);
    const profiled = onlyMeasured(wanted, timeline);
    const steps = profiled ? timeline.profiled : timeline.sampled;
    const end = until === null ? (profiled ? steps.length - 1 : -1) : steps.indexOf(until);
    return end < 0 ? timeline : read(`steps=${steps.slice(Math.max(0, end + 1 - last), end + 1).join(",")}`);
  }, [job, ranks, last, until, wanted]);
}
