// What the section timeline shows, in a sentence: which rank works longest and how long the others wait for it.

import type { RankStep, SectionTimeline, Straggler } from "../api/types";
import { measuredSteps, median, ownSeconds, waited, worked } from "./timeline";
import { count, duration, listed, ofStep, plural, runs, wholePercent } from "./text";

/** Waiting below this share of a step is not worth a sentence. */
const NOTABLE = 0.05;
/** A section at this multiple of the median is. */
const LONGER = 1.25;
/** Sections that are named at most, and the share of the lag that one has at least. */
const [NAMED, LEAST] = [2, 0.2];

/** `blamed`: ranks that the monitor named; only for those the others are said to wait. */
export function laneWords(timeline: SectionTimeline, blamed: readonly number[]): string {
  return absentWords(timeline) ?? waitWords(timeline, blamed) ?? sectionWords(timeline);
}

/** Waiting in sampled steps and in whole windows is the same within this share. */
const SAME = 0.05;

/** What the figures of that sentence are of, and the job's own figure beside them, which is of more ranks and steps; empty: they are of all ranks. */
export function basisWords(timeline: SectionTimeline, size: number, slow: readonly Straggler[]): string {
  const { ranks } = timeline;
  if (ranks.every((lane) => measuredSteps(lane).length === 0)) return "";
  const known = slow.find(({ rank, lateness }) => lateness !== null && ranks.some((lane) => lane.rank === rank));
  const same = known && Math.abs((measuredWaits(timeline)?.waits ?? 0) - known.lateness!) <= SAME * known.lateness!;
  const whole = known && (same ? `over whole windows it is the same within ${wholePercent(SAME)}` : `over whole windows the others wait ${ofStep(known.lateness)} of each step for rank ${known.rank}`);
  if (ranks.length >= size) return whole ? `Measured in sampled steps; ${whole}.` : "";
  return `Measured on ${count(ranks.length)} of ${count(size)} ranks${whole ? ` in sampled steps; on all ranks and ${whole}` : ""}.`;
}

/** Steps whose times differ by less than this share are alike. */
const ALIKE = 0.1;

/** "In this step", "In each of these 2 steps"; those in which waiting was measured, if `measured`. */
function inSteps({ ranks }: SectionTimeline, measured: boolean): string {
  const shown = ranks.flatMap((lane) => (measured ? measuredSteps(lane) : lane.steps));
  const steps = new Set(shown.map((step) => step.iteration)).size;
  if (steps === 1) return "In this step";
  const took = shown.map((step) => step.seconds);
  return `${Math.max(...took) <= (1 + ALIKE) * Math.min(...took) ? "In each" : "On average"} of these ${count(steps)} steps`;
}

/** That a few ranks have no sections of the newest step. */
function absentWords({ ranks }: SectionTimeline): string | null {
  const newest = Math.max(...ranks.flatMap((lane) => lane.steps.map((step) => step.iteration)));
  const without = ranks.filter((lane) => lane.steps.every((step) => step.iteration !== newest));
  if (without.length === 0 || 2 * without.length >= ranks.length) return null;
  const names = `${without.length === 1 ? "Rank" : "Ranks"} ${runs(without.map((lane) => lane.rank))}`;
  return `${names} ${without.length === 1 ? "has" : "have"} sent no sections of step ${count(newest)}; the other ${plural(ranks.length - without.length, "rank has", "ranks have")}.`;
}

interface Measured {
  rank: number;
  work: number;
  wait: number;
  /** Seconds a step of each section's own work. */
  sections: Map<number, number>;
}

