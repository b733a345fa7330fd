import assert from "node:assert/strict";
import { test } from "node:test";
import type { Incident, JobSummary } from "../src/api/types";
import { awaited, culpritRanks, doing, focus, hosts, inPast, isFormer, kindWords, merged, otherRanks, quietStep, quietWords, ranksThen, wasTaken, withoutStacks } from "../src/logic/incidents";
import { incidentAddress, parse } from "../src/logic/route";
import { incident as some } from "./samples";

const incident = (id: string, opened_at: number, closed_at: number | null, confirmed = true): Incident =>
  some({ id, opened_at, closed_at, confirmed, phase: closed_at === null ? "capturing" : "closed" });
const job = { state: "running" } as JobSummary;

test("a requested incident comes first, then the open one, then closed ones", () => {
  const list = [incident("c", 300, 310), incident("b", 200, null), incident("a", 100, 110)];
  assert.equal(focus(list, null, job, 400)?.id, "b");
  assert.equal(focus(list, "a", job, 400)?.id, "a");
  assert.equal(focus(list, "nope", job, 400), null);
});

test("the last incident is shown for an hour, of a failed job without limit", () => {
  const list = [incident("a", 100, 110)];
  assert.equal(focus(list, null, job, 200)?.id, "a");
  assert.equal(focus(list, null, job, 100_000), null);
  assert.equal(focus(list, null, { ...job, state: "failed" }, 100_000)?.id, "a");
});

test("an open suspicion is shown, a resolved one is not", () => {
  const list = [incident("b", 200, 230, false), incident("a", 100, 110)];
  assert.equal(focus(list, null, job, 240)?.id, "a");
  assert.equal(focus(list, "b", job, 240)?.id, "b");
  assert.equal(focus(list.slice(0, 1), null, job, 240), null);
  assert.equal(focus([incident("b", 200, null, false)], null, job, 240)?.id, "b");
});

test("a changed incident replaces its old version, newest first", () => {
  const list = merged([incident("b", 200, null), incident("a", 100, 110)], incident("b", 200, 230));
  assert.deepEqual(list.map(({ id, closed_at }) => [id, closed_at]), [["b", 230], ["a", 110]]);
});

test("culprits are listed as runs of ranks", () => {
  const named = (rank: number) => ({ rank, host: "n1", class: "dead", reason: "" });
  assert.equal(culpritRanks([]), "none identified");
  assert.equal(culpritRanks([named(2)]), "rank 2");
  assert.equal(culpritRanks([8, 9, 10].map(named)), "ranks 8–10");
  assert.deepEqual(hosts([8, 9].map(named)), ["n1"]);
});

test("other ranks are those besides the culprits, and no more than there are", () => {
  const culprits = [{ rank: 2, host: "n1", class: "behind", reason: "" }];
  assert.equal(otherRanks(some({ culprits, affected: [0, 1, 2, 3] }), 4), 3);
  assert.equal(otherRanks(some({ culprits, affected: [0, 1, 3, 4] }), 4), 3);
  assert.equal(otherRanks(some({ culprits, affected: [2] }), 4), 0);
});

test("the current activity is described while the incident is open", () => {
  assert.equal(doing(incident("a", 1, null)), "Capturing stacks.");
  assert.equal(doing({ ...incident("a", 1, null), phase: "acting", action: "save_and_stop" }), "Saving a checkpoint, then stopping.");
  assert.equal(doing({ ...incident("a", 1, null), phase: "acting", action: "stop" }), "Stopping the job.");
  assert.equal(doing({ ...incident("a", 1, null, false), phase: "confirming" }), "Confirming that no rank makes progress.");
  assert.equal(doing(incident("a", 1, 2)), "");
});

test("what is recorded only is not being decided", () => {
  const rests = (action: string, action_reason: string) => doing(some({ phase: "detected", action, action_reason }));
  assert.equal(rests("log", "the policy only records"), "Recorded only: the policy acts on nothing by itself.");
  assert.equal(rests("log", "observe-only is on"), "Recorded only: observe-only is on.");
  assert.equal(rests("capture", "the policy is to capture"), "Stacks were captured; nothing else is done by itself.");
  assert.equal(rests("restart", "the policy is to restart"), "Deciding what to do.");
});

test("an action counts as taken only once it was", () => {
  const at = (restarted: number | null) => ({ ...some({}).timeline, restarted });
  assert.equal(wasTaken(some({ phase: "acting" }), null), false);
  assert.equal(wasTaken(some({ closed_at: 200 }), null), false); // the ranks went on by themselves
  assert.equal(wasTaken(some({ timeline: at(150) }), null), true);
  assert.equal(wasTaken(some({ action: "stop", closed_at: 200 }), 200), true);
  assert.equal(wasTaken(some({ action: "stop", closed_at: 200 }), 900), false);
  assert.equal(wasTaken(some({ action: "stop", phase: "acting" }), null), false);
  assert.equal(wasTaken(some({ action: "log", closed_at: 200 }), 200), false);
  assert.equal(wasTaken(some({ action: "capture", timeline: { ...at(null), captured: 110 } }), null), true);
});

