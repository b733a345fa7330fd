import assert from "node:assert/strict";
import { test } from "node:test";
import type { PlacedLauncher } from "../src/api/types";
import { goneBesides, type Part } from "../src/logic/nodejobs";

const gone: PlacedLauncher = {
  node: "node-1", host: "host-1", ranks: [8], role: "active", role_reason: "", lost: null, ended: null, last_seen_age: 54,
  launcher_pid: 10, ended_reason: "", last_seen: 946, silent: true,
};
const part = (facts: Partial<Part> = {}, launcher: Partial<PlacedLauncher> = {}) =>
  ({ state: "running", launchers: [{ ...gone, ...launcher }], ...facts }) as Part;

test("a silent launcher is not stated again beside the silence of its host or of the whole job", () => {
  const quiet_host = { hosts: ["host-1"], ranks: [8], since: 946, limit: 60, excludable: true, command: "", other_jobs: 0, step: "", headline: "Node host-1 has not been heard" };
  assert.deepEqual(goneBesides(part({ state: "hung", quiet_host })), []);
  assert.deepEqual(goneBesides(part({ state: "lost" })), []);
});

test("a silent launcher is stated beside another reason, one that is heard is not", () => {
  assert.deepEqual(goneBesides(part({ state: "hung" })).map(({ node }) => node), ["node-1"]);
  assert.deepEqual(goneBesides(part({}, { silent: false })), []);
});
