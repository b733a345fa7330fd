// One job, kept current by the event stream and by polling: summary, grid, ranks, incidents.

import { batch, type Signal, signal } from "@preact/signals";
import { useEffect, useMemo } from "preact/hooks";
import { exactNow, expectNoClock } from "../api/connection";
import { get, Problem } from "../api/client";
import type { Goodput, GridEvent, Incident, IncidentDetail, Incidents, JobDetail, JobEvents, JobSummary, Performance, RankReport, Ranks, RankState } from "../api/types";
import { merged } from "../logic/incidents";
import { bytesOf } from "./grid";
import { poller } from "./poll";
import { listen, type Stream } from "./stream";

const EVERY_MS = 10_000;
/** A job that has ended may be launched again. */
const ENDED_EVERY_MS = 60_000;
/** Debounces bursts of incident events. */
const SOON_MS = 400;

export interface Grid {
  states: Uint8Array;
  legend: RankState[];
  furthest: number | null;
}

/** What the ranks reported, with ages as of `at`: unix seconds by the monitor's clock. */
export interface Reports {
  byRank: (RankReport | undefined)[];
  at: number;
}

/** Slowly changing data of a job. Polled while the tab is visible, and soon after an incident event. */
interface SlowPoll {
  /** Null until the first response. */
  detail: Signal<JobDetail | null>;
  goodput: Signal<Goodput | null>;
  /** Read again shortly, since something has changed. */
  refreshSoon(): void;
  close(): void;
}

export interface JobWatch extends Stream {
  id: string;
  job: Signal<JobSummary | null>;
  grid: Signal<Grid | null>;
  /** Null until the first scores. */
  performance: Signal<Performance | null>;
  /** Bytes of the grid's looks other than the state, by name; null: available, not read. */
  looks: Signal<Record<string, Uint8Array | null>>;
  reports: Signal<Reports>;
  /** Null until the first answer. */
  incidents: Signal<Incident[] | null>;
  slow: SlowPoll;
  /** Set if the monitor does not know the job, or another monitor owns it. */
  unknown: Signal<Problem | null>;
}

export function watchJob(id: string): JobWatch {
  const path = `/jobs/${encodeURIComponent(id)}`;
  const job = signal<JobSummary | null>(null);
  const grid = signal<Grid | null>(null);
  const performance = signal<Performance | null>(null);
  const looks = signal<Record<string, Uint8Array | null>>({});
  const reports = signal<Reports>({ byRank: [], at: 0 });
  const incidents = signal<Incident[] | null>(null);
  const unknown = signal<Problem | null>(null);
  const slow = startSlowPoll(path, () => (job.value?.ended_at ?? null) !== null);
  const ended = new AbortController();
  /** Events received while a read is in progress: they are newer than its response and are applied on top of it. */
  let received: { job: boolean; incidents: Incident[] } | null = null;

  function take(summary: JobSummary): void {
    job.value = summary;
    unknown.value = null;
  }

  async function readAll(): Promise<void> {
    const meanwhile = (received = { job: false, incidents: [] as Incident[] });
    try {
      const [summary, list] = await Promise.all([
        get<JobDetail>(path, ended.signal),
        get<Incidents>(`${path}/incidents`, ended.signal),
      ]);
      if (received !== meanwhile) return; // superseded by a newer read
      batch(() => {
        if (!meanwhile.job) take(summary);
        slow.detail.value = summary;
        incidents.value = meanwhile.incidents.reduce(merged, list.incidents);
      });
    } catch (problem) {
      if (problem instanceof Problem && [404, 503].includes(problem.status)) {
        unknown.value = problem;
        expectNoClock();
      }
    } finally {
      if (received === meanwhile) received = null;
    }
  }

  const ranks = poller(() => secondsBetween(job.value) * 1000, async (ended) => {
    const answer = await get<Ranks>(`${path}/ranks`, ended);
    const byRank: (RankReport | undefined)[] = [];
    for (const report of answer.ranks) byRank[report.rank] = report;
    reports.value = { byRank, at: exactNow() };
  });

  const stream = listen<JobEvents>(
    `${path}/events`,
    {
      job: (next) => {
        if (received) received.job = true;
        const before = job.value;
        take(next);
        // What stands beside it on the page is read again, so that both are of one moment.
        if (before !== null && (before.goodput !== next.goodput || before.state !== next.state)) slow.refreshSoon();
        // How a job trains is no account of one that has ended.
        if (before !== null && before.state !== next.state && slow.detail.value !== null) slow.detail.value = { ...slow.detail.value, account: [] };
        if (before !== null && before.iteration !== next.iteration && next.world_size <= SMALL) ranks.soon();
      },
      grid: (event) => {
        const next = decoded(event);
        if (sameGrid(grid.value, next)) return;
        const changed = grid.value !== null && !sameStates(grid.value, next);
        grid.value = next;
        // The details of ranks are of the evaluation in which their states changed.
        if (changed && next.states.length <= SMALL) ranks.soon();
      },
      performance: (next) => {
        batch(() => {
          performance.value = next;
          looks.value = { ...looks.value, ...Object.fromEntries(Object.entries(next.grid).map(([name, text]) => [name, bytesOf(text)])) };
        });
      },
      incident: (changed) => {
        received?.incidents.push(changed);
        incidents.value = merged(incidents.value ?? [], changed);
        ranks.soon();
        slow.refreshSoon();
      },
    },
    () => {
      void readAll();
      ranks.soon();
      slow.refreshSoon();
    },
    () => void readAll(),
  );
  return {
    id, job, grid, performance, looks, reports, incidents, slow, unknown,
    close() {
      stream.close();
      slow.close();
      ranks.close();
      ended.abort();
    },
  };
}

