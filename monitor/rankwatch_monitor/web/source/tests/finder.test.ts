import assert from "node:assert/strict";
import { test } from "node:test";
import { find, type Places } from "../src/logic/finder";
import { deviceFacts } from "../src/logic/device";
import { device } from "./samples";

const places: Places = {
  worldSize: 4,
  hosts: ["a-1", "a-1", "a-10", "a-10"],
  states: new Map([["running", 3], ["hung", 1]]),
};

test("a number is a rank, and part of a node's name", () => {
  assert.deepEqual(find("1", places).map((each) => each.kind), ["rank", "node", "node"]);
  assert.deepEqual(find("rank 3", places), [{ kind: "rank", rank: 3, note: "a-10" }]);
  assert.deepEqual(find("9", places), []);
});

test("states may be begun, and the exact node comes first", () => {
  assert.deepEqual(find("hu", places), [{ kind: "state", state: "hung", ranks: 1 }]);
  assert.deepEqual(find("a-10", places).map((each) => each.kind === "node" && each.host), ["a-10"]);
});

test("a device states what it reported, and nothing else", () => {
  assert.equal(deviceFacts(device({ errors: { xid: 0 } })), "");
  assert.equal(deviceFacts(device({ temperature: 81, throttled: ["sw_thermal"], errors: { xid: 2 } })), "81 °C, throttled: sw thermal, xid 2");
});
