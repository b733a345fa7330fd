// The time axis of the charts: presets, zoom, and what happened on it: incidents and attempts as links.

import type { ComponentChildren } from "preact";
import type { Incident, JobSummary } from "../api/types";
import { asOf } from "../api/connection";
import { type AttemptMark, between, incidentRange, isLive, panned, placed, type Placed, PRESETS, type Range, sameRange, shownRange, stood, USUAL, zoomed } from "../logic/range";
import { incidentAddress } from "../logic/route";
import { placeWords } from "../logic/incidents";
import { clock, plural, wholeDuration } from "../logic/text";
import { narrow } from "./preferences";
import { range } from "./selection";

export function RangeBar({ incidents, from, to, started }: { incidents: readonly Incident[]; from: number; to: number; started: number | null }) {
  const preset = PRESETS.some(([, , each]) => sameRange(each, range.value));
  const shown = shownRange(range.value, started, to);
  const closer = incidentRange(stood(incidents, asOf.value), [from, to]);
  const go = (chosen: Range) => () => (range.value = chosen);
  return (
    <div class="ranges" role="toolbar" aria-label="Time shown by all charts">
      {PRESETS.map(([name, label, each]) => (
        <button key={name} type="button" aria-pressed={sameRange(each, shown)} onClick={go(each)}>
          {label}
        </button>
      ))}
      <span class="turn">
        <Step name="Earlier" onClick={go(panned([from, to], -0.5))}>‹</Step>
        <Step name="Later" onClick={go(panned([from, to], 0.5))}>›</Step>
        <Step name="Zoom in" onClick={go(zoomed([from, to], 0.5))}>+</Step>
        <Step name="Zoom out" onClick={go(zoomed([from, to], 2))}>−</Step>
        {closer && <button type="button" onClick={go(closer)}>Zoom to incidents</button>}
        {!preset && <button type="button" onClick={go(USUAL)}>Reset</button>}
      </span>
      <output>
        {shown === "all" && `all, ${wholeDuration(to - from)}: `}{clock(from, asOf.value)} to {isLive(range.value) && to >= asOf.value ? "now" : clock(to, asOf.value)}
      </output>
    </div>
  );
}

export function Step({ name, onClick, children }: { name: string; onClick: () => void; children: ComponentChildren }) {
  return <button type="button" aria-label={name} title={name} onClick={onClick}>{children}</button>;
}

/** Incidents that are listed at most. */
const MOST_NUMBERED = 9;

interface Lane {
  job: JobSummary;
  incidents: readonly Incident[];
  attempts: readonly AttemptMark[];
  from: number;
  to: number;
}

export function EventLane({ job, incidents, attempts, from, to }: Lane) {
  /** Shares of the axis, in percent, that the words and the number of a mark need. */
  const [words, number] = narrow.value ? [24, 6] : [7, 1.6];
  const found = placed(stood(incidents, asOf.value), [from, to], number);
  /** Where there is no room for words, incidents have the numbers of a list. */
  const numbered = found.filter(({ room, items }) => room < words && items.length === 1).slice(0, MOST_NUMBERED);
  const begun = placed(attempts.filter((each) => attempts.length > 1 && each.from >= from).map((item) => ({ item, from: item.from, to: item.from })), [from, to]);
  if (found.length + begun.length === 0) return null;
  const show = (first: number, last: number) => () => (range.value = between(first - (last - first) * 0.1, last + (last - first) * 0.1));
  return (
    <div class="events">
      {begun.length > 0 && (
        <ul aria-label="Attempts in this time" data-lane="Attempts">
          {begun.map((each) => {
            const [first, last] = [each.items[0]!, each.items.at(-1)!];
            const numbers = first === last ? `${first.attempt}` : `${first.attempt}–${last.attempt}`;
            const name = `${first === last ? "attempt" : "attempts"} ${numbers}`;
            return (
              <li key={first.attempt} class={each.room < words ? "short" : undefined} style={at(each)}>
                <button type="button" class="attempt" title={`${name}, since ${clock(first.from, asOf.value)}. Show only it.`} aria-label={name} onClick={show(first.from, last.to)}>{each.room < words ? numbers : name}</button>
              </li>
            );
          })}
        </ul>
      )}
      {found.length > 0 && (
        <ul aria-label="Incidents in this time" data-lane="Incidents">
          {found.map((each) => {
            const first = each.items[0]!;
            const place = numbered.indexOf(each) + 1;
            const style = { ...at(each), "--wide": `${each.width}cqw` };
            return (
              <li key={first.id} class={place > 0 ? "short" : undefined} style={style}>
                {each.items.length === 1 ? (
                  <a class={place === 0 && each.width < words ? "incident narrow" : "incident"} href={incidentAddress(job.id, first.id)} title={`${clock(each.from, asOf.value)}: ${first.headline || first.reason}`} aria-label={first.label}>{place || first.label}</a>
                ) : (
                  <button type="button" class={each.width < words ? "incident narrow" : "incident"} title="Show the time of these only." onClick={show(each.from, Math.max(each.to, each.from + 30))}>{plural(each.items.length, "incident")}</button>
                )}
              </li>
            );
          })}
        </ul>
      )}
      {numbered.length > 0 && (
        <ol>
          {numbered.map(({ from: began, items: [first] }) => <li key={first!.id}><a href={incidentAddress(job.id, first!.id)}>{clock(began, asOf.value)}</a> {`${placeWords(first!)}: ${first!.title}`}</li>)}
        </ol>
      )}
    </div>
  );
}

function at({ left, room }: Placed<unknown>) {
  return { left: `${left}%`, width: `${room}%` };
}
