import assert from "node:assert/strict";
import { test } from "node:test";
import { blame, isSuspected, unconfirmedEnd } from "../src/logic/suspicion";
import { incident } from "./samples";

const open = incident({ opened_at: 1000, confirmed: false, phase: "confirming", acts_at: 1060 });

test("suspected is what is open and unconfirmed", () => {
  assert.equal(isSuspected(open), true);
  assert.equal(isSuspected({ ...open, confirmed: true }), false);
  assert.equal(isSuspected({ ...open, closed_at: 1010 }), false);
});

test("an incident that closed unconfirmed resumed by itself or was never confirmed", () => {
  const over = { ...open, closed_at: 1010, ended: "went_on" as const };
  assert.equal(unconfirmedEnd(over), "resumed by itself");
  assert.equal(unconfirmedEnd({ ...over, ended: "job_ended" }), "never confirmed");
  assert.equal(unconfirmedEnd({ ...over, confirmed: true }), null);
  assert.equal(unconfirmedEnd(open), null);
});

test("ranks of a suspicion are suspects", () => {
  assert.equal(blame(open), "suspect");
  assert.equal(blame({ ...open, confirmed: true }), "culprit");
});
