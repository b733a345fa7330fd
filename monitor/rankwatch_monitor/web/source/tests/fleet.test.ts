import assert from "node:assert/strict";
import { test } from "node:test";
import type { Digest, JobSummary, Tone } from "../src/api/types";
import { advice } from "./samples";
import { ageOf, events, headline, matching, needsPerson, sharedNames, sorted } from "../src/logic/fleet";

const NOW = 1_000_000;
/** Of the digest. */
const HOURS = 12;
const TONES: Record<string, Tone> = { hung: "bad", lost: "bad", failed: "bad", slow: "warns", suspected: "waits", restarting: "waits", running: "calm", finished: "over" };
const job = (id: string, state: string, facts: Partial<JobSummary> = {}) =>
  ({ id, tone: TONES[state], advice: null, headline: "", name: `${id}-name`, state, world_size: 8, started_at: NOW - 3600, ended_at: null, goodput: 0.9, open_incidents: 0, reason: "", ...facts }) as JobSummary;

/** Something for a person to do. */
const todo = { advice: advice({}) };
const none = { advice: null };

const fleet = [
  job("old", "failed", { ended_at: NOW - 2 * 86_400, ...todo }), job("ok", "running", { goodput: 0.5, world_size: 64 }), job("failed", "failed", { ended_at: NOW - 60, ...todo }),
  job("slow", "slow"), job("sus", "suspected", { open_incidents: 1, reason: "Rank 3" }), job("hung", "hung", { open_incidents: 1, ...todo }), job("done", "finished"),
];
const ids = (jobs: readonly { id: string }[]) => jobs.map(({ id }) => id).join(" ");

test("what needs a person stands first, then what is in trouble while Rankwatch acts, in the order of the headline", () => {
  assert.equal(ids(sorted(fleet, "urgency", NOW, HOURS)), "hung failed slow sus ok old done");
  const each = [["a", "restarting"], ["b", "slow"], ["c", "hung"], ["d", "lost"], ["e", "suspected"], ["f", "hung"]] as const;
  const jobs = each.map(([id, state]) => job(id, state, "bdf".includes(id) ? todo : none));
  assert.equal(ids(sorted(jobs, "urgency", NOW, HOURS)), "f d b c e a");
  assert.equal(headline(jobs, NOW, HOURS), "3 need you · 2 recovering");
});

test("the list is sorted as chosen", () => {
  assert.equal(ids(sorted(fleet, "name", NOW, HOURS)), "done failed hung ok old slow sus");
  assert.equal(sorted(fleet, "most ranks", NOW, HOURS)[0]!.id, "ok");
  assert.equal(sorted(fleet, "lowest goodput", NOW, HOURS)[0]!.id, "ok");
  const waits = job("waits", "running", { goodput: 0.4 });
  assert.equal(sorted([...fleet, waits], "lowest goodput", NOW, HOURS)[0]!.id, "waits", "by the figure that the list shows");
  assert.equal(sorted([...fleet, job("new", "running", { started_at: NOW })], "newest", NOW, HOURS)[0]!.id, "new");
});

test("recent failures are counted in the headline, older ones are over", () => {
  assert.equal(headline(fleet, NOW, HOURS), "2 need you · 1 recovering · 1 slow");
  assert.equal(headline([job("sus", "suspected")], NOW, HOURS), "1 recovering");
  assert.equal(headline([job("ok", "running"), job("failed", "failed", { ended_at: NOW - 60, ...todo })], NOW, HOURS), "1 needs you");
  assert.equal(headline([job("old", "failed", { ended_at: NOW - 2 * 86_400, ...todo })], NOW, HOURS), "No job is running");
  assert.equal(headline([job("ok", "running"), job("b", "running")], NOW, HOURS), "2 jobs, no trouble");
});

test("an age is in its larger unit, and of what is over as ago", () => {
  assert.equal(ageOf({ since: NOW - 800, ended_at: null }, NOW).replace("\u2009", " "), "13 min");
  assert.equal(ageOf({ since: NOW - 80, ended_at: NOW - 80 }, NOW).replace("\u2009", " "), "1 min ago");
  assert.equal(ageOf({ since: null, ended_at: null }, NOW), "");
});

test("what happened is one list, the newest first", () => {
  const link = (text: string, at: number | null) => ({ text, job: "j", incident: "", host: "", at });
  const digest = { since: 0, until: NOW, summary: "", notes: [], lines: [{ kind: "a", text: "two crashes", links: [link("x", NOW - 60), link("y", NOW - 10)], more: 0 }, { kind: "b", text: "a job ran", links: [], more: 0 }] } as Digest;
  assert.deepEqual(events(digest, NOW).map(({ text }) => text), ["y", "x", "a job ran"]);
});

test("jobs are found by words of name, id, reason or node, and by label", () => {
  assert.equal(ids(matching(fleet, "RANK suspected", "")), "sus");
  assert.equal(ids(matching(fleet, "", "failed")), "old failed");
  assert.equal(ids(matching(fleet, "old", "running")), "");
  assert.deepEqual(["running", "slow", "suspected"].map((label) => ids(matching(fleet, "", label))), ["ok", "slow", "sus"]);
  assert.equal(ids(matching(fleet, "host-7", "", new Map([["ok", "host-6 host-7"], ["hung", "host-1"]]))), "ok");
});

test("only what has something to do for a person needs one", () => {
  const jobs = [job("b", "hung", todo), job("c", "slow", todo), job("d", "slow", none), job("e", "restarting", { advice: advice({ waits: true }) })];
  assert.deepEqual(jobs.filter((each) => needsPerson(each, NOW, HOURS)).map(({ id }) => id), ["b", "c"]);
});

test("jobs of one name are told apart by their ids", () => {
  assert.deepEqual([...sharedNames([job("a", "hung", { name: "gpt" }), job("b", "hung", { name: "gpt" }), job("c", "hung")])], ["gpt"]);
});

