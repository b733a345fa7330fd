import assert from "node:assert/strict";
import { test } from "node:test";
import type { Culprit, CulpritClass, Incident, JobSummary, StackGroup, VerdictKind } from "../src/api/types";
import { capturedWords, culpritRanks, faultOf, focus, hosts, hostsThen, innermost, kindWords, limitName, listWords, merged, ranksThen, repeats, titleOf, wasTaken, withoutStacks, withoutTraceback } from "../src/logic/incidents";
import { clock } from "../src/logic/text";
import { incidentAddress, parse } from "../src/logic/route";
import { group, incident as some } from "./samples";

const incident = (id: string, opened_at: number, closed_at: number | null, confirmed = true): Incident =>
  some({ id, opened_at, closed_at, confirmed, phase: closed_at === null ? "capturing" : "closed" });
const culprit = (rank: number, kind: CulpritClass, host = "a"): Culprit => ({ rank, host, class: kind, reason: "" });
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

test("when stacks were captured is stated with how long that was after the last progress", () => {
  const words = (facts: object, kind: VerdictKind = "section_overrun") => capturedWords({ kind, timeline: { ...some({}).timeline, ...facts } }, 200).replaceAll(/\s/g, " ");
  assert.equal(words({ since: 100.4, captured: 111.6 }), `captured ${clock(111.6, 200)}, 11 s after the last progress; `, "as the two clocks show it");
  assert.equal(words({ since: 100, captured: 100.2 }, "process_exited"), `captured ${clock(100, 200)}; `, "a crash leaves its traceback at once");
  assert.equal(words({ since: 100 }), "");
});

test("ranks of an incident were in the functions of their stacks", () => {
  const group = (ranks: number[], name: string) => ({ ranks, frames: [{ function: name, file: "f.py", line: 1 }, { function: "main", file: "f.py", line: 9 }] }) as StackGroup;
  const groups = [group([3], "load_batch"), group([0, 1], "all_reduce"), { ...group([2], ""), frames: [] }];
  assert.deepEqual([[3], [0, 1], [0, 3], [2], [7]].map((ranks) => innermost(groups, ranks)), ["load_batch", "all_reduce", "load_batch, all_reduce", "", ""]);
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

const quiet = {
  hosts: ["host-1"], ranks: [4, 5, 6, 7], since: 100, limit: 60, other_jobs: 0,
  headline: "Node host-1 has not been heard since 00:01:40 UTC; its 4 ranks and its launcher are silent",
};

test("a host from which other jobs are heard is up: its job's own processes are what to look at", () => {
  const up = { ...quiet, other_jobs: 7, headline: "8 ranks on host-1 silent since 00:01:40 UTC; the node is up (7 other jobs report)" };
  assert.equal(faultOf({ quiet_host: up }, some({})), "silent on a node that is up");
});

test("an incident has the title of the host that is not heard, while it is open", () => {
  const job = { quiet_host: quiet };
  const open = some({ title: "The ranks are at different points", kind: "section_overrun" });
  assert.equal(titleOf(job, open, 125), quiet.headline.replace(" UTC", ""));
  assert.equal(faultOf(job, open), "node not heard");
  assert.equal(titleOf(job, { ...open, closed_at: 120 }, 125), "The ranks are at different points");
  assert.equal(faultOf({ quiet_host: null }, open), "section over its limit");
});

test("the ranks of a past incident are as of then", () => {
  const culprits = [culprit(3, "behind"), culprit(4, "host_silent")];
  const then = ranksThen({ culprits, affected: [0, 1, 3, 2] }, 6);
  assert.deepEqual(then.culprits.map(({ rank, state }) => [rank, state]), [[3, "hung"], [4, "silent"]]);
  assert.deepEqual([then.waiting, then.others], [[0, 1, 2], [5]]);
  assert.deepEqual(ranksThen({ culprits, affected: [] }, 6).others, [], "nothing is known of the others");
});

test("the nodes of the ranks of a past incident are those of now, unless a culprit has moved", () => {
  const now = ["a", "a", "b", "b"];
  const culprit = (host: string) => [{ rank: 1, host, state: "hung", kind: "behind" }] as ReturnType<typeof ranksThen>["culprits"];
  assert.deepEqual(hostsThen([0, 2, 3], culprit("a"), (rank) => now[rank]), ["a", "b"]);
  assert.deepEqual(hostsThen([0, 2, 3], culprit("spare"), (rank) => now[rank]), []);
  assert.deepEqual(hostsThen([0, 7], culprit("a"), (rank) => now[rank]), [], "a rank that is no more");
});

test("in a list each incident has what distinguishes it, and what it has in common once", () => {
  const [first, again] = [638, 614].map((step, i) => some({ attempt: i + 1, furthest_iteration: step, title: "Rank 5 on host-0 exited with code 1: RuntimeError: CUDA error: device-side assert triggered" }));
  assert.equal(listWords(first!, undefined), "attempt 1, after step 638: Rank 5 on host-0 exited with code 1: RuntimeError: CUDA error: device-side assert triggered");
  assert.equal(listWords(again!, first), "attempt 2, after step 614: the same");
  assert.equal(listWords({ ...again!, title: "another" }, first), "attempt 2, after step 614: another");
});

test("incidents next to each other that read the same are one group, suspicions apart", () => {
  const of = (id: string, title: string, confirmed = true) => some({ id, title, confirmed });
  const list = [of("f", "Rank 5 crashed"), of("e", "Rank 5 crashed"), of("d", "Rank 6 crashed"), of("c", "Rank 5 crashed"), of("b", "Rank 5 crashed", false), of("a", "Rank 5 crashed", false)];
  assert.deepEqual(repeats(list, ({ title }) => title!).map((group) => group.map(({ id }) => id)), [["f", "e"], ["d"], ["c"], ["b", "a"]]);
  assert.deepEqual(repeats([], () => ""), []);
});

test("a limit is called by its source, and just a limit where that is not known", () => {
  const names = (["learned", "configured", null] as const).map((limit_source) => limitName({ limit_source }));
  assert.deepEqual(names, ["learned limit", "configured limit", "limit"]);
});
