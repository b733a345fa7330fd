import assert from "node:assert/strict";
import { test } from "node:test";
import type { JobSummary } from "../src/api/types";
import { preparedOrder, stepOfJob } from "../src/logic/nextaction";
import { incident } from "./samples";

const next = (action: string | null, ranks: number[] = []) =>
  incident({ reason: "Rank 3 hangs.", headline: "Rank 3 hangs", next_action: { action, ranks, text: "Do.", runbook: "" } });

test("the order of an incident is prepared with its ranks and reason", () => {
  const expected = { action: "restart_excluding_node", ranks: [3], reason: "Rank 3 hangs" };
  assert.deepEqual(preparedOrder(next("restart_excluding_node", [3])), expected);
});

test("no order is prepared where none is called for, or by an older or newer monitor", () => {
  for (const action of [null, "something new"]) assert.equal(preparedOrder(next(action)), null);
  assert.equal(preparedOrder(incident({})), null);
});

test("a lost and a failed job have a next step outside of the page", () => {
  const step = (state: string) => stepOfJob({ state } as JobSummary);
  assert.equal(step("lost")?.runbook, "runbook.html#rankwatchjoblost");
  assert.equal(step("failed")?.runbook, "runbook.html#rankwatchjobfailed");
  for (const state of ["running", "hung", "recovering", "finished", "stopped"]) assert.equal(step(state), null);
});
