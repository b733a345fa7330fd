// How fast the ranks are, in words: whose doing it is, what it costs, which score says what.

import type { Finding, Performance, Straggler } from "../api/types";
import { percent, plural, runs } from "./text";

const VERDICTS: Record<string, string> = {
  healthy: "No rank makes the others wait.",
  worker: "Some ranks are slow by their own fault, and the others wait for them.",
  stage: "A whole pipeline stage takes longer than the others. That is the job's doing; no node is to blame.",
  workload: "Ranks take turns in being slow. That is the job's doing; no node is to blame.",
  link: "The network between the members of a process group is slow.",
  unexplained: "Time is lost, and nothing that was measured explains it.",
  no_step: "No step has completed yet.",
};

const WHOSE: Record<string, string> = {
  worker: "its own fault", stage: "the job's doing", workload: "the job's doing", link: "the network", unexplained: "unexplained",
  no_step: "nothing shows that it trains",
};

/** Whose doing it is, in one sentence: the monitor's own where it has one. */
export function findingWords(finding: Finding): string {
  return finding.reason || VERDICTS[finding.verdict] || finding.verdict;
}

/** What stands beside that sentence. */
export function findingFacts(finding: Finding): string {
  if (finding.verdict === "healthy") return "";
  return [
    WHOSE[finding.verdict] ?? finding.verdict,
    finding.cause === "unexplained" ? null : finding.cause,
    finding.share > 0 ? `${percent(finding.share)} of each step` : null,
    finding.ranks.length > 0 ? `${plural(finding.ranks.length, "rank")} (${runs(finding.ranks)})` : null,
  ].filter(Boolean).join(" · ");
}

/** Whether a sentence stands in what the reader has before him already. */
export function isShown(sentence: string, above: string): boolean {
  return sentence !== "" && above.includes(sentence);
}

/** There is something to read before anything else. */
export function isLoud(performance: Performance | null): boolean {
  return performance !== null && (performance.open > 0 || performance.finding.verdict !== "healthy");
}

/** "0.42 GPU-h"; three digits are enough to order by. */
export function gpuHours(hours: number): string {
  const digits = hours >= 99.95 ? 0 : hours >= 9.995 ? 1 : 2;
  return `${hours.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits })}\u2009GPU-h`;
}

/** A score has two decimals everywhere. */
export function score(value: number | null | undefined): string {
  return value === null || value === undefined ? "–" : value.toFixed(2);
}

/** Which score is which: name, what a rank is compared with. */
export const SCORES = [
  ["gpu_robust", "robust", "the middle of its peers, slow calls included"],
  ["gpu_relative", "relative", "the fastest rank, as nvidia-resiliency-ext does"],
  ["gpu_individual", "individual", "its own best so far"],
] as const;

/** What the reader is told of how it was found. */
export function foundBy(straggler: Straggler): string {
  return straggler.reference === "fastest" ? "by the threshold of the fastest reference" : "by the robust reference";
}
