// The tab "Charts": step time with its parts and the explanation of changes, goodput, spread of scores.

import { type Signal, signal } from "@preact/signals";
import { useEffect, useMemo, useState } from "preact/hooks";
import { get } from "../api/client";
import type { HistorySample, Incident, JobSummary, Trends, Why } from "../api/types";
import { now } from "../api/connection";
import { poll } from "../live/poll";
import { explanation, stepChart, withTrendGaps } from "../logic/charts";
import { SCORES, score } from "../logic/stragglers";
import { duration, percent } from "../logic/text";
import { Plot } from "./plot";

const EVERY_MS = 15_000;
const HEIGHT = 210;
const LOW = 150;
const SPANS: readonly (readonly [string, number])[] = [["1 hour", 3600], ["6 hours", 21_600], ["1 day", 86_400], ["7 days", 604_800]];

interface Read {
  samples: Signal<HistorySample[] | null>;
  why: Signal<Why | null>;
  trends: Signal<Trends | null>;
}

export function Charts({ job, incidents }: { job: JobSummary; incidents: readonly Incident[] }) {
  const [seconds, setSeconds] = useState(SPANS[0]![1]);
  const { samples, why, trends } = useRead(job, seconds);
  const steps = useMemo(() => stepChart(samples.value ?? []), [samples.value]);
  const points = trends.value;
  const shownScores = SCORES.filter(([name]) => points?.scores[name]);
  return (
    <div class="charts">
      <section aria-labelledby="step-time">
        <h2 id="step-time">
          Step time <small>and its parts, medians over the ranks</small>
        </h2>
        <label class="span">
          Show the last{" "}
          <select value={seconds} onChange={(event) => setSeconds(Number(event.currentTarget.value))}>
            {SPANS.map(([words, value]) => <option key={value} value={value}>{words}</option>)}
          </select>
        </label>
        {why.value && <Explanation why={why.value} sentence={explanation(why.value, job, incidents, now.value)} />}
        {samples.value === null ? <p class="note">Loading the history.</p> : steps.time.length === 0 ? (
          <p class="note">No samples yet: ranks report step times about every 10 s.</p>
        ) : (
          <Plot name="Step time" {...steps} format={duration} incidents={incidents} mark={why.value?.since ?? null} height={HEIGHT} />
        )}
      </section>
      {points !== null && points.at.length > 0 && (
        <section aria-labelledby="goodput-time">
          <h2 id="goodput-time">
            Goodput <small>share of the time spent on new steps; the last six hours</small>
          </h2>
          <Plot
            name="Goodput" time={points.at} format={percent} incidents={incidents} height={LOW} top={1}
            lines={[
              { name: "whole run", tone: "text", values: points.goodput },
              { name: "last hour", tone: "series-1", values: points.goodput_window, dashed: true },
            ]}
          />
        </section>
      )}
      {shownScores.map(([name, title, against]) => (
        <section key={name} aria-label={`GPU score, ${title}`}>
          <h2>
            GPU score, {title} <small>{against}</small>
          </h2>
          <Plot
            name={`GPU score, ${title}`} time={points!.at} format={score} incidents={incidents} height={LOW}
            lines={[
              { name: "best rank", tone: "series-1", values: points!.scores[name]!.max },
              { name: "median", tone: "text", values: points!.scores[name]!.median },
              { name: "worst rank", tone: "rank-hung", values: points!.scores[name]!.min },
            ]}
          />
        </section>
      ))}
    </div>
  );
}

function Explanation({ why, sentence }: { why: Why; sentence: string }) {
  return (
    <div class="explanation" data-kind={why.kind}>
      <p>{sentence}</p>
      {why.contributors.length > 0 && (
        <ul>
          {why.contributors.slice(0, 3).map((each) => (
            <li key={each.sentence}>
              <b>{percent(each.share)}</b> {each.sentence}
            </li>
          ))}
        </ul>
      )}
    </div>
  );
}

function useRead(job: JobSummary, seconds: number): Read {
  const read: Read = useMemo(() => ({ samples: signal(null), why: signal(null), trends: signal(null) }), [job.id]);
  useEffect(() => {
    const path = `/jobs/${encodeURIComponent(job.id)}`;
    return poll(EVERY_MS, (ended) => {
      const since = seconds > 3600 ? `?since=${Math.round((job.ended_at ?? now.peek()) - seconds)}` : "";
      return Promise.allSettled([
        get<{ samples: HistorySample[] }>(`${path}/history${since}`, ended).then((answer) => (read.samples.value = answer.samples)),
        get<Why>(`${path}/why`, ended).then((answer) => (read.why.value = answer)),
        get<Trends>(`${path}/trends`, ended).then((answer) => (read.trends.value = withTrendGaps(answer))),
      ]);
    });
  }, [job.id, job.ended_at, seconds]);
  return read;
}
