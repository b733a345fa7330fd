// The tab "Charts": one time axis for step time with its parts, speed, goodput, scores and logged values; what happened beside them.

import { useMemo, useRef } from "preact/hooks";
import { get } from "../api/client";
import type { History, HistorySample, Incident, JobSummary, Trends, Why } from "../api/types";
import { asOf, now } from "../api/connection";
import { usePolled } from "../live/poll";
import { bandwidthChart, type Cause, causeChart, changeOf, causeOf, consistsOf, goodputChart, heard, type Mark, type NonFinite, nonFinite, scoreAfter, SHORTEST_SCORE, SHORTEST_SHARE, speedCurve, stepChart, stepsBySpeed, temperatureChart, withEdge, withTrendGaps } from "../logic/charts";
import { goesOn } from "../logic/verdict";
import { eventsOf, over } from "../logic/phases";
import { attemptMarks, bounds, isLive, type Range, USUAL } from "../logic/range";
import { SCORES, score } from "../logic/stragglers";
import { bandwidth, celsius, clock, duration, figure, hertz, percent, perSecond, plural, speedText } from "../logic/text";
import { zone } from "../logic/zone";
import { EventLane, RangeBar } from "./chartrange";
import { OverlayCharts, OverlayChooser } from "./overlay";
import { Charted, Plot, type Plotted } from "./plot";
import { Reference } from "./reference";
import { overlay, range, reference } from "./selection";

const EVERY_MS = 15_000;
const HEIGHT = 210;
const LOW = 130;
/** Seconds of a job within which its first step times are expected. */
const STEP_TIMES_WITHIN = 60;
/** Colours of logged values, in turn. */
const TONES = ["series-1", "series-3", "series-2", "series-4"];

const NO_HISTORY: History = { samples: [] };

/** Null until the first answer. */
interface Read {
  samples: readonly HistorySample[] | null;
  why: Why | null;
  trends: Trends | null;
}

export function Charts({ job, incidents }: { job: JobSummary; incidents: readonly Incident[] }) {
  const chosen = overlay.value;
  return (
    <div class="charts">
      <OverlayChooser job={job} />
      {chosen === null ? <Alone job={job} incidents={incidents} /> : <OverlayCharts key={`${chosen.job} ${chosen.axis}`} job={job} chosen={chosen} />}
    </div>
  );
}

function Alone({ job, incidents }: { job: JobSummary; incidents: readonly Incident[] }) {
  const { samples, why, trends: points } = useRead(job, eventsOf(incidents));
  const [from, to] = bounds(range.value, job.started_at, job.ended_at ?? asOf.value);
  const change = changeOf(why);
  const attempts = useMemo(() => attemptMarks(points ?? { at: [], attempt: [] }, job.started_at, to, incidents), [points, job.started_at, to, incidents]);
  const began = useMemo(() => attempts.map((each) => each.from), [attempts]);
  const marks = useMarks(change);
  const axis = {
    incidents, range: [from, to] as const, attempts: began, together: job.id, live: isLive(range.value) && goesOn(job),
    marks, choose: (chosen: Range) => (range.value = chosen), reset: () => (range.value = USUAL),
    unknown: (first: number, last: number) => unknownWords(first, last, job, incidents, to),
  };
  const speed = useMemo(() => (points === null ? null : speedCurve(job, points, asOf.value, change)), [points, change, job.iterations_per_second, job.ended_at, job.state]);
  const moves = speed?.values.some((value) => value !== null && value > 0) ?? false;
  const windows = samples !== null && samples.length > 0;
  const steps = useMemo(() => (windows || !moves ? stepChart(samples ?? [], change) : stepsBySpeed(speed!.time, speed!.values)), [samples, change, moves, speed]);
  const goodput = useMemo(() => (points === null ? null : goodputChart(job, points, asOf.value, to - job.started_at > 3660)), [points, job.goodput, to - job.started_at > 3660]);
  const cause = useMemo(() => (why && windows ? causeOf(why) : null), [why, windows]);
  const bandwidths = useMemo(() => bandwidthChart(samples ?? [], change), [samples, change]);
  const charted = samples !== null && steps.time.length > 0;
  const finding = why && (why.kind !== "unknown" || windows) && <Explanation why={why} />;
  const shown = (values: readonly (number | null)[] | undefined) => values?.some((value) => value !== null) ?? false;
  return (
    <>
      <RangeBar incidents={incidents} from={from} to={to} started={job.started_at} />
      <EventLane job={job} incidents={incidents} attempts={attempts} from={from} to={to} />
      <section aria-label="Step time">
        <h2>Step time <small>{windows || !moves ? "and its parts, medians over the ranks" : "of completed steps, without its parts"}</small></h2>
        {charted && <Plot name="Step time" {...steps} finding={finding} latest={windows ? "newest window" : ""} format={duration} height={HEIGHT} {...axis} />}
        {!charted && finding}
        {samples === null ? <p class="note">Loading the history.</p> : !windows && <NoStepTimes job={job} from={from} to={to} moves={moves} />}
      </section>
      {cause !== null && <CauseChart key={JSON.stringify(cause)} job={job} cause={cause} change={change} axis={axis} />}
      {points !== null && shown(points.speed) && <SpeedChart {...speed!} height={LOW} {...axis} />}
      {points !== null && <Logged names={Object.keys(points.logged ?? {})} points={points} height={LOW} {...axis} />}
      {points !== null && shown(points.goodput) && (
        <Charted title="Goodput" small="share of all time that went into steps that were kept" {...goodput!} format={percent} height={LOW} top={1} fit least={SHORTEST_SHARE} {...axis} />
      )}
      {bandwidths !== null && (
        <Charted title="Bandwidth" small="of the process groups furthest below their best; bus bandwidth without the wait for late members" {...bandwidths} format={bandwidth} height={LOW} {...axis} />
      )}
      {points !== null && <ScoreChart points={points} change={change} axis={axis} />}
    </>
  );
}

