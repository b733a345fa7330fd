import assert from "node:assert/strict";
import { test } from "node:test";
import { addressOf, jobAddress, parse, type Route } from "../src/logic/route";

test("tab, rank, look and grouping survive a round trip", () => {
  const address = "#/jobs/a%3Fb?tab=charts&look=temperature&group=pipeline&rank=5";
  const found = parse(address);
  assert.deepEqual(found, { view: "job", job: "a?b", incident: null, tab: "charts", sight: { rank: 5, look: "temperature", group: "pipeline" } });
  assert.equal(addressOf(found, { rank: 5, look: "temperature", group: "pipeline" }), address);
});

test("a comparison is part of the address", () => {
  const address = "#/jobs/j?tab=charts&with=k%2F1&with_attempt=2&axis=time";
  const found = parse(address);
  const overlay = { job: "k/1", attempt: 2, own: null, axis: "time" as const };
  assert.deepEqual(found, { view: "job", job: "j", incident: null, tab: "charts", sight: { overlay } });
  assert.equal(addressOf(found, { rank: null, look: "state", group: "node", overlay }), address);
});

test("defaults are left out of an address", () => {
  const incident: Route = { view: "job", job: "j", incident: "i7", tab: "overview", sight: {} };
  assert.equal(addressOf(incident, { rank: null, look: "state", group: "node" }), "#/jobs/j/incidents/i7");
  assert.equal(addressOf(incident, { rank: 0, look: "state", group: "node" }), "#/jobs/j/incidents/i7?rank=0");
  assert.equal(jobAddress("j"), "#/jobs/j");
});

test("what an address cannot mean is left aside", () => {
  assert.deepEqual(parse("#/jobs/j?tab=nothing&rank=-1&look=constructor&group=host"), { view: "job", job: "j", incident: null, tab: "overview", sight: {} });
});
