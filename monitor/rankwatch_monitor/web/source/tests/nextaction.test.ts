import assert from "node:assert/strict";
import { test } from "node:test";
import { preparedOrder } from "../src/logic/nextaction";
import { incident } from "./samples";

const next = (action: string | null, ranks: number[] = [], nodes?: string[]) =>
  incident({ reason: "Rank 3 hangs.", headline: "Rank 3 hangs", next_action: { action, ranks, text: "Do.", runbook: "", ...(nodes && { nodes }) } });

test("the order of an incident is prepared with its ranks, nodes and reason", () => {
  assert.deepEqual(preparedOrder(next("exclude", [3], ["n0"])), { action: "restart_excluding_node", ranks: [3], nodes: ["n0"], reason: "Rank 3 hangs" });
  assert.equal(preparedOrder(next("dump"))?.action, "capture");
  assert.equal(preparedOrder(next("save"))?.action, "save_and_stop");
  assert.deepEqual(preparedOrder(next("restart_excluding_node", [3]))?.nodes, []);
});

test("no order is prepared where none is called for, or by an older monitor", () => {
  for (const action of ["none", null, "something else"]) assert.equal(preparedOrder(next(action)), null);
  assert.equal(preparedOrder(incident({})), null);
});
