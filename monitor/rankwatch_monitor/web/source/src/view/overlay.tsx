// A job compared with another one, or one of its attempts with an earlier one: all charts with the figures of both.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { get } from "../api/client";
import type { JobSummary, Trends } from "../api/types";
import type { Answer } from "../live/poll";
import { type Run, usePart, useRun } from "../live/run";
import { type Line, SHORTEST_SCORE, SHORTEST_SHARE, withArrows } from "../logic/charts";
import { alike, alikeThroughout, type Axis, cells, changeMarks, type Compared, comparedWords, type Curve, type Curves, curves, directionWords, dividedBy, extent, inside, isPart, lasts, lengthWords, means, onCells, type Overlay, overlap, PART, placeOf, SECONDS_APART, secondsOf, slowestOver, shownRatio, SLOWEST, slowestDiffers, STEPS_APART, stretches } from "../logic/overlay";
import { panned, type Range, zoomed } from "../logic/range";
import { jobAddress } from "../logic/route";
import { SCORES, score } from "../logic/stragglers";
import { count, duration, figure, percent, perSecond, plural, speedText, times, wholeDuration } from "../logic/text";
import { Step } from "./chartrange";
import { Charted } from "./plot";
import { narrow } from "./preferences";
import { Reference } from "./reference";
import { overlay, reference } from "./selection";

const HEIGHT = 150;
const HIGH = 210;
/** Attempts that can be chosen, the newest. */
const MOST_ATTEMPTS = 30;
/** Jobs that are proposed while a name is typed. */
const MOST_JOBS = 500;
/** Of what either has, both have less than this share. */
const MOST = 0.98;
/** A mean that differs by this much or more is set in bold. */
const NOTABLE = 0.05;
const ANOTHER = "another job";

interface Figure {
  title: string;
  small: string;
  format: (value: number | null) => string;
  /** Of the value axis. */
  label?: (value: number | null) => string;
  top?: number;
  fit?: boolean;
  least?: number;
}

/** Each figure but the logged values. */
const FIGURES: Record<string, Figure> = {
  step: { title: "Step time", small: "median over the ranks", format: duration },
  speed: { title: "Speed", small: "steps per second", format: speedText, label: perSecond },
  goodput: { title: "Goodput", small: "of the whole run up to there, after waiting for slow ranks", format: percent, top: 1, fit: true, least: SHORTEST_SHARE },
  ...Object.fromEntries(SCORES.map(([name, title]) => [`score ${name}`, { title: `GPU score, ${title}`, small: "of the worst rank; 1: as fast as", format: score, fit: true, least: SHORTEST_SCORE }])),
};

const attemptName = (attempt: number | null) => (attempt === null ? "whole run" : `attempt ${attempt}`);

/** Chooses what to compare with. */
export function OverlayChooser({ job }: { job: JobSummary }) {
  const chosen = overlay.value;
  const [typing, setTyping] = useState(false);
  const [jobs, setJobs] = useState<JobSummary[]>([]);
  const own = useAttempts(job.id);
  const other = useAttempts(chosen?.job ?? job.id);
  const elsewhere = typing || (chosen !== null && chosen.job !== job.id);
  useEffect(() => {
    if (elsewhere) void get<{ jobs: JobSummary[] }>("/jobs").then((answer) => setJobs(answer.jobs.slice(0, MOST_JOBS)), () => undefined);
  }, [elsewhere]);
  const latest = own.at(-1) ?? job.attempt;
  const set = (change: Partial<Overlay>) => (overlay.value = { ...(chosen ?? { job: job.id, attempt: null, own: null, axis: "step" }), ...change });
  const choose = (value: string) => {
    setTyping(value === ANOTHER);
    if (value === "") overlay.value = null;
    else if (value !== ANOTHER) set({ job: job.id, attempt: Number(value), own: latest === Number(value) ? null : latest });
    else if (chosen !== null && chosen.job === job.id) overlay.value = null;
  };
  const earlier = own.filter((each) => each !== latest || each === chosen?.attempt);
  const named = chosen === null || elsewhere || chosen.attempt === null || earlier.includes(chosen.attempt) ? earlier : [chosen.attempt, ...earlier];
  return (
    <form class="choose overlay" aria-label="Comparison" onSubmit={(event) => event.preventDefault()}>
      <label>
        Compare with{" "}
        <select value={elsewhere ? ANOTHER : chosen === null ? "" : String(chosen.attempt ?? "")} onChange={(event) => choose(event.currentTarget.value)}>
          <option value="">nothing</option>
          {[...named].reverse().map((each) => <option key={each} value={String(each)}>attempt {each} of this job</option>)}
          <option value={ANOTHER}>another job</option>
        </select>
      </label>
      {elsewhere && (
        <label>
          Job{" "}
          <input
            type="search" list="overlay-jobs" key={chosen?.job} defaultValue={chosen?.job ?? ""} placeholder="id" autocomplete="off" spellcheck={false}
            onChange={(event) => {
              const id = event.currentTarget.value.trim();
              if (id !== "") set({ job: id, attempt: null, own: null });
            }}
          />
          <datalist id="overlay-jobs">
            {jobs.filter(({ id }) => id !== job.id).map(({ id, name }) => <option key={id} value={id}>{name}</option>)}
          </datalist>
        </label>
      )}
      {chosen !== null && (
        <>
          {elsewhere && <Attempt label="its" value={chosen.attempt} attempts={other} choose={(attempt) => set({ attempt })} />}
          <Attempt label="and of this job" value={chosen.own} attempts={own} choose={(attempt) => set({ own: attempt })} />
          <label>
            by{" "}
            <select value={chosen.axis} onChange={(event) => set({ axis: event.currentTarget.value as Axis })}>
              <option value="step">step</option>
              <option value="time">time since the start</option>
            </select>
          </label>
        </>
      )}
    </form>
  );
}

