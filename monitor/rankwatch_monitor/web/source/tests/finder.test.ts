import assert from "node:assert/strict";
import { test } from "node:test";
import { find, type Places } from "../src/logic/finder";
import { addressOf, groupAddress, nodeAddress, parse } from "../src/logic/route";
import { deviceFacts } from "../src/logic/device";
import { device } from "./samples";

const places: Places = {
  worldSize: 4,
  hosts: ["a-1", "a-1", "a-10", "a-10"],
  states: new Map([["running", 3], ["hung", 1]]),
  coordinates: { data: Uint16Array.of(0, 1, 0, 0xffff) },
};

test("a number is a rank, and part of a node's name", () => {
  assert.deepEqual(find("1", places).map((each) => each.kind), ["rank", "node", "node"]);
  assert.deepEqual(find("rank 3", places), [{ kind: "rank", rank: 3, note: "a-10" }]);
  assert.deepEqual(find("9", places), []);
});

test("groups have short names, states may be begun, and the exact node comes first", () => {
  assert.deepEqual(find("dp 0", places), [{ kind: "group", dimension: "data", number: 0, ranks: 2 }]);
  assert.deepEqual(find("data", places), find("dp 0", places), "a group of one rank is that rank");
  assert.deepEqual(find("hu", places), [{ kind: "state", state: "hung", ranks: 1 }]);
  assert.deepEqual(find("a-10", places).map((each) => each.kind === "node" && each.host), ["a-10"]);
  assert.deepEqual(find("tp 0", places), []);
});

test("addresses of nodes and groups survive a round trip", () => {
  const sight = { rank: 3, look: "state", group: "node" } as const;
  for (const address of [nodeAddress("a/b?c"), groupAddress("j", "pipeline", 7)]) assert.equal(addressOf(parse(address), sight), address);
  assert.equal(parse("#/jobs/j/groups/host/7").view, "job");
});

test("a device states what it reported, and nothing else", () => {
  assert.equal(deviceFacts(device({ errors: { xid: 0 } })), "");
  assert.equal(deviceFacts(device({ temperature: 81, throttled: ["sw_thermal"], errors: { xid: 2 } })), "81 °C, throttled: sw thermal, xid 2");
});
