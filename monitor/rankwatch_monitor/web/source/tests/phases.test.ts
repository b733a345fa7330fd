import assert from "node:assert/strict";
import { test } from "node:test";
import { downtime, phases } from "../src/logic/phases";

const healed = { since: 100, detected: 110.2, decided: 110.22, captured: 111.5, restarted: 115, first_step: 121.3 };

test("a closed incident has every phase, and together they make the downtime", () => {
  const found = phases(healed, 122, 500, true);
  assert.deepEqual(found.map((phase) => phase.name), ["Unnoticed", "Deciding", "Capturing stacks", "Restarting", "Getting going"]);
  const sum = found.reduce((total, phase) => total + phase.seconds, 0);
  assert.ok(Math.abs(sum - 21.3) < 1e-9);
  assert.equal(downtime(healed, 122, 500), 121.3 - 100);
});

test("an open incident ends with the phase that goes on now", () => {
  const found = phases({ ...healed, captured: null, restarted: null, first_step: null }, null, 113.22, true);
  const last = found.at(-1)!;
  assert.equal(last.name, "Capturing stacks");
  assert.equal(last.to, null);
  assert.ok(Math.abs(last.seconds - 3) < 1e-9);
});

test("marks that were never reached are left out, and what is not restarted promises no restart", () => {
  const logged = { ...healed, captured: 111, restarted: null, first_step: null };
  assert.deepEqual(phases(logged, 130, 500, false).map((phase) => phase.ends), ["detected", "decided", "captured"]);
  assert.equal(phases(logged, null, 500, false).at(-1)!.to, 111);
  assert.equal(downtime(logged, 130, 500), 30);
});

test("clocks that disagree make no negative phase", () => {
  const found = phases({ ...healed, decided: 110.1 }, 122, 500, true);
  assert.equal(found[1]!.seconds, 0);
});

test("an incident that began before anybody knew when starts with its detection", () => {
  assert.equal(phases({ ...healed, since: null }, 122, 500, true)[0]!.seconds, 0);
  assert.deepEqual(phases({ ...healed, since: null, detected: null }, 122, 500, true), []);
});
