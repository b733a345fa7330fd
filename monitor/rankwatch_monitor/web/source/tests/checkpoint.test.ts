import assert from "node:assert/strict";
import { test } from "node:test";
import { checkpointFact } from "../src/logic/checkpoint";

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

