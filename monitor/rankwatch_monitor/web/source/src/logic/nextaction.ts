// What to do about an incident, as an order that the page can prepare.

import type { Incident } from "../api/types";
import type { ActionName } from "./policy";

const ORDERS: Readonly<Record<string, ActionName>> = {
  dump: "capture", capture: "capture",
  save: "save_and_stop", save_and_stop: "save_and_stop",
  restart: "restart",
  exclude: "restart_excluding_node", restart_excluding_node: "restart_excluding_node",
  stop: "stop",
};

/** An order with its fields filled in, to be confirmed by a person. */
export interface Prepared {
  action: ActionName;
  ranks: readonly number[];
  nodes: readonly string[];
  reason: string;
}

/** The order that an incident calls for; null: none. */
export function preparedOrder({ next_action, headline, reason }: Incident): Prepared | null {
  const action = ORDERS[next_action?.action ?? "none"];
  if (!next_action || action === undefined) return null;
  return { action, ranks: next_action.ranks, nodes: next_action.nodes ?? [], reason: (headline || reason).slice(0, 500) };
}
