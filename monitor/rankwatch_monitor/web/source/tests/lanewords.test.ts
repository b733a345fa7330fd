import assert from "node:assert/strict";
import { test } from "node:test";
import type { RankLane, SectionTimeline } from "../src/api/types";
import { laneWords } from "../src/logic/lanewords";

/** A step of data, then computation with the collectives at its end, within the section of the step. */
function lane(rank: number, data: number, compute: number, waits: number | null, iterations = [10, 20]): RankLane {
  const seconds = data + compute + (waits ?? 0.05);
  return {
    rank, host: "", steps: iterations.map((iteration) => ({
      iteration, seconds, waits: waits === null ? null : [[data + compute, waits]],
      spans: [[0, 0, 0, seconds], [1, 1, 0, data], [2, 1, data, seconds - data]],
    })),
  };
}

const of = (...ranks: RankLane[]): SectionTimeline => ({ attempt: 1, sampled: [10, 20], profiled: [20], no_waits: "", sections: ["step", "data", "forward"], ranks_known: 8, ranks });
const words = (timeline: SectionTimeline, blamed: number[] = []) => laneWords(timeline, blamed).replaceAll("\u2009", " ");

test("the rank that works longest, what the others work and wait, and in which sections", () => {
  const slow = of(lane(3, 0.061, 0.1, 0.02), lane(0, 0.02, 0.1, 0.061), lane(1, 0.02, 0.1, 0.061));
  assert.equal(words(slow, [3]), "In these steps rank 3 works 161 ms; the other 2 work 120 ms and wait 41 ms for it. It takes longer in data (+41 ms).");
  assert.match(words(slow), /wait 41 ms longer than it\./, "another rank that is not shown may be the slow one");
  assert.match(words({ ...slow, ranks_known: 3 }), /wait 41 ms for it\./);
  assert.match(words(of(slow.ranks[0]!, slow.ranks[1]!), [3]), /; rank 0 works 120 ms and waits 41 ms for it\./);
});

test("its twin: ranks that work equally long", () => {
  assert.equal(words(of(lane(0, 0.02, 0.1, 0.021), lane(1, 0.021, 0.1, 0.02)), [0]), "In these steps the 2 ranks work about equally long, 120 ms to 121 ms of a step, and wait 1 ms for each other at most.");
});

test("without measured waiting the section that stands out, and that the rest is not known", () => {
  const unmeasured = "how long ranks wait for others was not measured.";
  assert.equal(words(of(lane(5, 0.16, 0.1, null), lane(0, 0.02, 0.1, null), lane(1, 0.02, 0.1, null))), `In these steps rank 5 takes 160 ms for data, the others 20 ms; ${unmeasured}`);
  assert.equal(words(of(lane(0, 0.02, 0.1, null), lane(1, 0.02, 0.1, null))), `In these steps no section takes much longer on one of these ranks than on the others; ${unmeasured}`);
  assert.equal(words(of(lane(0, 0.02, 0.1, null))), `One rank is shown; ${unmeasured}`);
});

test("a rank without the newest step comes before all else", () => {
  const ranks = [lane(5, 0.02, 0.1, 0.02, [10]), lane(0, 0.02, 0.1, 0.02), lane(1, 0.02, 0.1, 0.02)];
  assert.equal(words(of(...ranks)), "Rank 5 has sent no sections of step 20; the other 2 ranks have.");
});
