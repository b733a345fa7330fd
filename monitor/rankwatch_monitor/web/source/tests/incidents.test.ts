import assert from "node:assert/strict";
import { test } from "node:test";
import type { Culprit, CulpritClass, Incident, JobSummary, VerdictKind } from "../src/api/types";
import { attempts, capturedWords, culpritRanks, focus, hosts, lastLines, merged, wasTaken, withoutStacks, withoutTraceback } from "../src/logic/incidents";
import { clock } from "../src/logic/text";
import { incidentAddress, parse } from "../src/logic/route";
import { group, incident as some } from "./samples";

const incident = (id: string, opened_at: number, closed_at: number | null, confirmed = true): Incident =>
  some({ id, opened_at, closed_at, confirmed, phase: closed_at === null ? "capturing" : "closed" });
const culprit = (rank: number, kind: CulpritClass, host = "a"): Culprit => ({ rank, host, class: kind, reason: "" });
const job = { state: "running" } as JobSummary;

test("a requested incident comes first, then the open one, then closed ones", () => {
  const list = [incident("c", 300, 310), incident("b", 200, null), incident("a", 100, 110)];
  assert.equal(focus(list, null, job)?.id, "b");
  assert.equal(focus(list, "a", job)?.id, "a");
  assert.equal(focus(list, "nope", job), null);
});

test("an incident that is over is in the list only, but for the one with which a job failed", () => {
  const list = [incident("a", 100, 110)];
  assert.equal(focus(list, null, job), null);
  assert.equal(focus(list, null, { state: "failed", ended_at: 200 }), null);
  assert.equal(focus(list, null, { state: "failed", ended_at: 110 })?.id, "a");
});

test("each attempt of a failed job has the step after which it ended", () => {
  const list = [some({ id: "b", attempt: 2, furthest_iteration: 614, title: "again" }), some({ id: "a", attempt: 1, furthest_iteration: 639 })];
  assert.deepEqual(attempts({ attempt: 3, iteration: 700 }, list).map(({ attempt, step, id }) => [attempt, step, id]), [[1, 639, "a"], [2, 614, "b"], [3, 700, null]]);
});

test("when stacks were captured is stated with how long that was after the last progress", () => {
  const words = (facts: object, kind: VerdictKind = "section_overrun") => capturedWords({ kind, timeline: { ...some({}).timeline, ...facts } }, 200).replaceAll(/\s/g, " ");
  assert.equal(words({ since: 100.4, captured: 111.6 }), `captured ${clock(111.6, 200)}, 11 s after the last progress; `, "as the two clocks show it");
  assert.equal(words({ since: 100, captured: 100.2 }, "process_exited"), `captured ${clock(100, 200)}; `, "a crash leaves its traceback at once");
  assert.equal(words({ since: 100 }), "");
});

test("an open suspicion is shown, a resolved one is not", () => {
  const list = [incident("b", 200, 230, false), incident("a", 100, 110)];
  assert.equal(focus(list, "b", job)?.id, "b");
  assert.equal(focus(list.slice(0, 1), null, job), null);
  assert.equal(focus([incident("b", 200, null, false)], null, job)?.id, "b");
});

test("a changed incident replaces its old version, newest first", () => {
  const list = merged([incident("b", 200, null), incident("a", 100, 110)], incident("b", 200, 230));
  assert.deepEqual(list.map(({ id, closed_at }) => [id, closed_at]), [["b", 230], ["a", 110]]);
});

test("incidents of one moment keep their order while they change", () => {
  const list = [incident("c", 200, null), incident("b", 100, null), incident("a", 100, 110)];
  assert.deepEqual(merged(list, incident("a", 100, 120)).map(({ id }) => id), ["c", "b", "a"]);
  assert.deepEqual(merged(list, incident("d", 100, null)).map(({ id }) => id), ["c", "d", "b", "a"]);
});

test("culprits are listed as runs of ranks", () => {
  const named = (rank: number) => culprit(rank, "dead", "n1");
  assert.equal(culpritRanks([]), "none identified");
  assert.equal(culpritRanks([named(2)]), "rank 2");
  assert.equal(culpritRanks([8, 9, 10].map(named)), "ranks 8–10");
  assert.deepEqual(hosts([8, 9].map(named)), ["n1"]);
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
  assert.equal(withoutStacks(some({ kind: "process_exited", phase: "acting" })), "No traceback and no stack was received of this crash.");
  const crash = { culprits: [2, 3].map((rank) => culprit(rank, "dead")) };
  const traceback = group({ ranks: [3], is_culprit: true, process_state: "exited", note: "ValueError: bad batch" });
  assert.deepEqual(withoutTraceback(crash, [traceback]).map(({ rank }) => rank), [2]);
  assert.deepEqual(withoutTraceback({ culprits: [culprit(2, "behind")] }, []), []);
  assert.equal(withoutStacks(some({ kind: "node_lost", phase: "acting" })), "Not captured: the node does not answer.");
  assert.equal(withoutStacks(some({ phase: "detected", action: "log", action_reason: "the policy only records", withheld: "policy", timeline: decided })), "Not captured: no launcher answered in time.");
  assert.equal(withoutStacks(some({ phase: "detected", action: "log", action_reason: "observe-only is on" })), "Not captured: observe-only is on.");
  assert.equal(withoutStacks(some({ closed_at: 200, phase: "closed", action: "log", action_reason: "the policy only records", withheld: "policy" })), "Not captured: the policy only records.");
  assert.equal(withoutStacks(some({ phase: "acting", timeline: decided })), "Not captured: no launcher answered in time.");
  assert.equal(withoutStacks(some({ phase: "closed", closed_at: 200 })), "Not captured: nothing was ordered.");
});

test("addresses survive any id", () => {
  const plain = { view: "job", tab: "overview", sight: {}, incident: null };
  assert.deepEqual(parse(incidentAddress("a/b c%", "i#1")), { ...plain, job: "a/b c%", incident: "i#1" });
  assert.deepEqual(parse("#/"), { view: "fleet", hours: 12 });
  assert.deepEqual(parse("#/jobs/x"), { ...plain, job: "x" });
  assert.deepEqual(parse("#/jobs/50%"), { ...plain, job: "50%" });
});


test("of a log its last lines are shown, from the traceback on, without torch's prefix", () => {
  const steps = Array.from({ length: 9 }, (_, i) => `step ${i}`);
  assert.deepEqual(lastLines(steps), steps.slice(1));
  assert.deepEqual(lastLines([...steps, "[rank1]: Traceback (most recent call last):", "[rank1]:   File \"a.py\"", "[rank1]: ValueError: bad"]), [
    "Traceback (most recent call last):", "  File \"a.py\"", "ValueError: bad",
  ]);
  assert.deepEqual(lastLines([]), []);
});
