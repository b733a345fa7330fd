import assert from "node:assert/strict";
import { test } from "node:test";
import { loss, resumesAfter } from "../src/logic/checkpoint";

const at = (step: number | null) => ({ step, at: 40 });
const plain = (text: string) => text.replaceAll("\u2009", " ");

test("what a restart loses are the steps since the last checkpoint", () => {
  assert.equal(plain(loss({ checkpoint: at(840), iteration: 885 }, 100)), "Up to 45 steps are lost: the last checkpoint was saved after step 840, 1 min ago.");
  assert.match(loss({ checkpoint: at(885), iteration: 885 }, 100), /^No steps are lost/);
  assert.match(loss({ checkpoint: at(840), iteration: 10 }, 100), /^Steps since then are lost/, "an earlier attempt saved it");
  assert.match(loss({ checkpoint: at(null), iteration: null }, 100), /^What was trained since/);
  assert.equal(loss({ checkpoint: null, iteration: 885 }, 100), "Steps since the last checkpoint are lost; none is known of this job.");
  assert.equal(loss({ iteration: 885 }, 100), "Steps since the last checkpoint are lost.", "an older monitor");
});

test("a job that is launched again goes on after its last checkpoint", () => {
  assert.equal(plain(resumesAfter({ checkpoint: at(840), iteration: 885 }, 100)), "The last checkpoint was saved after step 840, 1 min ago; up to 45 steps are lost.");
  assert.match(resumesAfter({ checkpoint: null, iteration: 885 }, 100), /^No checkpoint of this job is known/);
  assert.equal(resumesAfter({ iteration: 885 }, 100), "");
});
