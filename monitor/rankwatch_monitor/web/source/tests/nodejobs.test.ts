import assert from "node:assert/strict";
import { test } from "node:test";
import type { PlacedLauncher } from "../src/api/types";
import { launcher as some } from "./samples";
import { goneBesides, type Part } from "../src/logic/nodejobs";

const gone: PlacedLauncher = {
  ...some({ node: "node-1", host: "host-1", ranks: [8], last_seen_age: 54, last_seen: 946 }), silent: true,
};
const part = (facts: Partial<Part["verdict"]> = {}, launcher: Partial<PlacedLauncher> = {}) =>
  ({ verdict: { state: "running", quiet_host: null, ...facts }, launchers: [{ ...gone, ...launcher }] }) as Part;

test("a silent launcher is not stated again beside the silence of its host or of the whole job", () => {
  const quiet_host = { hosts: ["host-1"], ranks: [8], since: 946, limit: 60, other_jobs: 0, headline: "Node host-1 has not been heard" };
  assert.deepEqual(goneBesides(part({ state: "hung", quiet_host })), []);
  assert.deepEqual(goneBesides(part({ state: "lost" })), []);
});

test("a silent launcher is stated beside another reason, one that is heard is not", () => {
  assert.deepEqual(goneBesides(part({ state: "hung" })).map(({ node }) => node), ["node-1"]);
  assert.deepEqual(goneBesides(part({}, { silent: false })), []);
});
