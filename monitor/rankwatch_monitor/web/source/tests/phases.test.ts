import assert from "node:assert/strict";
import { test } from "node:test";
import { addingUp, costOf, costText, detectedWords, phases } from "../src/logic/phases";
import { clock, duration } from "../src/logic/text";
import { incident } from "./samples";

const healed = { since: 100, detected: 110.2, decided: 110.22, captured: 111.5, restarted: 115, first_step: 121.3 };

const RUNS = { ended_at: null, last_heard: null };

test("a closed incident has every phase, and together they make the downtime", () => {
  const found = phases(incident({ timeline: healed, closed_at: 122 }), 500);
  assert.deepEqual(found.map((phase) => phase.name), ["Detect", "Decide", "Capture", "Restart", "Recover"]);
  const sum = found.reduce((total, phase) => total + phase.seconds, 0);
  assert.ok(Math.abs(sum - 21.3) < 1e-9);
  assert.equal(costOf(incident({ timeline: healed, closed_at: 122 }), RUNS, 500), 121.3 - 100);
});

test("the lost steps are the last part of what a restart cost", () => {
  const resumed = incident({ timeline: healed, closed_at: 122, lost_steps_s: 7, steps_lost: 8 });
  const found = phases(resumed, 500);
  assert.deepEqual(found.slice(-2).map(({ name, note, seconds }) => [name, note, Math.round(seconds * 10) / 10]), [["Recover", undefined, 6.3], ["Lost steps", "8 steps, the first counts as Recover", 7]]);
  assert.ok(Math.abs(found.reduce((sum, { seconds }) => sum + seconds, 0) - costOf(resumed, RUNS, 500)) < 1e-9);
  assert.equal(phases({ ...resumed, lost_steps_s: 0 }, 500).at(-1)!.name, "Recover", "none");
});

test("durations that are shown add up to their sum as it is shown", () => {
  const shown = (...seconds: number[]) => addingUp(seconds).map((each) => duration(each).replaceAll("\u2009", " "));
  assert.deepEqual(shown(11.04, 1.04, 1.54), ["11.0 s", "1.1 s", "1.5 s"], "13.6 s, as 13.62");
  assert.deepEqual(shown(0.24, 0, 2.06), ["240 ms", "0 s", "2.1 s"], "exact below a second");
  assert.deepEqual(shown(61.4, 61.4, 61.4), ["1 min 1 s", "1 min 2 s", "1 min 1 s"], "3 min 4 s, as 184.2");
});

test("the time until the limit is a part of the detection", () => {
  const first = (facts: object) => phases(incident({ timeline: healed, closed_at: 122, ...facts }), 500)[0]!;
  assert.deepEqual([first({ limit: 10, elapsed: 10.2 })].map(({ name, ends, seconds, limit }) => [name, ends, Math.round(seconds * 10) / 10, limit]), [["Detect", "detected", 10.2, 10]]);
  assert.equal(first({ limit: 60, elapsed: 60 }).limit, undefined, "detected before its limit");
  assert.equal(first({ timeline: { ...healed, since: null }, limit: 10, elapsed: 11 }).limit, undefined);
});

test("an incident without a first new step ends with what was under way, and its phases make its cost", () => {
  const crash = { ...healed, since: 110.2, captured: null, restarted: null, first_step: null };
  const over = incident({ timeline: crash, kind: "process_exited", closed_at: 113.2 });
  const last = phases(over, 500).at(-1)!;
  assert.deepEqual([last.name, last.ends, last.to], ["Restart", "given up", 113.2]);
  const failed = phases(over, 500, { state: "failed", ended_at: 113.2, last_heard: null }).at(-1)!;
  assert.deepEqual([failed.name, failed.ends, failed.to], ["Stop", "job failed", 113.2], "nothing was restarted");
  assert.ok(Math.abs(phases(over, 500).reduce((sum, { seconds }) => sum + seconds, 0) - costOf(over, RUNS, 500)) < 1e-9);
  assert.equal(phases(incident({ timeline: { ...healed, first_step: null }, closed_at: 130 }), 500).at(-1)!.name, "Recover");
});

test("an open incident ends with the current phase", () => {
  const found = phases(incident({ timeline: { ...healed, captured: null, restarted: null, first_step: null } }), 113.22);
  const last = found.at(-1)!;
  assert.equal(last.name, "Capture");
  assert.equal(last.to, null);
  assert.ok(Math.abs(last.seconds - 3) < 1e-9);
});

test("unreached marks are left out, and restart phases where the action is no restart", () => {
  const logged = { ...healed, captured: 111, restarted: null, first_step: null };
  const logOnly = incident({ timeline: logged, closed_at: 130, action: "log" });
  assert.deepEqual(phases(logOnly, 500).map((phase) => phase.ends), ["detected", "decided", "captured", "closed"]);
  const open = phases({ ...logOnly, closed_at: null, phase: "detected" }, 500).at(-1)!;
  assert.deepEqual([open.name, open.from, open.to], ["Unresolved", 111, null]);
  assert.equal(costOf(logOnly, RUNS, 500), 30);
});

