import assert from "node:assert/strict";
import { test } from "node:test";
import type { JobSummary } from "../src/api/types";
import { clock } from "../src/logic/text";
import { advice } from "./samples";
import { alarm, headline, matching, needsPerson, sharedNames, sinceWords, sorted, troubleAge, whyOf } from "../src/logic/fleet";

const NOW = 1_000_000;
/** Of the digest. */
const HOURS = 12;
const job = (id: string, state: string, facts: Partial<JobSummary> = {}) =>
  ({ id, name: `${id}-name`, state, world_size: 8, started_at: NOW - 3600, ended_at: null, goodput: 0.9, open_incidents: 0, reason: "", ...facts }) as JobSummary;

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
  assert.equal(headline(jobs, NOW, HOURS), "3 jobs need you (1 hung, 1 lost, 1 slow); nothing for you to do yet: 1 hung, 1 suspected, 1 restarting");
});

test("a job that failed lately has a colour", () => {
  assert.deepEqual(fleet.slice(0, 3).map((each) => alarm(each, NOW, HOURS)), ["", "", "failed"]);
});

test("the list is sorted as chosen", () => {
  assert.equal(ids(sorted(fleet, "name", NOW, HOURS)), "done failed hung ok old slow sus");
  assert.equal(sorted(fleet, "most ranks", NOW, HOURS)[0]!.id, "ok");
  assert.equal(sorted(fleet, "lowest goodput", NOW, HOURS)[0]!.id, "ok");
  const waits = job("waits", "running", { goodput: 0.4 });
  assert.equal(sorted([...fleet, waits], "lowest goodput", NOW, HOURS)[0]!.id, "waits", "by the figure that the list shows");
  assert.equal(sorted([...fleet, job("new", "running", { started_at: NOW })], "newest", NOW, HOURS)[0]!.id, "new");
});

test("suspicions and recent failures are counted in the headline", () => {
  assert.equal(headline(fleet, NOW, HOURS), "2 jobs need you (1 hung, 1 failed); nothing for you to do yet: 1 slow, 1 suspected");
  assert.equal(headline([job("sus", "suspected")], NOW, HOURS), "1 job suspected");
  assert.equal(headline([job("ok", "running"), job("failed", "failed", { ended_at: NOW - 60, ...todo })], NOW, HOURS), "1 job needs you (1 failed)");
  assert.equal(headline([job("old", "failed", { ended_at: NOW - 2 * 86_400 })], NOW, HOURS), "No job is running");
});

test("jobs are found by words of name, id, reason or node, and by label", () => {
  assert.equal(ids(matching(fleet, "RANK suspected", "")), "sus");
  assert.equal(ids(matching(fleet, "", "failed")), "old failed");
  assert.equal(ids(matching(fleet, "old", "running")), "");
  assert.deepEqual(["running", "slow", "suspected"].map((label) => ids(matching(fleet, "", label))), ["ok", "slow", "sus"]);
  assert.equal(ids(matching(fleet, "host-7", "", new Map([["ok", "host-6 host-7"], ["hung", "host-1"]]))), "ok");
});

test("a job in trouble has one word and its age", () => {
  const shown = (state: string, facts: Partial<JobSummary> = {}) => {
    const each = job("a", state, { trouble_since: NOW - 725, ...facts });
    return `${each.state} ${troubleAge(each, NOW)}`.replaceAll("\u2009", " ");
  };
  assert.equal(shown("hung"), "hung 12 min");
  assert.equal(shown("lost"), "lost 12 min");
  assert.equal(shown("restarting", { trouble_since: NOW - 45 }), "restarting down 45 s");
  assert.equal(shown("suspected"), "suspected 12 min");
  assert.equal(shown("slow"), "slow 12 min");
  assert.equal(shown("no step"), "no step 12 min");
  assert.equal(shown("failed", { ended_at: NOW - 725 }), "failed 12 min ago");
  assert.equal(shown("running", { trouble_since: null }), "running ");
  assert.equal(troubleAge(job("a", "hung"), NOW), "", "an older monitor does not state it");
  const lost = job("a", "lost", { trouble_since: NOW - 400, headline: "Nothing was received from any rank or launcher for 6 min 40 s" });
  assert.equal(whyOf(lost, NOW), `Nothing was received from any rank or launcher for ${troubleAge(lost, NOW)}`, "one age, rounded once");
});

