import assert from "node:assert/strict";
import { test } from "node:test";
import { blame, isSuspected, unconfirmedEnd, whatFollows } from "../src/logic/suspicion";
import { clock } from "../src/logic/text";
import { incident } from "./samples";

const open = incident({ opened_at: 1000, confirmed: false, phase: "confirming" });

test("suspected is what is open and unconfirmed", () => {
  assert.equal(isSuspected(open), true);
  assert.equal(isSuspected({ ...open, confirmed: true }), false);
  assert.equal(isSuspected({ ...open, closed_at: 1010 }), false);
});

test("only what ended unconfirmed is said to have gone on by itself, and only if it did", () => {
  const over = { ...open, closed_at: 1010, outcome: "the ranks went on by themselves" };
  assert.equal(unconfirmedEnd(over), "went on by itself");
  assert.equal(unconfirmedEnd({ ...over, outcome: "the job ended" }), "never confirmed");
  assert.equal(unconfirmedEnd({ ...over, confirmed: true }), null);
  assert.equal(unconfirmedEnd(open), null);
});

test("a suspicion says when it acts and what it will do", () => {
  assert.equal(whatFollows(open, 60, 1010), `Acts at ${clock(1060, 1010)} if nothing moves: restart.`);
  assert.match(whatFollows({ ...open, action: "log" }, 60, 1010), /^Counts as a hang at .* nothing else is done\.$/);
  assert.equal(whatFollows(open, null, 1010), "Acts if nothing moves for long enough.");
});

test("a moment that has passed is not promised any more", () => {
  assert.match(whatFollows(open, 60, 1062), /^Acts at /);
  assert.equal(whatFollows(open, 60, 1064), "Acts as soon as a rank has stood still for 60 s on end; none has yet.");
});

test("nobody is a culprit on suspicion", () => {
  assert.equal(blame(open), "suspect");
  assert.equal(blame({ ...open, confirmed: true }), "culprit");
});
