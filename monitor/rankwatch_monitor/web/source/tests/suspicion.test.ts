import assert from "node:assert/strict";
import { test } from "node:test";
import { blame, isSuspected, unconfirmedEnd, waited, whatFollows } from "../src/logic/suspicion";
import { clock } from "../src/logic/text";
import { incident } from "./samples";

const open = incident({ opened_at: 1000, confirmed: false, phase: "confirming", acts_at: 1060 });

test("suspected is what is open and unconfirmed", () => {
  assert.equal(isSuspected(open), true);
  assert.equal(isSuspected({ ...open, confirmed: true }), false);
  assert.equal(isSuspected({ ...open, closed_at: 1010 }), false);
});

test("an incident that closed unconfirmed resumed by itself or was never confirmed", () => {
  const over = { ...open, closed_at: 1010, ended: "went_on" };
  assert.equal(unconfirmedEnd(over), "resumed by itself");
  assert.equal(unconfirmedEnd({ ...over, ended: "job_ended" }), "never confirmed");
  assert.equal(unconfirmedEnd({ ...over, confirmed: true }), null);
  assert.equal(unconfirmedEnd(open), null);
});

test("a suspicion shows when it acts and how", () => {
  assert.equal(whatFollows(open, 1010), `At ${clock(1060, 1010)} (in 50\u2009s) Rankwatch restarts the ranks unless they make progress; sooner if samples prove the hang.`);
  assert.match(whatFollows({ ...open, action: "log" }, 1010), /^At .* it counts as a hang, without an action, unless /);
  for (const untimed of [{ ...open, acts_at: null }, incident({ confirmed: false, phase: "confirming" })])
    assert.equal(whatFollows(untimed, 1010), "Rankwatch acts unless the ranks make progress.");
});

test("what is waited for is the deadline of the suspicion", () => {
  assert.match(waited(open, 1010), /^Wait until [\d:]+ \(in 50\u2009s\): Rankwatch restarts the ranks unless they make progress; sooner if /);
  assert.equal(waited({ ...open, proof: "busy" }, 1010), "Wait: no action follows while a rank is busy.");
});

test("no time is shown once it has passed", () => {
  assert.match(whatFollows(open, 1062), /^At .* Rankwatch restarts the ranks unless /);
  assert.equal(whatFollows(open, 1064), "Rankwatch acts unless the ranks make progress.");
});

test("no time is stated at which a suspicion acts that only proof confirms", () => {
  for (const proof of ["busy", "debugged", "suspended"])
    assert.match(whatFollows({ ...open, proof }, 1010), /^No action follows while /);
  for (const proof of ["stalled", "uninterruptible"])
    assert.match(whatFollows({ ...open, proof }, 1010), /^No action follows by itself/);
  assert.match(whatFollows({ ...open, kind: "stalled" }, 1010), /^Rankwatch acts only if/);
});

test("ranks of a suspicion are suspects", () => {
  assert.equal(blame(open), "suspect");
  assert.equal(blame({ ...open, confirmed: true }), "culprit");
});