/** The rank that waits least, and how long the others wait for it; null: waiting was not measured on two ranks. */
function measuredWaits(timeline: SectionTimeline) {
  const found = timeline.ranks.flatMap((lane) => {
    const steps = measuredSteps(lane);
    const mean = (of: (step: RankStep) => number) => steps.reduce((sum, step) => sum + of(step), 0) / steps.length;
    if (steps.length === 0) return [];
    return [{ rank: lane.rank, work: mean((step) => worked(step)!), wait: mean((step) => waited(step)!), sections: ownSeconds(steps) }];
  });
  if (found.length < 2) return null;
  const longest = found.reduce((a, b) => (b.wait < a.wait ? b : a));
  const others = found.filter((each) => each !== longest);
  return { found, longest, others, waits: median(others.map((each) => each.wait)) - longest.wait };
}

/** Who waits for whom. */
function waitWords(timeline: SectionTimeline, blamed: readonly number[]): string | null {
  const measured = measuredWaits(timeline);
  if (measured === null) return null;
  const { found, longest, others, waits } = measured;
  const works = median(others.map((each) => each.work));
  const most = Math.max(...found.map((each) => each.wait)) - longest.wait;
  if (waits < NOTABLE * (longest.work + longest.wait)) {
    const all = found.map((each) => each.work);
    const [low, high] = [duration(Math.min(...all)), duration(Math.max(...all))];
    return `${inSteps(timeline, true)} the ${count(found.length)} ranks work about equally long, ${low === high ? low : `${low} to ${high}`} of a step, and wait ${duration(most)} for each other at most.`;
  }
  const forIt = blamed.includes(longest.rank) || found.length === timeline.ranks_known;
  const rest = others.length === 1 ? `rank ${others[0]!.rank} works` : `the other ${count(others.length)} work`;
  const lag = causes(timeline, longest, others, waits);
  return `${inSteps(timeline, true)} rank ${longest.rank} works ${duration(longest.work)}; ${rest} ${duration(works)} and ${others.length === 1 ? "waits" : "wait"} ${duration(waits)} ${forIt ? "for it" : "longer than it"}.${lag}`;
}

/** " It takes longer in backward (+40 ms) and forward (+20 ms)." */
function causes(timeline: SectionTimeline, slow: Measured, others: readonly Measured[], lag: number): string {
  const longer = [...slow.sections]
    .map(([section, seconds]) => ({ section, more: seconds - median(others.map((each) => each.sections.get(section) ?? 0)) }))
    .filter(({ more }) => more >= LEAST * lag)
    .sort((a, b) => b.more - a.more)
    .slice(0, NAMED);
  return longer.length === 0 ? "" : ` It takes longer in ${listed(longer.map(({ section, more }) => `${timeline.sections[section]} (+${duration(more)})`))}.`;
}

/** The section that takes longest compared with the other ranks; where waiting was not measured. */
function sectionWords(timeline: SectionTimeline): string {
  const { ranks, sections } = timeline;
  const unmeasured = "how long ranks wait for others was not measured";
  const mean = (lane: SectionTimeline["ranks"][number], section: number) =>
    lane.steps.reduce((sum, step) => sum + step.spans.reduce((all, [each, , , seconds]) => all + (each === section ? seconds : 0), 0), 0) / Math.max(1, lane.steps.length);
  const step = median(ranks.flatMap((lane) => lane.steps.map((each) => each.seconds)));
  const found = sections.flatMap((name, section) => {
    const values = ranks.map((lane) => ({ rank: lane.rank, seconds: mean(lane, section) }));
    const most = values.reduce((a, b) => (b.seconds > a.seconds ? b : a));
    const usual = median(values.filter((each) => each !== most).map((each) => each.seconds));
    return most.seconds - usual >= NOTABLE * step && most.seconds >= LONGER * usual ? [{ name, ...most, usual }] : [];
  }).sort((a, b) => b.seconds - b.usual - (a.seconds - a.usual))[0];
  if (ranks.length < 2 || found === undefined) return `${ranks.length < 2 ? "One rank is shown" : `${inSteps(timeline, false)} no section takes much longer on one of these ranks than on the others`}; ${unmeasured}.`;
  return `${inSteps(timeline, false)} rank ${found.rank} takes ${duration(found.seconds)} for ${found.name}, the others ${duration(found.usual)}; ${unmeasured}.`;
}
