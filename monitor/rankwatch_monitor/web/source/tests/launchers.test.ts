import assert from "node:assert/strict";
import { test } from "node:test";
import type { Launcher } from "../src/api/types";
import { idleLaunchers, figures } from "../src/logic/launchers";
import { launcher as some } from "./samples";

const launcher = (node: string, facts: Partial<Launcher> = {}) => some({ node, host: node, ...facts });

test("a node that fails its checks before the first attempt takes no part, and says why", () => {
  const unfit = "it fails its check: storage: /ckpt cannot be used: Read-only file system";
  const all = [launcher("a"), launcher("b", { ranks: [], unfit })];
  assert.deepEqual(idleLaunchers(all), [{ name: "b", host: "b", what: "parked", reason: unfit }]);
  assert.equal(figures(all), "1 active, 1 parked");
});

test("launchers with ranks and ended ones are left out", () => {
  assert.deepEqual(idleLaunchers([launcher("a"), launcher("b", { role: "spare", ended: "finished" })]), []);
});

test("the lost stand first, then the excluded, then the spares, each with its reason", () => {
  const all = [
    launcher("a"), launcher("s", { role: "spare", role_reason: "one node is enough" }),
    launcher("p", { role: "parked", role_reason: "excluded: bad memory" }), launcher("l", { lost: "no contact for 15 s" }),
  ];
  assert.deepEqual(idleLaunchers(all).map(({ name, what, reason }) => [name, what, reason]), [
    ["l", "lost", "no contact for 15 s"], ["p", "parked", "excluded: bad memory"], ["s", "spare", "one node is enough"],
  ]);
  assert.equal(figures(all), "1 active, 1 spare, 1 parked, 1 lost");
});

test("launchers that share a host are shown by node name", () => {
  const all = [launcher("h-1", { host: "h", role: "spare" }), launcher("h-2", { host: "h" }), launcher("x-3", { host: "x", role: "spare" })];
  assert.deepEqual(idleLaunchers(all).map(({ name }) => name), ["h-1", "x"]);
});

