import assert from "node:assert/strict";
import { test } from "node:test";
import { checkpointFact, loss, resumesAfter } from "../src/logic/checkpoint";

const at = (step: number | null) => ({ step, at: 40 });
const plain = (text: string) => text.replaceAll("\u2009", " ");

test("of an ended job the last save is dated by its end, with the steps that may not be in it", () => {
  const fact = (facts: object) => {
    const { value, note } = checkpointFact({ checkpoint: at(749), iteration: 778, ended_at: 68, ...facts }, 200);
    return plain(`${value}; ${note}`);
  };
  assert.equal(fact({}), "28 s before the end; step 749 or later; unless the script's folder has a newer one, a restart repeats steps 750–778");
  assert.equal(fact({ iteration: 750 }), "28 s before the end; step 749 or later; unless the script's folder has a newer one, a restart repeats step 750");
  assert.equal(fact({ iteration: 749 }), "28 s before the end; step 749 or later");
  assert.equal(fact({ ended_at: null }), "2 min 40 s ago; step 749 or later");
  assert.equal(fact({ checkpoint: at(null) }), "28 s before the end; undefined");
});

test("what a restart loses are the steps since the last checkpoint", () => {
  assert.equal(plain(loss("A restart", { checkpoint: at(840), iteration: 885 }, 100)), "A restart loses up to 45 steps: the last checkpoint was saved 1 min ago, at step 840 or later.");
  assert.match(loss("A restart", { checkpoint: at(885), iteration: 885 }, 100), /loses no step:/);
  assert.match(loss("A restart", { checkpoint: at(840), iteration: 10 }, 100), /loses the steps since then:/, "an earlier attempt saved it");
  assert.match(loss("A restart", { checkpoint: at(null), iteration: null }, 100), /loses the steps since then: the last checkpoint was saved 1.min ago\.$/);
  assert.equal(loss("A restart", { checkpoint: null, iteration: null }, 100), "No checkpoint is known: training may begin at step 0.");
  assert.equal(loss("A restart", { checkpoint: null, iteration: 4667 }, 100), "No checkpoint is known: training from step 0 repeats all steps up to 4,667.");
  assert.equal(plain(loss("A restart", { checkpoint: null, iteration: 4667, goodput: 0.5, started_at: 100 }, 1900)), "No checkpoint is known: training from step 0 repeats all steps up to 4,667, 15 min of training.");
  assert.equal(loss("A restart", { iteration: 885 }, 100), "A restart loses the steps since the last checkpoint.", "an older monitor");
});

test("a job that is launched again goes on after its last checkpoint", () => {
  assert.equal(plain(resumesAfter({ checkpoint: at(840), iteration: 861, steps_lost: 24, steps_at_risk: 21 }, 100)), "The last checkpoint was saved 1 min ago, at step 840 or later; up to 21 steps since then are lost; earlier restarts lost 24 more.");
  assert.equal(plain(resumesAfter({ checkpoint: at(840), iteration: 840, steps_lost: 0, steps_at_risk: 0 }, 100)), "The last checkpoint was saved 1 min ago, at step 840 or later.");
  assert.match(resumesAfter({ checkpoint: null, iteration: 885 }, 100), /^No checkpoint of this job is known/);
  assert.equal(resumesAfter({ iteration: 885 }, 100), "");
});