type Axis = Pick<Plotted, "incidents" | "range" | "attempts" | "together" | "live" | "marks" | "choose" | "reset" | "unknown">;

/** Steps per second over time. */
export const SpeedChart = ({ values, ...plotted }: Pick<Plotted, "time" | "height"> & Axis & { values: readonly (number | null)[] }) => (
  <Charted title="Speed" small="steps per second; 0 while none completes" format={speedText} label={perSecond} lines={[{ name: "speed", tone: "part-compute", values, fill: "chart-fill" }]} {...plotted} />
);

/** Values that the training script logged. */
export function Logged({ names, points: { at: time, logged, non_finite }, ...axis }: { names: readonly string[]; points: Trends } & Axis & Pick<Plotted, "height">) {
  return names.map((name, i) => {
    const values = logged![name]!;
    const broken = nonFinite(time, non_finite?.[name] ?? [], values);
    return (
      <Charted key={name} title={name} small="logged by the training script" region={`Logged value ${name}`} time={time} format={figure} lines={[{ name, tone: TONES[i % TONES.length]!, values }]} fit broken={broken} {...axis}>
        <Broken found={broken} />
      </Charted>
    );
  });
}

/** What is behind a change, on the rank that stands out and on the others. */
function CauseChart({ job, cause, change, axis }: { job: JobSummary; cause: Cause; change: number | null; axis: Axis }) {
  const chosen = range.value;
  const also = new URLSearchParams("devices" in cause ? { devices: "true" } : cause);
  const path = `/jobs/${encodeURIComponent(job.id)}/history`;
  const { samples } = usePolled(EVERY_MS, (ended) => get<History>(`${path}${query(job, chosen)}&brief=true&${also}`, ended), [path, job.ended_at, job.started_at, chosen]) ?? NO_HISTORY;
  const chart = useMemo(() => causeChart(samples, cause, change), [samples, change]);
  const heat = useMemo(() => ("devices" in cause ? temperatureChart(samples, change) : null), [samples, change]);
  const [title, small] = "devices" in cause ? ["GPU clock", "over the ranks"] as const : [`Section ${cause.section}`, "the rank in which it takes longest, and the median rank"] as const;
  return (
    <>
      <Charted title={title} small={small} {...chart} format={"devices" in cause ? hertz : duration} height={LOW} {...axis} />
      {heat !== null && <Charted title="GPU temperature" small="over the ranks" {...heat} format={celsius} height={LOW} fit {...axis} />}
    </>
  );
}

function ScoreChart({ points, change, axis }: { points: Trends; change: number | null; axis: Axis }) {
  const found = SCORES.find(([name]) => name === reference.value && points.scores[name]) ?? SCORES.find(([name]) => points.scores[name]);
  if (found === undefined) return null;
  const [name, title] = found;
  const { min, median, max, rank = [] } = points.scores[name]!;
  const { axis: time, along } = withEdge(points.at, change, change === null ? -1 : scoreAfter(points.at, change, [min, median, max]));
  return (
    <Charted
      title="GPU score" small={<>speed of the kernels; 1: as fast as <Reference known={points.scores} name={name} /></>} name={`GPU score, ${title}`} region={`GPU score, ${title}`}
      time={time} format={score} height={LOW} fit least={SHORTEST_SCORE} label={figure} {...axis}
      lines={[
        { name: "best rank", tone: "series-1", values: along(max) },
        { name: "median", tone: "text", values: along(median) },
        { name: "worst rank", tone: "rank-hung", values: along(min), ranks: along(rank) },
      ]}
    />
  );
}

