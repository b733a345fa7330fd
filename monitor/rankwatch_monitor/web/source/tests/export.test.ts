import assert from "node:assert/strict";
import { test } from "node:test";
import type { Culprit, IncidentDetail, JobSummary, StackGroup } from "../src/api/types";
import { culpritLabel, incidentText, jobText, stacksText, withoutStack } from "../src/logic/export";
import { advice, course, group as some, incident } from "./samples";

const culprit = (rank: number): Culprit => ({ rank, host: "node-0", class: "behind", reason: "it has not entered all_reduce #7" });
const group = (ranks: number[], facts: Partial<StackGroup> = {}) => some({
  ranks, label: `${ranks.length} ranks`, frames: [{ function: "read", file: "/srv/data.py", line: 41, of_script: true }], is_culprit: true, ...facts,
});
const detail = (facts: Partial<IncidentDetail>): IncidentDetail => ({ ...incident({ culprits: [culprit(3)] }), stack_groups: [], stack_errors: [], collectives: [], nccl: [], flight_dumps: null, crash: null, logs: [], log_place: { command: "", host: "", note: "", newest: false }, advice: null, ...facts });
const job = { id: "j", name: "pretrain", world_size: 64 } as JobSummary;

test("a group of which one rank is the culprit is not the culprit", () => {
  const many = Array.from({ length: 64 }, (_, rank) => rank);
  assert.equal(culpritLabel(group(many), detail({})), "culprit: rank 3");
  assert.equal(culpritLabel(group([3]), detail({})), "culprit");
  assert.equal(culpritLabel(group([3, 4]), detail({ culprits: [3, 4].map(culprit) })), "culprits");
  assert.equal(culpritLabel(group(many, { is_culprit: false }), detail({})), "");
  assert.equal(culpritLabel(group([3]), detail({ confirmed: false })), "suspect");
});

test("stacks are copied with their ranks, exceptions and what is missing", () => {
  const text = stacksText(detail({
    stack_groups: [group([3], { note: "ValueError: bad shard" }), group([0, 1, 2], { is_culprit: false, process_state: "stopped" })],
    stack_errors: [{ rank: 4, error: "no such process", process_state: "" }],
  }));
  assert.equal(text, [
    "rank 3 (culprit)", "  ValueError: bad shard", "  read (/srv/data.py:41)", "",
    "ranks 0–2 (stopped)", "  read (/srv/data.py:41)", "",
    "No stack of rank 4: no such process",
  ].join("\n"));
});

test("the text has what the page has: headline, next action, culprits, phases, collectives, stacks", () => {
  const text = incidentText({ ...job, advice: advice({ text: "Nothing to do: the restart is under way", waits: true }) }, detail({
    headline: "Rank 3 has not entered all_reduce #7", reason: "Rank 3 on node-0 has been in section step for 14.2 s.",
    timeline: { since: 1e9, detected: 1e9 + 10, decided: null, captured: null, restarted: null, first_step: null },
    phases: course(1e9, { detect: 1e9 + 10 }),
    collectives: [{ group: "dp", operation: "all_reduce", enqueued: 7, completed: 6, ranks: [0, 1, 2] }],
    stack_groups: [group([3])],
    logs: [{ title: "Log of rank 3", rank: 3, host: "node-0", stream: "stderr", path: "", lines: ["step 41", "ValueError: bad shard"], text: "The last 2 lines.", place: { command: "tail /l", host: "node-0", note: "", newest: false } }],
  }), "http://m/#/jobs/j/incidents/i", 1e9 + 20);
  assert.ok(text.startsWith("Rank 3 has not entered all_reduce #7\nRank 3 on node-0 has been"));
  for (const part of [
    "Since:    2001-09-09 01:46:40 UTC", "What to do now\nNothing to do: the restart", "rank 3 on node-0: behind, it has not",
    "Detect 10.0 s", "dp: ranks 0–2 entered all_reduce number 7, completed 6", "rank 3 (culprit)",
    "Log of rank 3 on node-0\nThe last 2 lines.\n  step 41\n  ValueError: bad shard\nOn node-0: tail /l", "http://m/#/jobs/j/incidents/i",
  ]) assert.ok(text.includes(part), part);
});

test("ranks without a stack for one reason are one line", () => {
  const errors = [8, 9, 10, 11].map((rank) => ({ rank, error: "host-1 did not answer the capture", process_state: "" }));
  assert.deepEqual(withoutStack([{ rank: 4, error: "no such process", process_state: "" }, ...errors]), ["No stack of rank 4: no such process", "No stack of ranks 8–11: host-1 did not answer the capture"]);
});

test("a lost job as text has since when, and its steps with their commands", () => {
  const lost = { ...job, attempt: 1, state: "lost", headline: "Nothing was received", last_heard: 1e9, iteration: 498, advice: advice({ steps: [{ text: "Check whether it runs.", command: "ssh a ps", host: "", note: "" }, { text: "Launch it again.", command: "", host: "", note: "" }] }) } as unknown as JobSummary;
  assert.equal(jobText(lost, "http://m/#/jobs/j"), [
    "Nothing was received", "",
    "Job:      pretrain (j), 64 ranks, attempt 1", "State:    lost", "Since:    2001-09-09 01:46:40 UTC", "Step:     498", "Page:     http://m/#/jobs/j", "",
    "What to do now", "1. Check whether it runs.", "   ssh a ps", "2. Launch it again.", "",
  ].join("\n"));
});