test("a suspicion is marked as one by its state alone, an order that is carried out is none", () => {
  const suspected = job("a", "suspected", { open_incidents: 1, reason: "Rank 3 is behind.", headline: "Rank 3 is behind" });
  assert.deepEqual([whyOf(suspected, NOW), alarm(suspected, NOW, HOURS)], ["Rank 3 is behind", "suspected"]);
  const ordered = job("a", "running", { open_incidents: 1, reason: "a capture was ordered", headline: "A capture was ordered" });
  assert.deepEqual([whyOf(ordered, NOW), alarm(ordered, NOW, HOURS)], ["A capture was ordered", ""]);
  assert.equal(headline([ordered], NOW, HOURS), "One job, no trouble");
});

test("the headline separates what needs a person from what restarts by itself, over the hours of the digest", () => {
  const ill = [job("a", "hung", todo), job("b", "hung", todo), job("c", "lost", todo), job("d", "restarting"), job("e", "restarting"), job("f", "failed", { ended_at: NOW - 20 * 3600, ...todo })];
  assert.equal(headline(ill, NOW, HOURS), "3 jobs need you (2 hung, 1 lost); nothing for you to do yet: 2 restarting");
  assert.equal(headline(ill, NOW, 24), "4 jobs need you (2 hung, 1 lost, 1 failed); nothing for you to do yet: 2 restarting");
  assert.equal(headline([job("d", "restarting")], NOW, HOURS), "1 job restarting");
});

test("the headline counts the rows with a next action, and no other", () => {
  const jobs = [job("a", "hung", none), job("b", "hung", todo), job("c", "slow", todo), job("d", "slow", none)];
  assert.equal(headline(jobs, NOW, HOURS), "2 jobs need you (1 hung, 1 slow); nothing for you to do yet: 1 hung, 1 slow");
  assert.deepEqual(jobs.filter((each) => needsPerson(each, NOW, HOURS)).map(({ id }) => id), ["b", "c"]);
  assert.equal(headline([jobs[0]!, jobs[3]!], NOW, HOURS), "1 job hung, 1 slow");
  assert.equal(headline([jobs[3]!], NOW, HOURS), "One job, slower than it could be");
});

test("jobs of one name are told apart by their ids", () => {
  assert.deepEqual([...sharedNames([job("a", "hung", { name: "gpt" }), job("b", "hung", { name: "gpt" }), job("c", "hung")])], ["gpt"]);
});

test("an age agrees with the clock of the page and the time beside it, to the second", () => {
  const each = job("a", "hung", { trouble_since: NOW + 15.2 });
  assert.equal(troubleAge(each, NOW + 40.9), "25\u2009s");
  assert.equal(troubleAge(each, NOW + 75.1), "1\u2009min");
});

test("a restarting job is down since its trouble began", () => {
  const each = job("a", "restarting", { trouble_since: NOW - 13, recovering_since: NOW - 2 });
  assert.equal(troubleAge(each, NOW), "down 13\u2009s");
  assert.equal(sinceWords(each, NOW), `since ${clock(NOW - 13, NOW)}`);
  assert.equal(sinceWords(job("a", "hung", { trouble_since: NOW - 13, recovering_since: null }), NOW), `since ${clock(NOW - 13, NOW)}`);
  assert.equal(sinceWords(job("a", "finished", { ended_at: NOW - 13 }), NOW), `at ${clock(NOW - 13, NOW)}`);
});
