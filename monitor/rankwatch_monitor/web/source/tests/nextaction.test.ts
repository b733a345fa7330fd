import assert from "node:assert/strict";
import { test } from "node:test";
import type { Order } from "../src/api/types";
import { orderOf, recommendedOrder } from "../src/logic/nextaction";
import { advice } from "./samples";

const leave: Order = { action: "restart_excluding_node", words: "Restart without host-1", ranks: [3], hosts: ["host-1"] };

test("an order is prepared with its ranks and a reason of bounded length", () => {
  assert.deepEqual(orderOf(leave, "Rank 3 hangs"), { action: "restart_excluding_node", ranks: [3], reason: "Rank 3 hangs" });
  assert.equal(orderOf(leave, "x".repeat(900))!.reason.length, 500);
  assert.equal(orderOf({ action: "something new" as Order["action"], ranks: [] }, ""), null);
});

test("the proposed order is the first one, with its condition; what is only offered is not proposed", () => {
  const proposed = advice({ orders: [leave], proposed: true, condition: "if it stays slow" });
  assert.deepEqual(recommendedOrder(proposed, "Slow"), { action: "restart_excluding_node", ranks: [3], reason: "Slow", condition: "if it stays slow" });
  assert.equal(recommendedOrder({ ...proposed, proposed: false }, "Slow"), null);
  assert.equal(recommendedOrder(null, "Slow"), null);
});
