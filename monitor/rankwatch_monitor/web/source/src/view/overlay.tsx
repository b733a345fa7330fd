// A job compared with another one, or one of its attempts with an earlier one: all charts with the figures of both.

import { useEffect, useMemo, useState } from "preact/hooks";
import { get } from "../api/client";
import type { JobSummary, Trends } from "../api/types";
import { type RunRead, useRun } from "../live/run";
import type { Line } from "../logic/charts";
import { type Axis, cells, type Curve, curves, extent, onCells, type Overlay, overlap, SECONDS_APART, STEPS_APART } from "../logic/overlay";
import type { Range } from "../logic/range";
import { jobAddress } from "../logic/route";
import { SCORES, score } from "../logic/stragglers";
import { count, duration, figure, percent, rate, wholeDuration } from "../logic/text";
import { Plot } from "./plot";
import { overlay } from "./selection";

const HEIGHT = 150;
/** Attempts that can be chosen, the newest. */
const MOST_ATTEMPTS = 30;
/** Jobs that are proposed while a name is typed. */
const MOST_JOBS = 500;
const ANOTHER = "another job";

/** Title and format of each figure but the logged values. */
const FIGURES: Record<string, { title: string; small: string; format: (value: number | null) => string; top?: number }> = {
  step: { title: "Step time", small: "median over the ranks", format: duration },
  speed: { title: "Speed", small: "steps per second", format: (value) => rate(value).value },
  goodput: { title: "Goodput", small: "last hour", format: percent, top: 1 },
  ...Object.fromEntries(SCORES.map(([name, title]) => [`score ${name}`, { title: `GPU score, ${title}`, small: "worst rank", format: score }])),
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
    get<Trends>(`/jobs/${encodeURIComponent(job)}/trends?since=0&attempt=${NO_ATTEMPT}`, ended.signal).then((answer) => take((answer.attempts ?? []).slice(-MOST_ATTEMPTS)), () => take([]));
    return () => ended.abort();
  }, [job]);
  return attempts;
}

/** All figures of both runs. */
export function OverlayCharts({ job, chosen }: { job: JobSummary; chosen: Overlay }) {
  const reads = [useRun(job.id, chosen.own), useRun(chosen.job, chosen.attempt)] as const;
  const [zoom, setZoom] = useState<readonly [number, number] | null>(null);
  useEffect(() => setZoom(null), [chosen]);
  const names = [
    chosen.job === job.id ? attemptName(chosen.own) : `${job.id}${chosen.own === null ? "" : `, attempt ${chosen.own}`}`,
    chosen.job === job.id ? attemptName(chosen.attempt) : `${chosen.job}${chosen.attempt === null ? "" : `, attempt ${chosen.attempt}`}`,
  ] as const;
  const { axis } = chosen;
  const [own, other] = reads.map(({ run }) => run.value);
  const drawn = useMemo(() => (own && other ? [curves(own.trends, own.samples, axis), curves(other.trends, other.samples, axis)] as const : null), [own, other, axis]);
  const [first, second] = drawn === null ? [null, null] : [extent(drawn[0]), extent(drawn[1])];
  const [from, to] = first && second ? [Math.min(first[0], second[0]), Math.max(first[1], second[1])] : [0, 0];
  const on = useMemo(() => cells(zoom ?? [from, to]), [zoom, from, to]);
  const lines = useMemo(() => {
    const figures = drawn === null ? [] : [...new Set([...drawn[0].keys(), ...drawn[1].keys()])];
    const line = (curve: Curve | undefined, i: 0 | 1): Line[] =>
      curve === undefined ? [] : [{ name: names[i], tone: i === 0 ? "series-1" : "text", dashed: i === 1, values: onCells(curve, on) }];
    return figures.map((figure) => [figure, [...line(drawn![0].get(figure), 0), ...line(drawn![1].get(figure), 1)]] as const);
  }, [drawn, on, ...names]);
  const missing = [missingWords(reads[0], names[0], job.id), missingWords(reads[1], names[1], chosen.job)].filter(Boolean);
  if (missing.length > 0) return <>{missing.map((each) => <p key={each} class="note" role="status">{each}</p>)}</>;
  if (drawn === null) return <p class="note" role="status">Loading both.</p>;
  const place = (value: number) => (axis === "step" ? count(Math.round(value)) : wholeDuration(value));
  const span = ([low, high]: readonly [number, number]) => `${axis === "step" ? "steps " : ""}${place(low)} to ${place(high)}`;
  const uncounted = names.filter((_, i) => axis === "step" && [first, second][i] === null);
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
  return (
    <>
      <p class="note" role="status">
        {names[0]}: {span(first)}; {names[1]} (dashed): {span(second)}.{" "}
        {!overlap(first, second) && <b>They have no {axis === "step" ? "steps" : "time"} in common. {axis === "step" && <ByTime chosen={chosen} />}</b>}
        {chosen.job !== job.id && <> <a href={jobAddress(chosen.job, "charts")}>Open {chosen.job}</a></>}
      </p>
      {lines.map(([name, both]) => {
        const logged = name.startsWith("log ") ? name.slice(4) : null;
        const { title, small, format, top } = FIGURES[name] ?? { title: logged ?? name, small: "logged by the training script", format: figure, top: undefined };
        return (
          <section key={name} aria-label={`${title} of both`}>
            <h2>{title} <small>{small}{both.length === 1 && `; of ${both[0]!.name} only`}</small></h2>
            <Plot
              name={title} time={on} lines={both} format={format} height={HEIGHT} incidents={[]} live={false} together={`${job.id} and ${chosen.job}`}
              range={zoom ?? [from, to]} choose={(range: Range) => typeof range === "object" && "from" in range && setZoom([range.from, range.to])} reset={() => setZoom(null)}
              across={(value) => (axis === "step" ? `step ${place(value)}` : `+${place(value)}`)} apart={axis === "step" ? STEPS_APART : SECONDS_APART} rest={rest < 0 ? on.length - 1 : rest}
              {...(top === undefined ? {} : { top })} fit={logged !== null}
            />
          </section>
        );
      })}
    </>
  );
}

function ByTime({ chosen }: { chosen: Overlay }) {
  return <button type="button" onClick={() => (overlay.value = { ...chosen, axis: "time" })}>Compare by time since the start</button>;
}

/** Why nothing of a run can be drawn; empty: it can, or is not read yet. */
function missingWords({ run, problem }: RunRead, name: string, job: string): string {
  if (problem.value !== null) return problem.value.status === 404 ? `The monitor does not know job ${job}.` : problem.value.message;
  return run.value !== null && run.value.trends.at.length === 0 ? `No trends are kept of ${name}.` : "";
}
