import assert from "node:assert/strict";
import { test } from "node:test";
import { loss, resumesAfter } from "../src/logic/checkpoint";

const at = (step: number | null) => ({ step, at: 40 });
const plain = (text: string) => text.replaceAll("\u2009", " ");

test("what a restart loses are the steps since the last checkpoint", () => {
  assert.equal(plain(loss("A restart", { checkpoint: at(840), iteration: 885 }, 100)), "A restart loses up to 45 steps: the last checkpoint was saved 1 min ago, at step 840 or later.");
  assert.match(loss("A restart", { checkpoint: at(885), iteration: 885 }, 100), /loses no step:/);
  assert.match(loss("A restart", { checkpoint: at(840), iteration: 10 }, 100), /loses the steps since then:/, "an earlier attempt saved it");
  assert.match(loss("A restart", { checkpoint: at(null), iteration: null }, 100), /loses the steps since then: the last checkpoint was saved 1.min ago\.$/);
  assert.equal(loss("A restart", { checkpoint: null, iteration: 885 }, 100), "A restart loses the steps since the last checkpoint; none is known of this job.");
  assert.equal(loss("A restart", { iteration: 885 }, 100), "A restart loses the steps since the last checkpoint.", "an older monitor");
});

test("a job that is launched again goes on after its last checkpoint", () => {
  assert.equal(plain(resumesAfter({ checkpoint: at(840), iteration: 861, steps_lost: 24, steps_at_risk: 21 }, 100)), "The last checkpoint was saved 1 min ago, at step 840 or later; up to 45 steps are lost.");
  assert.equal(plain(resumesAfter({ checkpoint: at(840), iteration: 840, steps_lost: 0, steps_at_risk: 0 }, 100)), "The last checkpoint was saved 1 min ago, at step 840 or later.");
  assert.match(resumesAfter({ checkpoint: null, iteration: 885 }, 100), /^No checkpoint of this job is known/);
  assert.equal(resumesAfter({ iteration: 885 }, 100), "");
});
