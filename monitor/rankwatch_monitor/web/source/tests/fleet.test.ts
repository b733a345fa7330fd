import assert from "node:assert/strict";
import { test } from "node:test";
import type { JobSummary } from "../src/api/types";
import { headline, matching, sorted } from "../src/logic/fleet";

const NOW = 1_000_000;
const job = (id: string, state: string, facts: Partial<JobSummary> = {}) =>
  ({ id, name: `${id}-name`, state, world_size: 8, started_at: NOW - 3600, ended_at: null, goodput: 0.9, open_incidents: 0, reason: "", ...facts }) as JobSummary;

const fleet = [
  job("old", "failed", { ended_at: NOW - 2 * 86_400 }), job("ok", "running", { goodput: 0.5, world_size: 64 }), job("failed", "failed", { ended_at: NOW - 60 }),
  job("slow", "running", { verdict: "worker" }), job("sus", "running", { open_incidents: 1, reason: "Suspected: rank 3" }), job("hung", "hung", { open_incidents: 1 }), job("done", "finished"),
];
const ids = (jobs: readonly { id: string }[]) => jobs.map(({ id }) => id).join(" ");

test("trouble stands first, then suspicions, recent failures, slow jobs", () => {
  assert.equal(ids(sorted(fleet, "urgency", NOW)), "hung sus failed slow ok old done");
});

test("the list is sorted as chosen", () => {
  assert.equal(ids(sorted(fleet, "name", NOW)), "done failed hung ok old slow sus");
  assert.equal(sorted(fleet, "most ranks", NOW)[0]!.id, "ok");
  assert.equal(sorted(fleet, "lowest goodput", NOW)[0]!.id, "ok");
  assert.equal(sorted([...fleet, job("new", "running", { started_at: NOW })], "newest", NOW)[0]!.id, "new");
});

test("suspicions and recent failures are counted in the headline", () => {
  assert.equal(headline(fleet, NOW), "1 of 4 active jobs in trouble, 1 suspected, 1 failed in the last 24 h");
  assert.equal(headline([job("sus", "running", { open_incidents: 1 })], NOW), "1 of 1 active job with a suspected hang");
  assert.equal(headline([job("ok", "running"), job("failed", "failed", { ended_at: NOW - 60 })], NOW), "One job, no trouble, 1 failed in the last 24 h");
  assert.equal(headline([job("old", "failed", { ended_at: NOW - 2 * 86_400 })], NOW), "No job is running");
});

test("jobs are found by words of name, id or reason, and by state", () => {
  assert.equal(ids(matching(fleet, "RANK suspected", "")), "sus");
  assert.equal(ids(matching(fleet, "", "failed")), "old failed");
  assert.equal(ids(matching(fleet, "old", "running")), "");
});
