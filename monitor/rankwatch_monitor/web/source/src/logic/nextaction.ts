// What to do about an incident or a job, as an order that the page can prepare or as a step outside of it.

import type { Incident, JobSummary, SlowAction, Step } from "../api/types";
import { hosts, quietWords } from "./incidents";
import { type ActionName, ACTIONS } from "./policy";

/** An order with its fields filled in, to be confirmed by a person. */
export interface Prepared {
  action: ActionName;
  ranks: readonly number[];
  reason: string;
}

/** Each order that may be given now with the words of its button, the proposed one first; none: []. */
export function offered(job: Pick<JobSummary, "ended_at" | "quiet_host">, incident: Incident): { order: Prepared; words: string }[] {
  const { next_action: next, headline, reason, closed_at: closedAt } = incident;
  if (!next || job.ended_at !== null) return [];
  const quiet = closedAt === null ? (job.quiet_host ?? null) : null;
  // The stacks of a host that is not reachable cannot be captured.
  const names = quiet === null ? [next.action, ...(next.also ?? [])] : [quiet.excludable ? "restart_excluding_node" : null];
  const why = quiet === null ? headline || reason : quietWords(quiet, null);
  return names.flatMap((action) => {
    const order = orderOf({ action, ranks: quiet?.ranks ?? next.ranks }, why);
    return order === null ? [] : [{ order, words: label(order.action, quiet?.hosts ?? hosts(incident.culprits), when(incident)) }];
  });
}

/** "now": a restart before its time; "again": after one. */
const when = ({ confirmed, phase }: Incident): string => (!confirmed ? "now" : phase === "recovering" ? "again" : "");

function label(action: ActionName, nodes: readonly string[], when: string): string {
  if (action === "restart_excluding_node" && nodes.length === 1) return `Restart without ${nodes[0]}`;
  return `${ACTIONS.find(([name]) => name === action)![1]}${when && action === "restart" ? ` ${when}` : ""}`;
}

/** An order of the monitor's proposal, for a reason; null: it proposes none. */
export function orderOf(next: { action: string | null; ranks: readonly number[] }, reason: string): Prepared | null {
  const action = ACTIONS.find(([name]) => name === next.action)?.[0];
  return action === undefined ? null : { action, ranks: next.ranks, reason: reason.slice(0, 500) };
}

/** The order to choose first for a job: that of its open incident, else that of its slow ranks; null: none. */
export function recommendedOrder(job: Pick<JobSummary, "ended_at" | "quiet_host" | "headline" | "reason">, incident: Incident | null, slow: SlowAction | null): Prepared | null {
  if (incident !== null && incident.closed_at === null) return incident.next_action?.action == null && job.quiet_host == null ? null : (offered(job, incident)[0]?.order ?? null);
  return slow === null || job.ended_at !== null ? null : orderOf(slow, job.headline || job.reason);
}

/** What to do about a job of which nothing is received or that has failed; null: nothing. */
export function stepsOfJob({ state, next_step: known, next_steps: steps }: JobSummary): { steps: readonly Step[]; runbook: string } | null {
  if (state !== "lost" && state !== "failed") return null;
  const text = known || (state === "lost" ? "Ask the cluster whether the job still runs (squeue, kubectl get pods) before you launch it again." : "Remove the cause, then launch the job again: nothing restarts it.");
  return { steps: steps?.length ? steps : [{ text, command: "", host: "" }], runbook: `runbook.html#rankwatchjob${state}` };
}
