import assert from "node:assert/strict";
import { test } from "node:test";
import type { Timeout } from "../src/api/types";
import { columns, limited, ordered, origin } from "../src/logic/limits";

const timeout = (facts: Partial<Timeout>): Timeout => ({
  what: "section", section: "step", configured: null, learned: null, loaded: null, in_force: 10, source: "learned", ...facts,
});

test("a section is labelled by its name, other limits in words", () => {
  assert.equal(limited(timeout({})), "step");
  assert.equal(limited(timeout({ what: "out_of_section", section: null })), "outside sections");
  assert.equal(limited(timeout({ what: "some_new_limit", section: null })), "some new limit");
});

test("the source of a limit, also of one from two runs", () => {
  assert.equal(origin(timeout({ source: "configured" })), "configured");
  assert.equal(origin(timeout({ learned: 10 })), "learned");
  assert.equal(origin(timeout({ learned: 10, loaded: 20 })), "mean of learned now and earlier");
  assert.equal(origin(timeout({ source: "loaded", loaded: 20 })), "learned earlier");
  assert.equal(origin(timeout({ source: "first_time" })), "until durations are known");
  assert.equal(origin(timeout({ source: null, in_force: null })), "no limit");
});

test("sections that are known come first, then the new ones, then the rest in its own order", () => {
  const rows = [
    timeout({ what: "silence", section: null }), timeout({ section: "evaluation", source: "first_time" }),
    timeout({ section: "step" }), timeout({ what: "heartbeat", section: null }),
  ];
  assert.deepEqual(ordered(rows).map((row) => row.section ?? row.what), ["step", "evaluation", "silence", "heartbeat"]);
});

test("a column is left out that is empty, or repeats what is in force", () => {
  const shown = (...rows: Partial<Timeout>[]) => columns(rows.map(timeout)).map(([name]) => name);
  assert.deepEqual(shown({ learned: 10 }, { configured: 10, source: "configured" }), []);
  assert.deepEqual(shown({ learned: 8, configured: 10, source: "configured" }), ["learned"]);
  assert.deepEqual(shown({ learned: 8, loaded: 12 }), ["learned", "loaded"]);
});
