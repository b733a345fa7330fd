import assert from "node:assert/strict";
import { test } from "node:test";
import type { Culprit, IncidentDetail, StackGroup } from "../src/api/types";
import { culpritLabel, stacksText, withoutStack } from "../src/logic/export";
import { group as some, incident } from "./samples";

const culprit = (rank: number): Culprit => ({ rank, host: "node-0", class: "behind", reason: "it has not entered all_reduce #7" });
const group = (ranks: number[], facts: Partial<StackGroup> = {}) => some({
  ranks, label: `${ranks.length} ranks`, frames: [{ function: "read", file: "/srv/data.py", line: 41, of_script: true }], is_culprit: true, ...facts,
});
const detail = (facts: Partial<IncidentDetail>): IncidentDetail => ({ ...incident({ culprits: [culprit(3)] }), stack_groups: [], stack_errors: [], collectives: [], nccl: [], flight_dumps: null, crash: null, logs: [], advice: null, ...facts });

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

test("ranks without a stack for one reason are one line", () => {
  const errors = [8, 9, 10, 11].map((rank) => ({ rank, error: "host-1 did not answer the capture", process_state: "" }));
  assert.deepEqual(withoutStack([{ rank: 4, error: "no such process", process_state: "" }, ...errors]), ["No stack of rank 4: no such process", "No stack of ranks 8–11: host-1 did not answer the capture"]);
});

