// Texts about performance: findings, costs, scores.

import type { Finding, Kernel, Performance, Straggler, Throttle } from "../api/types";
import { isUneven, times } from "./kernels";
import { clock, ofStep, plural, roughly, runs, wholePercent, words } from "./text";

const VERDICTS: Record<string, string> = {
  healthy: "No rank makes the others wait.",
  worker: "Some ranks are slow; the others wait for them.",
  stage: "A pipeline stage is slower than the others; no node is at fault.",
  workload: "Different ranks are slow in turn; no node is at fault.",
  link: "The network within a process group is slow.",
  unexplained: "Time is lost; no measurement explains it.",
  no_step: "No step has completed yet.",
};

const ORIGINS: Record<string, string> = {
  stage: "unbalanced stages", workload: "uneven workload", link: "slow network", unexplained: "unexplained",
};

/** The finding in one sentence: the monitor's own, if it sent one. */
export function findingWords(finding: Finding): string {
  return finding.reason || VERDICTS[finding.verdict] || finding.verdict;
}

/** Share, origin, cause and ranks of the finding; empty if no rank is slow, or no step has completed yet. */
export function findingFacts(finding: Finding): string {
  if (isUnremarkable(finding) || finding.verdict === "worker") return ""; // slow ranks have a table of their own
  return [
    finding.share > 0 ? `${wholePercent(finding.share)} of each step is lost` : null,
    ORIGINS[finding.verdict] ?? finding.verdict,
    finding.cause === "unexplained" ? null : `slow ${slowIn(finding.cause)}`,
    finding.ranks.length > 0 ? `${plural(finding.ranks.length, "rank")} (${runs(finding.ranks)})` : null,
  ].filter(Boolean).join(" · ");
}

/** What a sentence states beyond the text above, which may be its beginning. */
export function restOf(sentence: string, above: string): string {
  if (isShown(sentence, above)) return "";
  const begun = above.replace(/\.$/, "");
  if (begun === "" || !sentence.startsWith(begun)) return sentence;
  const rest = sentence.slice(begun.length).replace(/^[;:,. ]+/, "");
  return rest.charAt(0).toUpperCase() + rest.slice(1);
}

/** Whether the text above already contains a sentence, by itself or as a part of another. */
export function isShown(sentence: string, above: string): boolean {
  return sentence !== "" && above.toLowerCase().includes(sentence.toLowerCase());
}

/** Without slow ranks: healthy, or without a completed step, which the headline of the job states. */
function isUnremarkable(finding: Finding): boolean {
  return finding.verdict === "healthy" || finding.verdict === "no_step";
}

/** Whether stragglers are shown above the grid. */
export function isLoud(performance: Performance | null): boolean {
  return performance !== null && (performance.open > 0 || !isUnremarkable(performance.finding));
}

/** Open stragglers by rank, the costliest first. */
export function slowRanks(performance: Performance | null): ReadonlyMap<number, Straggler> {
  return new Map(performance?.stragglers.map((each) => [each.rank, each]));
}

/**
 * How many times as long a step takes as it would if no rank waited for this one; where lateness is not known, how many times as long its kernels take. Null: neither is.
 */
export function slowdown({ share, score: known }: Pick<Straggler, "share" | "score">): number | null {
  if (share !== null && share > 0 && share < 1) return 1 / (1 - share);
  return known !== null && known > 0 && known < 1 ? 1 / known : null;
}

/** "slow 1.67×". */
export function slowTag(straggler: Pick<Straggler, "share" | "score">): string {
  const ratio = slowdown(straggler);
  return ratio === null ? "slow" : `slow ${times(ratio)}`;
}

/** What a straggler is slow in. */
export function slowIn(cause: string): string {
  return CAUSES[cause] ?? cause;
}

const CAUSES: Record<string, string> = {
  data: "input", host: "host-side work", compute: "computation", communication: "communication", unexplained: "unknown",
};

/** That nothing is wrong with the kernels, or none is why a rank is slow, in one sentence; empty: something is. */
export function calmWords(kernels: readonly Kernel[], slow: Pick<Straggler, "rank" | "cause"> | null): string {
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

/**
 * The costliest slow rank in a sentence: since when, by what, and who waits how long; null: no measurement explains it. `reason`: the
 * monitor's, which has the number of ranks that wait.
 */
export function slowSentence({ stragglers, open, next_action: next }: Pick<Performance, "stragglers" | "open" | "next_action">, reason: string, now: number): string | null {
  const first = stragglers[0];
  if (!first || first.own == null || first.peers == null || first.lateness === null || first.share === null) return null;
  const waiting = /([\d,]+) ranks? waits?\b/.exec(reason)?.[1];
  const who = waiting === undefined ? "the others wait" : `${waiting} ${waiting === "1" ? "rank waits" : "ranks wait"}`;
  const more = open > 1 ? ` ${plural(open - 1, "more rank is", "more ranks are")} slow.` : "";
  return `Rank ${first.rank}${first.host ? ` on ${first.host}` : ""} has been slow since ${clock(first.since, now)} (${roughly(now - first.since)}): ${next?.throttled?.rank === first.rank ? throttledWords(next.throttled, now) : ""}its ${slowIn(first.cause)} takes ${ofStep(first.own)} against ${ofStep(first.peers)} on its peers; ${who} ${ofStep(first.lateness)} of each ${ofStep(first.lateness / first.share)} step (${wholePercent(first.share)}).${more}`;
}

/** "GPU 5 is throttled, hw_thermal since 13:54:10; ": the known cause of a slow computation. */
function throttledWords({ gpu, reasons, since }: Throttle, now: number): string {
  return `${gpu} is throttled, ${reasons.join(", ")} since ${clock(since, now)}; `;
}

/** "none (on_straggler = log)": what the monitor does about a slow rank. */
export function slowActionWords({ action, action_reason }: Pick<Straggler, "action" | "action_reason">): string {
  return action === "log" ? "none (on_straggler = log)" : `${words(action)}${action_reason && `: ${action_reason}`}`;
}

/** Ranks as they are listed, those for which the others wait longest first; of equal ones the lower score. */
export function byWaiting(ranks: Performance["ranks"]): Performance["ranks"] {
  return [...ranks].sort((a, b) => Math.max(0, b.lateness ?? 0) - Math.max(0, a.lateness ?? 0) || (a.gpu_robust ?? 1) - (b.gpu_robust ?? 1));
}
