// Orders of the monitor's advice, as the page prepares them for a person to confirm.

import type { Advice, Order } from "../api/types";
import { type ActionName, ACTIONS } from "./policy";

/** An order with its fields filled in, to be confirmed by a person. */
export interface Prepared {
  action: ActionName;
  ranks: readonly number[];
  reason: string;
}

/** The order that the overview proposes. */
export interface Recommended extends Prepared {
  /** When it is to be given: "if it stays slow"; empty: now. */
  condition: string;
}

/** An order for a reason, which a person may change; null: this page does not know its action. */
export function orderOf({ action, ranks }: Pick<Order, "action" | "ranks">, reason: string): Prepared | null {
  const known = ACTIONS.find(([name]) => name === action)?.[0];
  return known === undefined ? null : { action: known, ranks, reason: reason.slice(0, 500) };
}

/** The order that is proposed for a job; null: none. */
export function recommendedOrder(advice: Advice | null, reason: string): Recommended | null {
  const order = advice?.proposed ? orderOf(advice.orders[0]!, reason) : null;
  return order && { ...order, condition: advice!.condition };
}
