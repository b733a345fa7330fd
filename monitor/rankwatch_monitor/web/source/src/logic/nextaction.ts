// What to do about an incident, as an order that the page can prepare.

import type { Incident } from "../api/types";
import { type ActionName, ACTIONS } from "./policy";

/** An order with its fields filled in, to be confirmed by a person. */
export interface Prepared {
  action: ActionName;
  ranks: readonly number[];
  reason: string;
}

/** The order that an incident calls for; null: none, or one that this page does not know. */
export function preparedOrder({ next_action, headline, reason }: Incident): Prepared | null {
  const action = ACTIONS.find(([name]) => name === next_action?.action)?.[0];
  if (!next_action || action === undefined) return null;
  return { action, ranks: next_action.ranks, reason: (headline || reason).slice(0, 500) };
}