interface AttemptChoice {
  label: string;
  value: number | null;
  attempts: readonly number[];
  choose: (attempt: number | null) => void;
}

function Attempt({ label, value, attempts, choose }: AttemptChoice) {
  const known = value === null || attempts.includes(value) ? attempts : [value, ...attempts];
  return (
    <label>
      {label}{" "}
      <select value={value === null ? "" : String(value)} onChange={(event) => choose(event.currentTarget.value === "" ? null : Number(event.currentTarget.value))}>
        <option value="">whole run</option>
        {[...known].reverse().map((each) => <option key={each} value={String(each)}>attempt {each}</option>)}
      </select>
    </label>
  );
}

/** An attempt that no job has: its answer has no points, but the names of all attempts. */
const NO_ATTEMPT = Number.MAX_SAFE_INTEGER;

/** The attempts of a job of which points are kept, oldest first. */
function useAttempts(job: string): readonly number[] {
  const [attempts, take] = useState<readonly number[]>([]);
  useEffect(() => {
    const ended = new AbortController();
    get<Trends>(`/jobs/${encodeURIComponent(job)}/trends?since=0&attempt=${NO_ATTEMPT}`, ended.signal).then((answer) => take(answer.attempts.slice(-MOST_ATTEMPTS)), () => take([]));
    return () => ended.abort();
  }, [job]);
  return attempts;
}