/** Why there are no windows of steps, and what to do to have them. */
function NoStepTimes({ job, from, to, moves }: { job: JobSummary; from: number; to: number; moves: boolean }) {
  if (job.ended_at === null && job.started_at !== null && asOf.value - job.started_at < STEP_TIMES_WITHIN) return <p class="note">No step times yet: ranks report them about every 10 s.</p>;
  const when = `from ${clock(from, asOf.value)} to ${clock(to, asOf.value)}`;
  return moves ? (
    <p class="note"><small>
      Without parts, as no windows of step times arrived: check that a collector passes <span class="code">rankwatch.window.*</span>.{" "}
      <a href="/manual/other-emitters.html">Other emitters</a> send none.
    </small></p>
  ) : (
    <p class="note">
      No rank has reported step times {when}. They come from training loops that enter <span class="code">rankwatch.step()</span> for each step:{" "}
      <a href="/manual/adopt.html">how to add it</a>.
    </p>
  );
}

/** Why nothing was measured in a time, in few words. */
export function unknownWords(from: number, to: number, job: JobSummary, incidents: readonly Incident[], end: number): string {
  const { last_heard: last = null } = job;
  if (job.state === "lost" && last !== null && to > last) return `nothing received since ${clock(last, asOf.value)}`;
  const stood = (each: Incident) => Math.min(to, over(each) ?? end) - Math.max(from, each.timeline.since ?? each.opened_at);
  const within = incidents.some((each) => each.confirmed && stood(each) > 0.5 * (to - from));
  return within ? "no step completed" : job.started_at !== null && from <= job.started_at ? "not measured yet" : "not measured";
}

/** The flag of a change. */
export function useMarks(change: number | null): Mark[] {
  return useMemo(() => (change === null ? [] : [{ at: change, words: `change at ${clock(change, asOf.value)}` }]), [change, zone.value]);
}

/** When values of a name were NaN or infinite. */
function Broken({ found }: { found: readonly NonFinite[] }) {
  const last = found.at(-1);
  if (last === undefined) return null;
  const when = (at: number) => clock(at, asOf.value);
  const before = found.length > 1 ? ` ${plural(found.length - 1, "earlier time")} in this range.` : "";
  return last.lasting ? (
    <p class="broken">
      <b>NaN or infinite since {when(last.from)}</b>: {plural(last.values, "value")}, and no finite one since.{before}
    </p>
  ) : (
    <p class="broken past">
      NaN or infinite {last.from === last.to ? `at ${when(last.from)}` : `from ${when(last.from)} to ${when(last.to)}`}: {plural(last.values, "value")}; finite again.{before}
    </p>
  );
}

/** The command line's sentences are ASCII. */
const arrows = (text: string): string => text.replaceAll(" -> ", " → ");

export function Explanation({ why }: { why: Why }) {
  const shares = consistsOf(why);
  return (
    <div class="explanation" data-kind={why.kind}>
      <p>{arrows(why.sentence)}</p>
      {shares.length > 0 && (
        <ul aria-label="What the change consists of">
          {shares.map((each) => (
            <li key={each.sentence}>
              <b>{percent(each.share)}</b> {arrows(each.sentence)}
            </li>
          ))}
        </ul>
      )}
      {why.slow?.length && !why.states_slow ? <p class="also">{arrows(`Slow ranks: ${why.slow.map(({ sentence }) => sentence).join("; ")}.`)}</p> : null}
      {why.seen?.length ? <p class="also">{arrows(why.seen.join(" "))}</p> : null}
    </div>
  );
}

/** The seconds of a range, with a point beyond each end, so that lines reach the edges. */
function query(job: JobSummary, chosen: Range): string {
  const [from, to] = bounds(chosen, job.started_at, job.ended_at ?? now.peek());
  const beyond = Math.max(60, Math.round((to - from) / 100));
  return `?since=${Math.floor(Math.max(0, from - beyond))}&until=${Math.ceil(to + beyond)}`;
}

/** Read anew with `events`. */
function useRead(job: JobSummary, events: string): Read {
  const read = useRef<Read>({ samples: null, why: null, trends: null });
  const chosen = range.value;
  usePolled(EVERY_MS, async (ended) => {
    const [path, asked] = [`/jobs/${encodeURIComponent(job.id)}`, query(job, chosen)];
    // All at once, so that a chart does not move away from the mouse when what stands above it arrives.
    const [samples, why, trends] = await Promise.allSettled([
      get<History>(`${path}/history${asked}&brief=true&slowest=true&bandwidths=true`, ended),
      get<Why>(`${path}/why`, ended),
      get<Trends>(`${path}/trends${asked}`, ended),
    ]);
    if (ended.aborted) return read.current;
    if (samples.status === "rejected" && why.status === "rejected" && trends.status === "rejected") throw samples.reason;
    return (read.current = {
      samples: samples.status === "fulfilled" ? samples.value.samples : read.current.samples,
      why: why.status === "fulfilled" ? why.value : read.current.why,
      trends: trends.status === "fulfilled" ? withTrendGaps(heard(trends.value, job)) : read.current.trends,
    });
  }, [job.id, job.ended_at, job.state === "lost", job.started_at, chosen, events]);
  return read.current;
}