test("missing stacks have a reason, and are promised only while they are captured", () => {
  const decided = { ...some({}).timeline, decided: 110 };
  assert.equal(withoutStacks(some({ phase: "capturing" })), "Stacks are being captured.");
  assert.equal(withoutStacks(some({ kind: "process_exited", phase: "acting" })), "Not captured: the process had already ended.");
  assert.equal(withoutStacks(some({ kind: "node_lost", phase: "acting" })), "Not captured: the node does not answer.");
  assert.equal(withoutStacks(some({ phase: "detected", action: "log", action_reason: "the policy only records" })), "Not captured: the policy only records.");
  assert.equal(withoutStacks(some({ phase: "acting", timeline: decided })), "Not captured: no launcher answered in time.");
  assert.equal(withoutStacks(some({ phase: "closed", closed_at: 200 })), "Not captured: nothing was ordered.");
});

test("kinds are named as people name them", () => {
  assert.equal(kindWords(some({ kind: "process_exited" })), "crash");
  assert.equal(kindWords(some({ kind: "node_lost" })), "node lost");
});

test("addresses survive any id", () => {
  const plain = { view: "job", tab: "overview", sight: {}, incident: null };
  assert.deepEqual(parse(incidentAddress("a/b c%", "i#1")), { ...plain, job: "a/b c%", incident: "i#1" });
  assert.deepEqual(parse("#/"), { view: "fleet" });
  assert.deepEqual(parse("#/jobs/x"), { ...plain, job: "x" });
  assert.deepEqual(parse("#/jobs/50%"), { ...plain, job: "50%" });
});

test("after a restart the advice follows from what the new attempt reports", () => {
  const restarted = some({ phase: "recovering", timeline: { ...some({}).timeline, restarted: 100 } });
  const now = (facts: Partial<JobSummary>) => awaited({ attempt: 2, world_size: 16, ranks_reporting: 0, ...facts } as JobSummary, restarted, 120).replace(/at [\d:]+;/, "at T;");
  assert.equal(now({}), "Wait: restarted at T; waiting for the first report of attempt 2.");
  assert.equal(now({ ranks_reporting: 3 }), "Wait: restarted at T; 3 of 16 ranks of attempt 2 report, none has completed a step.");
  assert.equal(now({ ranks_reporting: 16 }), "Wait: restarted at T; waiting for the first step of attempt 2.");
  assert.equal(now({ attempt: 1 }), "Wait: restarted at T; waiting for the first report.");
  assert.equal(awaited({ attempt: 1 } as JobSummary, some({ phase: "acting" }), 120), "");
  assert.equal(isFormer({ attempt: 2 }, restarted), true);
  assert.equal(isFormer({ attempt: 1 }, restarted), false);
});

test("a host that is not heard leads with its silence and the limit", () => {
  const quiet = { hosts: ["host-1"], ranks: [4, 5, 6, 7], since: 100, limit: 60 };
  assert.equal(quietWords(quiet, 125), "Node host-1 has not been heard for 25\u2009s; limit 1\u2009min");
  assert.equal(quietWords({ ...quiet, limit: null, hosts: ["a", "b", "c", "d"] }, 125), "Nodes a, b, c and 1 more have not been heard for 25\u2009s");
  assert.equal(quietStep(quiet), "Check whether node host-1 is up and reachable: neither its launcher nor its 4 ranks report.");
});

test("the ranks of a past incident are as of then", () => {
  const culprits = [{ rank: 3, host: "a", class: "behind", reason: "" }, { rank: 4, host: "a", class: "host_silent", reason: "" }];
  const then = ranksThen({ culprits, affected: [0, 1, 3, 2] }, 6);
  assert.deepEqual(then.culprits.map(({ rank, state }) => [rank, state]), [[3, "hung"], [4, "silent"]]);
  assert.deepEqual([then.waiting, then.others], [[0, 1, 2], [5]]);
  assert.deepEqual(ranksThen({ culprits, affected: [] }, 6).others, [], "nothing is known of the others");
});

test("why something was done about an incident that is over", () => {
  assert.equal(inPast("the policy is to restart"), "the policy was to restart");
  assert.equal(inPast("the policy only records"), "the policy only recorded");
  assert.equal(inPast("observe-only is on, no launcher runs this-is-it"), "observe-only was on, no launcher ran this-is-it");
});