/** All figures of both runs. */
export function OverlayCharts({ job, chosen }: { job: JobSummary; chosen: Overlay }) {
  const reads = [useRun(job.id, chosen.own), useRun(chosen.job, chosen.attempt)] as const;
  const [zoom, setZoom] = useState<readonly [number, number] | null>(null);
  const names = [
    chosen.job === job.id ? attemptName(chosen.own) : `${job.id}${chosen.own === null ? "" : `, attempt ${chosen.own}`}`,
    chosen.job === job.id ? attemptName(chosen.attempt) : `${chosen.job}${chosen.attempt === null ? "" : `, attempt ${chosen.attempt}`}`,
  ] as const;
  const { axis } = chosen;
  const ofSteps = axis === "step";
  const [own, other] = reads.map(({ answer }) => answer);
  const parts = [usePart(job.id, chosen.own, zoomOf(own, axis, zoom)), usePart(chosen.job, chosen.attempt, zoomOf(other, axis, zoom))] as const;
  const whole = useMemo(() => (own && other ? [curvesOf(own, axis), curvesOf(other, axis)] as const : null), [own, other, axis]);
  const changes = useMemo(() => [own, other].map((run) => {
    const at = run?.change ? placeOf(run.change.since!, run.samples, axis, run.trends.at[0]!) : null;
    return at !== null && ofSteps ? Math.ceil(at) : at;
  }), [own, other, axis]);
  const drawn = useMemo(() => {
    const finer = (run: Run, part: Run | null, coarse: Curves) => (part === null ? coarse : curvesOf({ ...part, change: run.change }, axis, run.trends.at[0]));
    return own && other && whole ? [finer(own, parts[0], whole[0]), finer(other, parts[1], whole[1])] as const : null;
  }, [whole, ...parts]);
  const [first, second] = whole === null ? [null, null] : [extent(whole[0]), extent(whole[1])];
  const [from, to] = first && second ? [Math.min(first[0], second[0]), Math.max(first[1], second[1])] : [0, 0];
  const on = useMemo(() => cells(zoom ?? [from, to]), [zoom, from, to]);
  const rows = useMemo(() => {
    const figures = whole === null ? [] : [...new Set([...whole[0].keys(), ...whole[1].keys()])].filter((name, _, all) => !name.startsWith(SCORE) || name === scoreOf(all));
    const line = (curve: Curve | undefined, i: 0 | 1): Line[] =>
      curve === undefined ? [] : [{ name: names[i], tone: i === 0 ? "job-running" : "other-run", dashed: i === 1, behind: i === 1, values: onCells(curve, on) }];
    return figures.map((name) => ({ name, lines: [...line(drawn![0].get(name), 0), ...line(drawn![1].get(name), 1)], ...figureOf(name) })).filter(({ lines }) => lines.length > 0);
  }, [drawn, on, reference.value, ...names]);
  const [open, setOpen] = useState(false);
  const same = useRef<readonly string[]>([]);
  const missing = [missingWords(reads[0], names[0], job.id), missingWords(reads[1], names[1], chosen.job)].filter(Boolean);
  if (missing.length > 0) return <>{missing.map((each) => <p key={each} class="note" role="status">{each}</p>)}</>;
  if (drawn === null) return <p class="note" role="status">Loading both.</p>;
  const place = (value: number) => (ofSteps ? count(Math.round(value)) : wholeDuration(value));
  const across = (value: number) => (ofSteps ? `step ${place(value)}` : `+${place(value)}`);
  const span = ([low, high]: readonly [number, number]) => `${ofSteps ? "steps " : ""}${place(low)} to ${place(high)}`;
  const uncounted = names.filter((_, i) => ofSteps && [first, second][i] === null);
  if (first === null || second === null) {
    return (
      <p class="note" role="status">
        {uncounted.map((name) => `No steps were counted of ${name}. `)}
        <ByTime chosen={chosen} />
      </p>
    );
  }
  // The right end of what both have.
  const rest = on.findLastIndex((each) => each <= Math.min(first[1], second[1]));
  const shown = zoom ?? ([from, to] as const);
  const common = [Math.max(first[0], second[0]), Math.min(first[1], second[1])] as const;
  const marks = changeMarks(changes, names, across);
  const both = overlap(first, second);
  const within = both ? stretches([Math.max(shown[0], common[0]), Math.min(shown[1], common[1])], changes, ofSteps ? 1 : 0) : [];
  const means = meansIn(rows, on, within, axis);
  // A chart stays where it is while a part of the axis is shown.
  if (zoom === null) same.current = alikeThroughout(means);
  const choose = (range: Range) => typeof range === "object" && "from" in range && setZoom(inside([range.from, range.to], [from, to]));
  const alikes = rows.filter(({ name }) => same.current.includes(name) && !isPart(name));
  const chart = ({ name, lines, title, small, ...how }: Row) => (
    <Charted
      key={name} title={title} region={`${title} of both`}
      small={<>by {ofSteps ? "step" : "time since the start"}{lines.length === 1 && `, of ${lines[0]!.name} only`}; {small}{name.startsWith(SCORE) && <> <Reference known={scoresOf(whole!)} name={name.slice(SCORE.length)} /></>}</>}
      time={on} lines={lines} height={name === "step" ? HIGH : HEIGHT} incidents={[]} live={false} together={`${job.id} and ${chosen.job}`}
      range={shown} choose={choose} reset={() => setZoom(null)}
      across={across} marks={marks} tick={place} apart={ofSteps ? STEPS_APART : SECONDS_APART}
      rest={rest < 0 ? on.length - 1 : rest} {...how}
      {...(lines.length === 2 ? { more: (at: number) => ({ name: dividedBy(names), value: times(shownRatio(lines[0]!.values[at], lines[1]!.values[at], how.format)) }) } : {})}
    />
  );
  return (
    <>
      <p class="note" role="status">
        {names[0]}: {span(first)}; {names[1]} (dashed): {span(second)}.{" "}
        {!overlap(first, second) && <b>They have no {ofSteps ? "steps" : "time"} in common. {ofSteps && <ByTime chosen={chosen} />}</b>}
        {overlap(first, second) && common[1] - common[0] < MOST * (to - from) && <b>Both have {span(common)}: only these are compared.</b>}
        {chosen.job !== job.id && <> <a href={jobAddress(chosen.job, "charts")}>Open {chosen.job}</a></>}
      </p>
      <Part shown={shown} whole={zoom === null} span={span} choose={choose} reset={() => setZoom(null)} />
      {both && <Ratios means={means} names={names} span={span} axis={axis} within={within} runs={[own!, other!]} />}
      {rows.filter(({ name, lines }) => !same.current.includes(name) && !name.startsWith(PART) && (lines.length === 2 || !isPart(name))).map(chart)}
      {alikes.length > 0 && <p><button type="button" class="quiet" aria-expanded={open} onClick={() => setOpen(!open)}>{open ? "▾" : "▸"} Charts of what is alike within 2{"\u202f"}%: {alikes.map(({ title }) => title).join(", ")}</button></p>}
      {open && alikes.map(chart)}
    </>
  );
}

