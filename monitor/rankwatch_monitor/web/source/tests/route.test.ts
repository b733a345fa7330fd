import assert from "node:assert/strict";
import { test } from "node:test";
import { addressOf, jobAddress, parse, type Route } from "../src/logic/route";

test("tab, rank, look and grouping survive a round trip", () => {
  const address = "#/jobs/a%3Fb?tab=charts&look=temperature&group=pipeline&rank=5";
  const found = parse(address);
  assert.deepEqual(found, { view: "job", job: "a?b", incident: null, tab: "charts", sight: { rank: 5, look: "temperature", group: "pipeline" } });
  assert.equal(addressOf(found, { rank: 5, look: "temperature", group: "pipeline" }), address);
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
