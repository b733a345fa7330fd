// The verdict on a job as the page prints it: the monitor's fields, formatted. Nothing is derived here.

import type { JobState, JobSummary } from "../api/types";
import { ago, clock, elapsed, gpuTime, plural, wholeDuration } from "./text";

const STANDS: ReadonlySet<string> = new Set(["bad", "waits", "warns"]);

/** Whether a job is not as it should be. */
export const isTroubled = ({ tone }: Pick<JobSummary, "tone">): boolean => STANDS.has(tone);

/** "0:43", "12:05": what is left of a minute or two. */
export function countdown(seconds: number): string {
  const left = Math.max(0, Math.ceil(seconds));
  return `${Math.floor(left / 60)}:${String(left % 60).padStart(2, "0")}`;
}

/** What follows by itself: "restart in 0:43"; empty: nothing does. */
export function nextText({ next }: Pick<JobSummary, "next">, now: number): string {
  if (next === null) return "";
  return next.due === null ? next.text : `${next.text} ${countdown(next.due - now)}`;
}

/** GPU-seconds that show as 0.1 GPU-minutes; less is not worth a word. */
const LEAST_LOST = 3;

/** What an incident has cost, as of now: "1.1 GPU-minutes lost"; empty: nothing is known. */
function lostText({ lost }: Pick<JobSummary, "lost">, now: number): string {
  if (lost === null) return "";
  const grown = lost.since === null ? 0 : Math.max(0, now - lost.since);
  const seconds = (lost.seconds + grown) * lost.gpus;
  return seconds < LEAST_LOST ? "" : `${gpuTime(seconds)} lost`;
}

/** Since when, or when it ended. */
export function sinceText({ since, ended_at: ended }: Pick<JobSummary, "since" | "ended_at">, now: number): string {
  if (since === null) return "";
  return ended === null ? `since ${clock(since, now)} (${wholeDuration(elapsed(since, now))})` : `at ${clock(since, now)} (${ago(since, now)})`;
}

/** The row below the sentence. */
export const rowOf = (verdict: JobSummary, now: number): string[] =>
  [sinceText(verdict, now), verdict.idle > 0 ? `${plural(verdict.idle, "rank")} idle` : "", lostText(verdict, now), nextText(verdict, now)].filter(Boolean);

/** How much of the time until the next act has passed, from 0 to 1; null: nothing is due. */
export function passed({ next, detected, since }: Pick<JobSummary, "next" | "detected" | "since">, now: number): number | null {
  const from = detected ?? since;
  if (next?.due == null || from === null || next.due <= from) return null;
  return Math.min(1, Math.max(0, (now - from) / (next.due - from)));
}

const OVER: ReadonlySet<JobState> = new Set<JobState>(["failed", "stopped", "finished"]);

/** Whether what is shown of the job is as of now. */
export const goesOn = ({ state }: Pick<JobSummary, "state">): boolean => state !== "lost" && !OVER.has(state);
