import assert from "node:assert/strict";
import { test } from "node:test";
import type { PlacedLauncher } from "../src/api/types";
import { goneBesides, type Part } from "../src/logic/nodejobs";

const gone: PlacedLauncher = {
  node: "node-1", host: "host-1", ranks: [8], role: "active", role_reason: "", lost: null, ended: null, last_seen_age: 54,
  launcher_pid: 10, ended_reason: "", last_seen: 946, silent: true,
};
const part = (facts: Partial<PlacedLauncher> = {}) => ({ launchers: [{ ...gone, ...facts }] }) as Part;

test("a silent launcher is not stated again beside a reason that has its silence", () => {
  for (const why of [
    "Node host-1 has not been heard since 13:47:00; its 8 ranks and its launcher are silent",
    "Node host-1 not heard since 13:47:00",
    "Nothing was received from any rank or launcher for 54 s",
  ]) assert.deepEqual(goneBesides(part(), why), [], why);
});

test("a silent launcher is stated beside another reason, one that is heard is not", () => {
  const why = "Rank 13 on host-1 is in section step for 14 s";
  assert.deepEqual(goneBesides(part(), why).map(({ node }) => node), ["node-1"]);
  assert.deepEqual(goneBesides(part({ silent: false }), why), []);
});
