// Texts about slow ranks: costs, scores.

import type { KernelView, Performance, Straggler } from "../api/types";
import { isUneven } from "./kernels";
import { clock, gpuTime, ofStep, plural, times, wholePercent, words } from "./text";

/** Open stragglers by rank, the costliest first. */
export function slowRanks(performance: Performance | null): ReadonlyMap<number, Straggler> {
  return new Map(performance?.stragglers.map((each) => [each.rank, each]));
}

type Slow = Pick<Straggler, "share" | "score">;

/** The figure of a slow rank: the share of a step that the others wait for it, else how many times as long its kernels take; empty: neither is known. */
function slowFigure({ share, score: known }: Slow): string {
  if (isShare(share)) return wholePercent(share);
  return known !== null && known > 0 && known < 1 ? times(1 / known) : "";
}

const isShare = (share: number | null): boolean => share !== null && share > 0 && share < 1;

/** "slow 27 %". */
export function slowTag(slow: Slow): string {
  return `slow ${slowFigure(slow)}`.trim();
}

/** What the figure of the tag is, in a sentence; empty: it has none. */
export function slowBasis(slow: Slow): string {
  const found = slowFigure(slow);
  return found && `${found}: ${isShare(slow.share) ? "the other ranks wait this share of each step for it" : "its kernels take as many times as long as those of its peers; how long the others wait is not known"}`;
}

/** What a straggler is slow in. */
export function slowIn(cause: string): string {
  return CAUSES[cause] ?? cause;
}

const CAUSES: Record<string, string> = {
  data: "input", host: "host-side work", compute: "computation", communication: "communication", unexplained: "unknown",
};

/** That nothing is wrong with the kernels, or none is why a rank is slow, in one sentence; empty: something is. */
export function calmWords(kernels: readonly KernelView[], slow: Pick<Straggler, "rank" | "cause"> | null): string {
  const compared = kernels.some(({ ranks }) => ranks > 1);
  if (slow !== null && compared && slow.cause !== "compute" && !kernels.some((each) => isUneven(each) && each.slowest_rank === slow.rank)) {
    return `The kernels of rank ${slow.rank} are as fast as those of its peers: the cause is ${slow.cause === "unexplained" ? "elsewhere" : `its ${slowIn(slow.cause)}`}.`;
  }
  if (kernels.some((each) => isUneven(each) || each.slower_since !== null)) return "";
  return compared ? "No kernel takes longer than before, and no rank is much slower in one than the others." : "No kernel takes longer than before.";
}

/** A score has two decimals everywhere. */
export function score(value: number | null | undefined): string {
  return value === null || value === undefined ? "–" : value.toFixed(2);
}

/** Field, name, and what a rank is compared with. */
export const SCORES = [
  ["gpu_robust", "robust", "the median of its peers, slow calls included"],
  ["gpu_relative", "relative", "the fastest rank, as nvidia-resiliency-ext does"],
  ["gpu_individual", "individual", "its own best so far"],
] as const;

/** How a straggler was detected. */
export function foundBy(straggler: Straggler): string {
  return straggler.reference === "fastest" ? "by the threshold of the fastest reference" : "by the robust reference";
}

/** The costliest slow rank in figures: since when, in what, how long the others wait, what is done about it. */
export function slowFacts({ stragglers, open, throttled, cost_rate: rate }: Pick<Performance, "stragglers" | "open" | "throttled" | "cost_rate">, now: number): { label: string; value: string; note?: string }[] {
  const first = stragglers[0]!;
  const takes = first.own == null ? [] : [{ label: `Its ${slowIn(first.cause)}`, value: ofStep(first.own), note: `${ofStep(first.peers)} on its peers${first.section ? `, section ${first.section}` : ""}` }];
  const waits = first.lateness === null || !first.share ? [] : [{ label: "Others wait", value: `${ofStep(first.lateness)} (${wholePercent(first.share)})`, note: "of each step" }];
  const beside = [rate, open > 1 ? `${plural(open - 1, "more rank is", "more ranks are")} slow` : ""].filter(Boolean);
  const device = throttled === null ? [] : [{ label: throttled.gpu, value: "throttled", note: `${throttled.words}, since ${clock(throttled.since, now)}` }];
  return [
    ...takes, ...waits, ...device,
    first.action === "log" ? { label: "Action", value: "none", note: "on_straggler = log" } : { label: "Action", value: words(first.action), note: first.action_reason },
    { label: "Cost", value: gpuTime(3600 * first.cost_gpu_hours), ...(beside.length > 0 ? { note: beside.join("; ") } : {}) },
  ];
}