function figureOf(name: string): Figure {
  if (name.startsWith(PART)) return { title: name.slice(PART.length), small: "of the step time", format: duration };
  if (name.startsWith(SLOWEST)) return { title: `Slowest rank's ${name.slice(SLOWEST.length)}`, small: "of its step", format: duration };
  return FIGURES[name] ?? { title: name.startsWith("log ") ? name.slice(4) : name, small: "logged by the training script", format: figure, fit: true };
}

const SCORE = "score ";
/** Of the scores that are known the one that was chosen. */
const scoreOf = (names: readonly string[]) => names.find((name) => name === SCORE + reference.value) ?? names.find((name) => name.startsWith(SCORE));
const scoresOf = (both: readonly Curves[]) => Object.fromEntries(both.flatMap((each) => [...each.keys()].map((name) => [name.slice(SCORE.length), true])));
const curvesOf = ({ trends, samples, change }: Run, axis: Axis, began?: number): Curves => curves(trends, samples, axis, began, change?.since ?? null);

const zoomOf = (run: Run | null | undefined, axis: Axis, zoom: readonly [number, number] | null) => (run && zoom ? secondsOf(run.trends, axis, zoom) : null);

interface Row extends Figure {
  name: string;
  lines: readonly Line[];
}

/** The means of both over each stretch. */
const meansIn = (rows: readonly Row[], on: readonly number[], within: Compare["within"], axis: Axis): Compared[][] =>
  within.map(([from, to]) => {
    const kept = on.map((each) => each >= from && each <= to);
    return rows.flatMap((row) => {
      const both = row.lines.length === 2 ? meansOf(row.name, axis, row.lines.map(({ values }) => values.map((value, i) => (kept[i] ? value : null)))) : null;
      return both === null ? [] : [{ ...row, both }];
    });
  });

interface Compare {
  /** Of each stretch, as {@link meansIn} has them. */
  means: readonly (readonly Compared[])[];
  names: readonly [string, string];
  span: (of: readonly [number, number]) => string;
  axis: Axis;
  /** What is compared by itself, in the order of the axis: before a change, and since it. */
  within: readonly (readonly [number, number])[];
  runs: readonly [Run, Run];
}

