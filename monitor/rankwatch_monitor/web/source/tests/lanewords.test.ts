import assert from "node:assert/strict";
import { test } from "node:test";
import type { RankLane, SectionTimeline, Straggler } from "../src/api/types";
import { basisWords, laneWords } from "../src/logic/lanewords";

/** A step of data, then computation with the collectives at its end, within the section of the step. */
function lane(rank: number, data: number, compute: number, waits: number | null, iterations = [10, 20]): RankLane {
  const seconds = data + compute + (waits ?? 0.05);
  return {
    rank, host: "", steps: iterations.map((iteration) => ({
      iteration, began: 100, seconds, waits: waits === null ? null : [[data + compute, waits]],
      spans: [[0, 0, 0, seconds], [1, 1, 0, data], [2, 1, data, seconds - data]],
    })),
  };
}

const of = (...ranks: RankLane[]): SectionTimeline => ({ attempt: 1, sampled: [10, 20], profiled: [20], no_waits: "", no_sections: [], sections: ["step", "data", "forward"], ranks_known: 8, ranks });
const words = (timeline: SectionTimeline, blamed: number[] = []) => laneWords(timeline, blamed).replaceAll("\u2009", " ");

test("the rank that works longest, what the others work and wait, and in which sections", () => {
  const slow = of(lane(3, 0.061, 0.1, 0.02), lane(0, 0.02, 0.1, 0.061), lane(1, 0.02, 0.1, 0.061));
  assert.equal(words(slow, [3]), "In each of these 2 steps rank 3 works 161 ms; the other 2 work 120 ms and wait 41 ms for it. It takes longer in data (+41 ms).");
  assert.match(words(slow), /wait 41 ms longer than it\./, "another rank that is not shown may be the slow one");
  assert.match(words({ ...slow, ranks_known: 3 }), /wait 41 ms for it\./);
  assert.match(words(of(slow.ranks[0]!, slow.ranks[1]!), [3]), /; rank 0 works 120 ms and waits 41 ms for it\./);
});

test("its twin: ranks that work equally long", () => {
  assert.equal(words(of(lane(0, 0.02, 0.1, 0.021), lane(1, 0.021, 0.1, 0.02)), [0]), "In each of these 2 steps the 2 ranks work about equally long, 120 ms to 121 ms of a step, and wait 1 ms for each other at most.");
});

test("without measured waiting the section that stands out, and that the rest is not known", () => {
  const unmeasured = "how long ranks wait for others was not measured.";
  assert.equal(words(of(lane(5, 0.16, 0.1, null), lane(0, 0.02, 0.1, null), lane(1, 0.02, 0.1, null))), `On average of these 2 steps rank 5 takes 160 ms for data, the others 20 ms; ${unmeasured}`);
  assert.equal(words(of(lane(0, 0.02, 0.1, null), lane(1, 0.02, 0.1, null))), `In each of these 2 steps no section takes much longer on one of these ranks than on the others; ${unmeasured}`);
  assert.equal(words(of(lane(0, 0.02, 0.1, null))), `One rank is shown; ${unmeasured}`);
});

test("steps of different lengths are averaged", () => {
  const [short, long] = [lane(3, 0.061, 0.1, 0.02, [10]), lane(3, 0.061, 0.2, 0.02, [20])];
  const uneven = of({ ...short, steps: [...short.steps, ...long.steps] }, lane(0, 0.02, 0.1, 0.061));
  assert.match(words(uneven, [3]), /^On average of these 2 steps rank 3 works 211 ms;/);
});

test("one step is no steps", () => {
  const one = of(lane(3, 0.061, 0.1, 0.02, [20]), lane(0, 0.02, 0.1, 0.061, [20]));
  assert.match(words(one, [3]), /^In this step rank 3 works /);
  assert.match(words(of(lane(5, 0.16, 0.1, null, [20]), lane(0, 0.02, 0.1, null, [20]))), /^In this step rank 5 takes /);
});

test("what the figures are of, and the job's own beside them", () => {
  const shown = of(lane(3, 0.061, 0.1, 0.02), lane(0, 0.02, 0.1, 0.061));
  const slow = [{ rank: 3, lateness: 0.048 }] as Straggler[];
  const basis = (...given: Parameters<typeof basisWords>) => basisWords(...given).replaceAll("\u2009", " ");
  assert.equal(basis(shown, 32, slow), "Measured on 2 of 32 ranks in sampled steps; on all ranks and over whole windows the others wait 48 ms of each step for rank 3.");
  assert.equal(basis(shown, 32, []), "Measured on 2 of 32 ranks.");
  assert.equal(basis(shown, 32, [{ rank: 9, lateness: 0.05 }] as Straggler[]), "Measured on 2 of 32 ranks.", "that rank is not shown");
  assert.equal(basis(shown, 2, slow), "Measured in sampled steps; over whole windows the others wait 48 ms of each step for rank 3.");
  assert.equal(basis(shown, 32, [{ rank: 3, lateness: 0.042 }] as Straggler[]), "Measured on 2 of 32 ranks in sampled steps; on all ranks and over whole windows it is the same within 5 %.", "one figure for one wait");
  assert.equal(basis(shown, 2, []), "");
  assert.equal(basis(of(lane(3, 0.06, 0.1, null)), 32, slow), "", "nothing was measured");
});

test("a rank without the newest step comes before all else", () => {
  const ranks = [lane(5, 0.02, 0.1, 0.02, [10]), lane(0, 0.02, 0.1, 0.02), lane(1, 0.02, 0.1, 0.02)];
  assert.equal(words(of(...ranks)), "Rank 5 has sent no sections of step 20; the other 2 ranks have.");
});
