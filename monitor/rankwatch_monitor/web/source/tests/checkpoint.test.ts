import assert from "node:assert/strict";
import { test } from "node:test";
import { checkpointFact, loss, repeats, resumesAfter } from "../src/logic/checkpoint";

const at = (step: number | null) => ({ step, at: 40, exact: false });
const loaded = (step: number) => ({ step, at: 40, exact: true });
const plain = (text: string) => text.replaceAll("\u2009", " ");

test("of an ended job the last save is dated by its end, with the steps that may not be in it", () => {
  const fact = (facts: object) => {
    const { value, note } = checkpointFact({ state: "failed", checkpoint: at(749), iteration: 778, ended_at: 68, last_heard: null, ...facts }, 200);
    return plain(`${value}; ${note}`);
  };
  assert.equal(fact({}), "28 s before the end; step 749 or later, a restart repeats steps 750–778 unless the script's folder has a newer one");
  assert.equal(fact({ iteration: 750 }), "28 s before the end; step 749 or later, a restart repeats step 750 unless the script's folder has a newer one");
  assert.equal(fact({ state: "finished" }), "28 s before the end; step 749 or later", "what was not saved stands in its account");
  assert.equal(fact({ state: "finished", iteration: 749 }), "28 s before the end; step 749 or later");
  assert.match(fact({ checkpoint: loaded(750) }), /; step 750, a restart repeats steps 751–778$/);
  assert.equal(fact({ iteration: 749 }), "28 s before the end; step 749 or later");
  assert.equal(fact({ state: "running", ended_at: null }), "2 min 40 s ago; step 749 or later");
  assert.match(fact({ state: "lost", ended_at: null, last_heard: 68 }), /ago; step 749 or later, known until \d\d:\d1:08$/);
  assert.equal(fact({ checkpoint: at(null) }), "28 s before the end; undefined");
});

test("what a restart loses are the steps since the last checkpoint, and their time at the usual step time", () => {
  const lost = (what: Parameters<typeof loss>[0], job: Parameters<typeof loss>[1], now = 200) => plain(loss(what, job, now));
  const hung = { iterations_per_second: 0, step_seconds: 1 };
  assert.equal(lost("A restart", { checkpoint: at(799), iteration: 838, ...hung }), "A restart loses up to 39 steps (39 s of training) since the checkpoint at step 799.");
  assert.equal(lost("A restart", { checkpoint: at(799), iteration: 838, iterations_per_second: 0.5, step_seconds: null }), "A restart loses up to 39 steps (1 min 18 s of training) since the checkpoint at step 799.");
  assert.match(lost("A restart", { checkpoint: at(799), iteration: 838, iterations_per_second: 0.5 }, 90), /39 steps \(50 s of training\)/, "no more than since it was saved: steps have become slow");
  assert.equal(lost("A stop", { checkpoint: loaded(840), iteration: 885, iterations_per_second: null }), "A stop loses up to 45 steps since the checkpoint at step 840.");
  assert.match(lost("A restart", { checkpoint: at(885), iteration: 885, ...hung }), /loses no step since/);
  assert.match(lost("A restart", { checkpoint: at(840), iteration: 10, ...hung }), /loses the steps since/, "an earlier attempt saved it");
  assert.equal(lost("A restart", { checkpoint: at(null), iteration: null, ...hung }), "A restart loses the steps since the last checkpoint.");
});

test("an attempt that runs repeats the steps after the checkpoint, which it shows with its first step", () => {
  assert.equal(repeats({ checkpoint: at(849), attempt: 2 }), "Attempt 2 repeats steps from 850 or later on.");
  assert.equal(repeats({ checkpoint: loaded(849), attempt: 3 }), "Attempt 3 repeats steps from 850 on.");
  assert.deepEqual([repeats({ checkpoint: at(null), attempt: 2 }), repeats({ checkpoint: null, attempt: 2 })], ["", ""]);
});

test("without a known checkpoint training may restart from the first step, and all the time of its steps is lost", () => {
  const from = "No checkpoint is known: if there is none, training restarts from step 0";
  const lost = (job: Parameters<typeof loss>[1], now = 1000) => plain(loss("A restart", job, now));
  assert.equal(lost({ checkpoint: null, iteration: null }), `${from}.`);
  assert.equal(lost({ checkpoint: null, iteration: 4663, goodput: null, started_at: 100 }), `${from}: 4,663 steps.`);
  const slow = { checkpoint: null, iteration: 4663, iterations_per_second: 4.47, goodput: 0.989, started_at: 100, ended_at: null };
  assert.equal(lost(slow), `${from}: 4,663 steps (14 min 50 s of training).`, "of 15 min, in which most steps were fast");
  assert.equal(lost({ ...slow, ended_at: 200 }), `${from}: 4,663 steps (1 min 38 s of training).`);
  assert.equal(loss("A stop", { checkpoint: null, iteration: 4667 }, 200), "No checkpoint is known: all steps may be lost.");
});

test("a job that is launched again goes on after its last checkpoint", () => {
  const after = (facts: object) => plain(resumesAfter({ state: "failed", checkpoint: at(840), iteration: 861, steps_lost: 0, steps_at_risk: 21, steps_thrown_away: 0, ...facts }, 100));
  assert.equal(after({}), "The last checkpoint was saved 1 min ago, at step 840 or later. A restart repeats steps 841–861 (up to 21 steps).");
  assert.equal(
    after({ checkpoint: loaded(840), steps_lost: 24, steps_thrown_away: 66 }),
    "The last checkpoint was saved 1 min ago, at step 840. A restart repeats steps 841–861 (21 steps); the run had reached step 885; restarts have thrown away 66 steps in all.",
  );
  assert.equal(after({ iteration: 840, steps_at_risk: 0 }), "The last checkpoint was saved 1 min ago, at step 840 or later.");
  assert.equal(after({ checkpoint: at(null), steps_at_risk: null }), "The last checkpoint was saved 1 min ago.");
  assert.match(after({ checkpoint: null }), /^No checkpoint of this job is known/);
});

test("of a lost job that may train on a restart repeats steps only if it has ended", () => {
  assert.equal(
    plain(resumesAfter({ state: "lost", checkpoint: at(449), iteration: 498, steps_lost: 0, steps_at_risk: 49, steps_thrown_away: 0 }, 100)),
    "The last checkpoint known was saved 1 min ago, at step 449 or later. If the job has ended, a restart repeats steps 450–498 (up to 49 steps), fewer if a later save was not heard.",
  );
});
