// What to do about an incident or a job, as an order that the page can prepare or as a step outside of it.

import type { Incident, JobSummary } from "../api/types";
import { type ActionName, ACTIONS } from "./policy";

/** An order with its fields filled in, to be confirmed by a person. */
export interface Prepared {
  action: ActionName;
  ranks: readonly number[];
  reason: string;
}

/** The order that an incident calls for; null: none, or one that this page does not know. */
export function preparedOrder({ next_action, headline, reason }: Incident): Prepared | null {
  return next_action ? orderOf(next_action, headline || reason) : null;
}

/** An order of the monitor's proposal, for a reason; null: it proposes none. */
export function orderOf(next: { action: string | null; ranks: readonly number[] }, reason: string): Prepared | null {
  const action = ACTIONS.find(([name]) => name === next.action)?.[0];
  return action === undefined ? null : { action, ranks: next.ranks, reason: reason.slice(0, 500) };
}

/** The next step for a job of which nothing is received or that has failed; null: there is none. */
export function stepOfJob({ state, next_step: known }: JobSummary): { text: string; runbook: string } | null {
  if (state === "lost")
    return { text: known || "Ask the cluster whether the job still runs (squeue, kubectl get pods) before you launch it again.", runbook: "runbook.html#rankwatchjoblost" };
  if (state === "failed") return { text: known || "Remove the cause, then launch the job again: nothing restarts it.", runbook: "runbook.html#rankwatchjobfailed" };
  return null;
}
