import assert from "node:assert/strict";
import { test } from "node:test";
import type { Finding, Performance, Straggler, StragglerVerdict } from "../src/api/types";
import { byWaiting, findingFacts, findingWords, isLoud, isMeasured, isShown, restOf, score, slowBasis, slowTag, slowFacts } from "../src/logic/stragglers";
import { clock } from "../src/logic/text";

const finding = (facts: Partial<Finding>): Finding => ({
  verdict: "healthy", cause: "unexplained", reason: "", since: null, ranks: [], share: 0, host: "", place: "", ...facts,
});
const plain = (text: string) => text.replaceAll("\u2009", " ");

test("the finding is the monitor's sentence, else a default", () => {
  assert.equal(findingWords(finding({ verdict: "worker", reason: "Rank 3 makes 7 others wait." })), "Rank 3 makes 7 others wait.");
  assert.equal(findingWords(finding({ verdict: "healthy" })), "No straggler.");
});

test("facts of a finding are cause, share and ranks, as far as known", () => {
  const found = finding({ verdict: "worker", cause: "compute", share: 0.174, ranks: [8, 9, 10] });
  assert.equal(findingFacts(found), "", "the table of stragglers has them");
  assert.equal(plain(findingFacts({ ...found, verdict: "stage" })), "17 % of each step is lost · unbalanced stages · slow computation · 3 ranks (8–10)");
  assert.equal(findingFacts(finding({ verdict: "unexplained" })), "unexplained");
  assert.equal(findingFacts(finding({})), "");
});

test("stragglers and findings come first; a healthy job and one without a step have none", () => {
  const about = (open: number, verdict: StragglerVerdict) => ({ open, finding: finding({ verdict }) }) as Performance;
  assert.deepEqual([isLoud(null), isLoud(about(0, "healthy")), isLoud(about(1, "healthy")), isLoud(about(0, "link")), isLoud(about(0, "no_step"))], [false, false, true, true, false]);
});

test("a sentence of the headline is recognised", () => {
  assert.equal(isShown("Rank 3 is slow.", "Rank 3 is slow. 2 more ranks are slow."), true);
  assert.deepEqual([isShown("Rank 3 is slow.", "Rank 33 is slow."), isShown("", "Rank 3 is slow.")], [false, false]);
});

test("how slow a rank is comes from what the others wait, else from its score", () => {
  const straggler = (share: number | null, score: number | null) => ({ share, score }) as Straggler;
  const words = (share: number | null, known: number | null) => [slowTag(straggler(share, known)), slowBasis(straggler(share, known))].map((text) => text.replaceAll("\u2009", " "));
  assert.deepEqual(words(0.267, 1), ["slow 27 %", "27 %: the other ranks wait this share of each step for it"]);
  assert.deepEqual(words(null, 0.5), ["slow 2.00×", "2.00×: its kernels take as many times as long as those of its peers; how long the others wait is not known"]);
  for (const [share, known] of [[null, null], [1, null], [-0.1, 1]] as const) assert.deepEqual(words(share, known), ["slow", ""]);
});

test("a sentence stands once: what the headline begins with is not repeated", () => {
  const sentence = "Rank 5 is slow: 31 ranks wait for it (27 %); its input takes 62 ms.";
  assert.equal(restOf(sentence, "Rank 5 is slow: 31 ranks wait for it (27 %)"), "Its input takes 62 ms.");
  assert.equal(restOf(sentence, sentence), "");
  assert.equal(restOf(sentence, "Rank 5 is slow: 31 ranks…"), sentence, "it was cut within a clause");
  assert.equal(restOf(sentence, "All ranks are making progress."), sentence);
  assert.equal(restOf(sentence, ""), sentence);
});

test("scores have two decimals", () => {
  assert.deepEqual([score(0.7), score(null)], ["0.70", "–"]);
});

test("the slow rank in figures: since when, in what, who waits, what is done", () => {
  const slow = { rank: 5, host: "host-0", cause: "data", since: 1_000_000, own: 0.062, peers: 0.002, lateness: 0.06, share: 0.268, action: "log", action_reason: "", cost_gpu_hours: 0 } as Straggler;
  const shown = (facts: Partial<Straggler>, more: Partial<Performance> = {}) =>
    slowFacts({ throttled: null, stragglers: [{ ...slow, ...facts }], open: 1, cost_rate: "", ...more }, 1_000_431).map(({ label, value, note }) => `${label}: ${value}; ${note}`.replaceAll("\u2009", " "));
  assert.deepEqual(shown({ cost_gpu_hours: 1 }), [
    `Slow since: ${clock(1_000_000, 1_000_431)}; 7 min ago`, "Its input: 62 ms; 2.0 ms on its peers", "Others wait: 60 ms (27 %); of each step",
    "Action: none; on_straggler = log", "Cost: 1.00 GPU-hours; undefined",
  ]);
  const cost_rate = "8.58 GPU-hours each hour: 27 % of each step of 32 ranks";
  assert.equal(shown({}, { cost_rate }).at(-1), `Cost: 0.0 GPU-minutes; ${cost_rate}`);
  assert.match(shown({}, { cost_rate, open: 2 }).at(-1)!, /of 32 ranks; 1 more rank is slow$/);
  const throttled = { rank: slow.rank, gpu: "GPU 5", reasons: [], words: "thermal slowdown by the hardware", since: 1_000_000, readings: "88 °C, 1.20 of 1.98 GHz" };
  assert.equal(shown({}, { throttled })[3], `GPU 5: throttled; thermal slowdown by the hardware, since ${clock(1_000_000, 1_000_431)}`);
  const unknown = shown({ own: null, lateness: null, action: "restart_excluding_node", action_reason: "as set" }, { open: 3 });
  assert.deepEqual(unknown.slice(1), ["Action: restart excluding node; as set", "Cost: 0.0 GPU-minutes; 2 more ranks are slow"]);
  assert.deepEqual([isMeasured({ stragglers: [slow] }), isMeasured({ stragglers: [{ ...slow, own: null }] }), isMeasured({ stragglers: [] })], [true, false, false]);
});

test("the ranks that the others wait for longest stand first", () => {
  const row = (rank: number, lateness: number | null, gpu_robust: number) => ({ rank, lateness, gpu_robust }) as Performance["ranks"][number];
  assert.deepEqual(byWaiting([row(4, -0.01, 0.97), row(1, 0.003, 1), row(5, 0.06, 1), row(2, null, 0.9)]).map(({ rank }) => rank), [5, 1, 2, 4]);
});
