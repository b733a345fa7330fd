import assert from "node:assert/strict";
import { test } from "node:test";
import type { JobSummary, SlowAction } from "../src/api/types";
import { offered, recommendedOrder, slowSteps, stepsOfJob } from "../src/logic/nextaction";
import { incident } from "./samples";

const next = (action: string | null, ranks: number[] = []) =>
  incident({ reason: "Rank 3 hangs.", headline: "Rank 3 hangs", next_action: { action, ranks, text: "Do.", runbook: "" } });

const job = { ended_at: null, quiet_host: null, ranks_reporting: 8 };

test("the order of an incident is prepared with its ranks and reason", () => {
  const order = { action: "restart_excluding_node", ranks: [3], reason: "Rank 3 hangs" };
  assert.deepEqual(offered(job, next("restart_excluding_node", [3])), [{ order, words: "Restart without some nodes" }]);
  const named = { ...next("restart_excluding_node", [3]), culprits: [{ rank: 3, host: "host-1", class: "host_silent", reason: "" }] };
  assert.deepEqual(offered(job, named).map(({ words }) => words), ["Restart without host-1"]);
});

test("orders stand side by side; that of a suspicion comes before its time", () => {
  const also = (action: string | null, ...others: string[]) => ({ ...next(action), next_action: { ...next(action).next_action!, also: others } });
  const words = (found: ReturnType<typeof offered>) => found.map((each) => each.words);
  assert.deepEqual(words(offered(job, also("capture", "restart"))), ["Capture stacks", "Restart"]);
  assert.deepEqual(words(offered(job, { ...also(null, "restart", "capture"), confirmed: false })), ["Restart now", "Capture stacks"]);
});

test("no order is prepared where none is called for, by an older or newer monitor, or after the end", () => {
  for (const action of [null, "something new"]) assert.deepEqual(offered(job, next(action)), []);
  assert.deepEqual(offered(job, incident({})), []);
  assert.deepEqual(offered({ ...job, ended_at: 5 }, next("restart")), []);
});

test("of a host that is not heard no stacks are captured: the order leaves it out, where that is permitted", () => {
  const quiet_host = { hosts: ["host-1"], ranks: [4, 5], since: 100, limit: 60, excludable: true, command: "", other_jobs: 0, step: "", headline: "Node host-1 has not been heard since 00:01:40 UTC; its 2 ranks are silent" };
  const [found] = offered({ ...job, quiet_host }, next("capture"));
  assert.equal(found!.words, "Restart without host-1");
  assert.deepEqual([found!.order.action, found!.order.ranks], ["restart_excluding_node", [4, 5]]);
  assert.match(found!.order.reason, /^Node host-1 has not been heard since /);
  assert.deepEqual(offered({ ...job, quiet_host: { ...quiet_host, excludable: false } }, next("capture")), []);
});

test("a lost and a failed job have a next step outside of the page", () => {
  const found = (state: string, facts: Partial<JobSummary> = {}) => stepsOfJob({ state, ...facts } as JobSummary);
  assert.equal(found("lost")?.runbook, "runbook.html#rankwatchjoblost");
  assert.equal(found("failed")?.runbook, "runbook.html#rankwatchjobfailed");
  const steps = [{ text: "Look.", command: "squeue -j 1", host: "" }, { text: "Launch.", command: "", host: "" }];
  assert.deepEqual(found("lost", { next_step: "Look first.", next_steps: steps })?.steps, steps);
  assert.deepEqual(found("lost", { next_step: "Look first." })?.steps.map(({ text }) => text), ["Look first."], "of an older monitor");
  for (const state of ["running", "hung", "recovering", "finished", "stopped"]) assert.equal(found(state), null);
});

test("after a restart another one can be ordered", () => {
  const recovering = { ...next(null), phase: "recovering", next_action: { ...next(null).next_action!, also: ["restart"] } };
  assert.deepEqual(offered(job, recovering).map(({ words }) => words), ["Restart again"]);
});

test("on a node that is up the stacks come first, and the node is left out last", () => {
  const quiet_host = { hosts: ["host-1"], ranks: [4, 5], since: 100, limit: 60, excludable: true, command: "", other_jobs: 7, step: "", headline: "Node host-1 is up" };
  const words = (incident: ReturnType<typeof next>) => offered({ ...job, quiet_host }, incident).map((each) => each.words);
  const recorded = next("capture");
  assert.deepEqual(words({ ...recorded, next_action: { ...recorded.next_action!, also: ["restart"] } }), ["Capture stacks of the 8 ranks that report", "Restart", "Restart without host-1"]);
  const suspected = next(null);
  assert.deepEqual(words({ ...suspected, confirmed: false, next_action: { ...suspected.next_action!, also: ["restart", "capture"] } }), ["Capture stacks of the 8 ranks that report", "Restart now", "Restart without host-1"]);
});

test("of a slow rank the look comes first, and what follows it second", () => {
  const slow: SlowAction = { text: "Look at the GPU; if it stays slow, restart.", then: "If it stays slow, restart.", action: null, ranks: [], runbook: "", command: "top", host: "host-0" };
  const steps = slowSteps(slow).map(({ text, command, host }) => [text, command, host]);
  assert.deepEqual(steps, [["Look at the GPU.", "top", "host-0"], ["If it stays slow, restart.", "", ""]]);
  assert.deepEqual(slowSteps({ ...slow, then: "" }).map(({ text }) => text), [slow.text]);
  const { then: _, ...older } = slow;
  assert.deepEqual(slowSteps(older), [older]);
});

test("the proposed order is that of the open incident, else that of a slow rank, which is looked at first", () => {
  const known = { ...job, headline: "Rank 5 is slow", reason: "" };
  const slow: SlowAction = { text: "Look.", action: "restart_excluding_node", ranks: [5], runbook: "", command: "", host: "host-0", condition: "if it stays slow" };
  assert.deepEqual(recommendedOrder(known, null, slow), { action: "restart_excluding_node", ranks: [5], reason: "Rank 5 is slow", condition: "if it stays slow" });
  assert.deepEqual(recommendedOrder(known, null, { ...slow, action: null }), null);
  const recorded = { ...next("restart"), closed_at: null };
  assert.deepEqual(recommendedOrder(known, recorded, slow), { action: "restart", ranks: [], reason: "Rank 3 hangs", condition: "" });
  assert.equal(recommendedOrder(known, { ...recorded, next_action: { ...recorded.next_action!, condition: "once its cause is gone" } }, null)?.condition, "once its cause is gone");
  assert.equal(recommendedOrder(known, { ...next(null), closed_at: null }, slow), null, "to wait is no order");
  assert.equal(recommendedOrder({ ...known, ended_at: 5 }, null, slow), null);
  assert.equal(recommendedOrder(known, null, null), null);
});
