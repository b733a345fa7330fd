import assert from "node:assert/strict";
import { test } from "node:test";
import type { RankState } from "../src/api/types";
import { device } from "./samples";
import { alikeGpus, byState, type Gpu, namesOf, standsOut } from "../src/logic/nodegpus";

function gpu(number: number, changes: Partial<Gpu> = {}, state: RankState = "running"): Gpu {
  const ranks = [{ job: "j", name: "j", rank: number, pid: 1, state }];
  return { name: `GPU ${number}`, local_rank: number, uuid: null, faults: 0, slow: 0, history: "", ranks, slow_now: [], reading: null, ...changes };
}

const hot = (temperature: number) => ({ reading: device({ temperature }) });
const names = (gpus: readonly Gpu[]) => alikeGpus(gpus).map(namesOf);

test("GPUs that are alike share a line; one with a fault, another state or more heat has its own", () => {
  const others = [0, 1, 2].map((number) => gpu(number, hot(60 + number)));
  assert.deepEqual(names(others), ["GPUs 0–2"]);
  assert.deepEqual(names([gpu(5, { ...hot(61), faults: 1, history: "1 crash in 1 job" }), ...others]), ["GPU 5", "GPUs 0–2"]);
  assert.deepEqual(names([...others, gpu(3, hot(61), "hung")]), ["GPUs 0–2", "GPU 3"]);
  assert.deepEqual(names([...others, gpu(3, hot(88))]), ["GPUs 0–2", "GPU 3"]);
  assert.deepEqual(names(others.slice(1)), ["GPU 1", "GPU 2"], "two are no list");
  assert.equal(namesOf([gpu(0, { name: "GPU 0", local_rank: null }), gpu(1)]), "2 GPUs");
});

test("a GPU stands out by several faults, and more than the next one", () => {
  const [two, one] = [gpu(0, { faults: 1, slow: 1 }), gpu(1, { faults: 1 })];
  assert.equal(standsOut([two, one]), true);
  assert.equal(standsOut([one, gpu(2)]), false);
  assert.equal(standsOut([two, { ...two }]), false);
  assert.equal(standsOut([]), false);
});

test("the ranks on a GPU stand by state, the worst first", () => {
  const ranks = [...gpu(0).ranks, ...gpu(1, {}, "dead").ranks, ...gpu(2).ranks];
  assert.deepEqual(byState(ranks).map(([state, found]) => [state, found.map(({ rank }) => rank)]), [["dead", [1]], ["running", [0, 2]]]);
});