function startSlowPoll(path: string, over: () => boolean): SlowPoll {
  const detail = signal<JobDetail | null>(null);
  const goodput = signal<Goodput | null>(null);
  const { soon, close } = poller(() => (over() ? ENDED_EVERY_MS : EVERY_MS), (ended) =>
    // Each may fail on its own.
    Promise.allSettled([
      get<JobDetail>(path, ended).then((answer) => (detail.value = answer)),
      get<Goodput>(`${path}/goodput`, ended).then((answer) => (goodput.value = answer)),
    ]),
  );
  return { detail, goodput, refreshSoon: () => soon(SOON_MS), close };
}

/** One incident with its stacks, read again when they change. Null until the first answer. */
export function useDetail(job: string, incident: Incident | null): Signal<IncidentDetail | null> {
  const id = incident?.id;
  const detail = useMemo(() => signal<IncidentDetail | null>(null), [job, id]);
  useEffect(() => {
    if (id === undefined) return;
    const ended = new AbortController();
    get<IncidentDetail>(`/jobs/${encodeURIComponent(job)}/incidents/${encodeURIComponent(id)}`, ended.signal).then(
      (answer) => (detail.value = answer),
      () => undefined, // shown by the connection bar
    );
    return () => ended.abort();
    // Stacks arrive with the capture: read again when the phase changes.
  }, [detail, incident?.phase, incident?.timeline.captured]);
  return detail;
}

/** Ranks of which the details are read with each step of the job. */
const SMALL = 512;

/** Rank details are megabytes for the largest jobs, and hardly change after the end of a job. */
function secondsBetween(job: JobSummary | null): number {
  if (job === null) return 2;
  if (job.ended_at !== null) return 30;
  return job.world_size <= SMALL ? 2 : job.world_size <= 4096 ? 5 : 10;
}

function decoded(event: GridEvent): Grid {
  return { states: bytesOf(event.states), legend: event.legend, furthest: event.iterations.max };
}

const sameGrid = (old: Grid | null, next: Grid): boolean => old !== null && old.furthest === next.furthest && sameStates(old, next);

const sameStates = (old: Grid, next: Grid): boolean => old.states.length === next.states.length && old.states.every((byte, rank) => byte === next.states[rank]);