/** The means of both over the steps or the time that are shown and that both have, since a change and before it. */
function Ratios({ means, names, span, axis, within, runs }: Compare) {
  const tables = means.map((each) => each.filter((row) => !row.name.startsWith(SLOWEST) || slowestDiffers(row, each)));
  if (tables.every((each) => each.length === 0)) return null;
  const finding = comparedWords(means.at(-1)!, names, runs.map(({ samples, trends }) => slowestOver(samples, axis, trends.at[0]!, within.at(-1)!)));
  const when = (i: number) => (within.length === 1 ? "Over" : i === 0 ? "Before the change:" : "Since the change:");
  const rest = (
    <>
      <div class="both">{runs.map(({ change }, i) => change && <p key={names[i]}>{names[i]}: {withArrows(change.sentence)}</p>)}</div>
      <div class="ratios" role="region" aria-label="Means of both">
        {within.map((each, i) => (
          <div key={each[0]} class="scroll" role="group" aria-label={`Over ${span(each)}`} tabIndex={0}>
            <table>
              <caption>{when(i)} {span(each)}<small>, {lengthWords(each, axis)}</small></caption>
              <thead>
                <tr>
                  <th scope="col">Mean</th>
                  <th scope="col" class="number">{names[0]}</th>
                  <th scope="col" class="number">{names[1]}</th>
                  <th scope="col" class="number">{dividedBy(names)}</th>
                </tr>
              </thead>
              <AllMeans rows={tables[i]!} />
            </table>
          </div>
        ))}
      </div>
    </>
  );
  return (
    <>
      {finding !== "" && <p class="finding">{finding}</p>}
      {narrow.value ? <details><summary>Causes and means of both</summary>{rest}</details> : rest}
    </>
  );
}

/** The step time and the figures that differ; the others below them on demand. */
function AllMeans({ rows }: { rows: readonly Compared[] }) {
  const [open, setOpen] = useState(false);
  const [same, differ] = [rows.filter((row) => row.name !== "step" && alike(row)), rows.filter((row) => row.name === "step" || !alike(row))];
  const means = (of: readonly Compared[]) => of.map((row) => <Means key={row.name} {...row} />);
  return (
    <>
      <tbody>{means(differ)}</tbody>
      {same.length > 0 && (
        <tbody>
          <tr>
            <td colSpan={4}><button type="button" class="quiet" aria-expanded={open} onClick={() => setOpen(!open)}>{open ? "▾" : "▸"} {plural(same.length, "more figure")} alike within 2{"\u202f"}%</button></td>
          </tr>
          {open && means(same)}
        </tbody>
      )}
    </>
  );
}

/** A figure of both, and their ratio. */
function Means({ name, title, format, both: [one, two] }: Compared) {
  const multiple = shownRatio(one, two, format);
  return (
    <tr>
      <th scope="row" class={isPart(name) ? "part" : undefined}>{title}{name === "goodput" && <small> of the whole run up to there, after waiting for slow ranks</small>}</th>
      <td class="number">{format(one)}</td>
      <td class="number">{format(two)}</td>
      <td class={multiple !== null && Math.abs(multiple - 1) >= NOTABLE ? "number force" : "number"}>{times(multiple)}<small>{directionWords(name, multiple)}</small></td>
    </tr>
  );
}

/** Goodput is a mean already. */
function meansOf(name: string, axis: Axis, [one, other]: readonly (readonly (number | null)[])[]): [number, number] | null {
  return name === "goodput" ? lasts(one!, other!) : means(one!, other!, name === "speed" && axis === "step");
}

interface PartBar {
  shown: readonly [number, number];
  whole: boolean;
  span: (of: readonly [number, number]) => string;
  choose: (range: Range) => void;
  reset: () => void;
}

/** The same as the keys and the mouse do, for a touch screen. */
function Part({ shown, whole, span, choose, reset }: PartBar) {
  return (
    <div class="ranges" role="toolbar" aria-label="Part of both that is shown">
      <Step name="Earlier" onClick={() => choose(panned(shown, -0.5))}>‹</Step>
      <Step name="Later" onClick={() => choose(panned(shown, 0.5))}>›</Step>
      <Step name="Zoom in" onClick={() => choose(zoomed(shown, 0.5))}>+</Step>
      <Step name="Zoom out" onClick={() => choose(zoomed(shown, 2))}>−</Step>
      {!whole && <button type="button" onClick={reset}>All of both</button>}
      <span class="shown">{span(shown)}</span>
    </div>
  );
}

function ByTime({ chosen }: { chosen: Overlay }) {
  return <button type="button" onClick={() => (overlay.value = { ...chosen, axis: "time" })}>Compare by time since the start</button>;
}

/** Why nothing of a run can be drawn; empty: it can, or is not read yet. */
function missingWords({ answer: run, problem }: Answer<Run>, name: string, job: string): string {
  if (problem !== null) return problem.status === 404 ? `The monitor does not know job ${job}.` : problem.message;
  return run !== null && run.trends.at.length === 0 ? `No trends are kept of ${name}.` : "";
}