test("an open incident costs until now, until its job ended, or until the job was last heard of", () => {
  const open = incident({ timeline: { ...healed, since: 100, first_step: null }, closed_at: null });
  assert.equal(costOf(open, RUNS, 500), 400);
  assert.equal(costOf(open, { ended_at: null, last_heard: 300 }, 500), 200);
  assert.equal(costOf(open, { ended_at: 250, last_heard: null }, 500), 150);
  const unknown = incident({ timeline: { ...healed, since: null, detected: null, first_step: null }, opened_at: 120, closed_at: null });
  assert.equal(costOf(unknown, RUNS, 500), 380);
});

test("clocks that disagree make no negative phase", () => {
  const found = phases(incident({ timeline: { ...healed, decided: 110.1 }, closed_at: 122 }), 500);
  assert.equal(found[1]!.seconds, 0);
});

test("an incident without a known start begins with its detection", () => {
  assert.equal(phases(incident({ timeline: { ...healed, since: null }, closed_at: 122 }), 500)[0]!.seconds, 0);
  assert.deepEqual(phases(incident({ timeline: { ...healed, since: null, detected: null }, closed_at: 122 }), 500), []);
});

const suspected = { ...healed, detected: 110, decided: null, captured: 111, restarted: null, first_step: null };

test("a suspicion is confirming from the capture of its stacks on, until it is over", () => {
  const open = phases(incident({ timeline: suspected, confirmed: false, phase: "confirming" }), 130);
  assert.deepEqual(open.map(({ name, to }) => [name, to]), [["Detect", 110], ["Capture", 111], ["Confirm", null]]);
  assert.equal(open[2]!.seconds, 19);
  const over = phases(incident({ timeline: suspected, confirmed: false, closed_at: 140 }), 500);
  assert.deepEqual(over.at(-1), { name: "Confirm", ends: "closed", from: 111, to: 140, seconds: 29 });
  const without = phases(incident({ timeline: { ...suspected, captured: null }, confirmed: false }), 130);
  assert.deepEqual(without.map(({ name }) => name), ["Detect", "Confirm"]);
  const lost = phases(incident({ timeline: suspected, confirmed: false }), 500, { state: "lost", ended_at: null, last_heard: 130 });
  assert.deepEqual(lost.at(-1), { name: "Confirm", ends: "closed", from: 111, to: 130, seconds: 19 });
  const late = incident({ timeline: { ...suspected, captured: null }, confirmed: false });
  const job = { state: "lost", ended_at: null, last_heard: 108 } as const;
  const spent = phases(late, 500, job).reduce((sum, { seconds }) => sum + seconds, 0);
  assert.equal(spent, costOf(late, job, 500), "it was detected after the job was last heard");
});

test("the detection stands beside the beginning, where it came later", () => {
  assert.equal(detectedWords(1e9, 1e9 + 11, 1e9 + 60), `detected ${clock(1e9 + 11, 1e9 + 60)}`);
  assert.equal(detectedWords(1e9 + 0.2, 1e9 + 0.7, 1e9 + 60), "");
});

test("stacks of a suspicion do not end the capture after its confirmation", () => {
  const confirmed = { ...suspected, decided: 170 };
  const capturing = phases(incident({ timeline: confirmed, phase: "capturing" }), 172);
  assert.deepEqual([capturing.at(-1)!.name, capturing.at(-1)!.seconds], ["Capture", 2]);
  const acting = phases(incident({ timeline: { ...confirmed, captured: 173 }, phase: "acting" }), 174);
  assert.deepEqual([acting.at(-1)!.name, acting.at(-1)!.seconds], ["Restart", 1]);
});

test("nothing is going on that was not ordered", () => {
  const found = { ...healed, captured: null, restarted: null, first_step: null };
  const current = (facts: object) => phases(incident({ timeline: found, ...facts }), 500).at(-1)!.name;
  assert.equal(current({ action: "log", phase: "detected" }), "Unresolved");
  assert.equal(current({ kind: "process_exited", phase: "acting" }), "Restart");
  assert.equal(current({ kind: "process_exited", phase: "recovering", timeline: { ...found, restarted: 115 } }), "Recover");
  assert.equal(current({ action: "stop", phase: "acting" }), "Stop");
  const lost = phases(incident({ timeline: found, phase: "acting" }), 500, { state: "lost", ended_at: null, last_heard: 130 });
  assert.deepEqual(lost.slice(-1).map(({ name, ends, to }) => [name, ends, to]), [["Restart", "last heard", 130]], "its cost ends there too");
  assert.equal(current({ phase: "detected", timeline: { ...found, decided: null } }), "Decide");
});

test("what goes on costs whole seconds of the page's clock, what is over the exact time", () => {
  const [open, closed] = [null, 122].map((closed_at) => incident({ timeline: { ...healed, since: 100.4, first_step: null }, closed_at }));
  assert.equal(costText(open!, RUNS, 113), "13\u2009s so far");
  assert.equal(costText(closed!, RUNS, 500), "21.6\u2009s");
  assert.equal(costText({ ...closed!, lost_steps_s: 7.5 }, RUNS, 500), "29.1\u2009s", "with the steps that the restart threw away");
});
