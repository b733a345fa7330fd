// What to do about an incident or a job, as an order that the page can prepare or as a step outside of it.

import type { Incident, JobSummary, SlowAction, Step } from "../api/types";
import { hosts, quietWords } from "./incidents";
import { type ActionName, ACTIONS } from "./policy";
import { plural } from "./text";

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

type Known = Pick<JobSummary, "ended_at" | "quiet_host" | "ranks_reporting">;

/** Each order that may be given now with the words of its button, the proposed one first; none: []. */
export function offered(job: Known, incident: Incident): { order: Prepared; words: string }[] {
  const { next_action: next, headline, reason, closed_at: closedAt, culprits } = incident;
  if (!next || job.ended_at !== null) return [];
  const quiet = closedAt === null ? (job.quiet_host ?? null) : null;
  const own = [next.action, ...(next.also ?? [])];
  const leave = quiet?.excludable ? "restart_excluding_node" : null;
  // A host that is down leaves no other way; one that is up has a fault that stacks and a plain restart may show or end.
  const names = quiet === null ? own : quiet.other_jobs === 0 ? [leave] : [...new Set(["capture", ...own].filter((name) => own.includes(name)).concat(leave))];
  const why = quiet === null ? headline || reason : quietWords(quiet, null);
  return names.flatMap((action) => {
    const leavesOut = action === "restart_excluding_node" && next.ranks.length === 0;
    const order = orderOf({ action, ranks: quiet?.ranks ?? (leavesOut ? culprits.map(({ rank }) => rank) : next.ranks) }, why);
    const part = quiet !== null && action === "capture" ? ` of the ${plural(job.ranks_reporting, "rank")} that report${job.ranks_reporting === 1 ? "s" : ""}` : "";
    return order === null ? [] : [{ order, words: orderWords(order.action, quiet?.hosts ?? hosts(culprits), when(incident)) + part }];
  });
}

/** "now": a restart before its time; "again": after one. */
const when = ({ confirmed, phase }: Incident): string => (!confirmed ? "now" : phase === "recovering" ? "again" : "");

/** The words of an order's button; `nodes`: the hosts that it leaves out, as far as they are known. */
export function orderWords(action: ActionName, nodes: readonly string[], when = ""): string {
  if (action === "restart_excluding_node" && nodes.length === 1) return `Restart without ${nodes[0]}`;
  return `${ACTIONS.find(([name]) => name === action)![1]}${when && action === "restart" ? ` ${when}` : ""}`;
}

/** An order of the monitor's proposal, for a reason; null: it proposes none. */
export function orderOf(next: { action: string | null; ranks: readonly number[] }, reason: string): Prepared | null {
  const action = ACTIONS.find(([name]) => name === next.action)?.[0];
  return action === undefined ? null : { action, ranks: next.ranks, reason: reason.slice(0, 500) };
}

/** The order that is proposed for a job: that of its open incident, else that of its slow ranks; null: none. */
export function recommendedOrder(job: Known & Pick<JobSummary, "headline" | "reason">, incident: Incident | null, slow: SlowAction | null): Recommended | null {
  if (incident !== null && incident.closed_at === null) {
    const next = incident.next_action;
    const first = next?.action == null && job.quiet_host == null ? undefined : offered(job, incident)[0]?.order;
    return first === undefined ? null : { ...first, condition: job.quiet_host == null ? (next?.condition ?? "") : job.quiet_host.other_jobs === 0 ? "if it is not up" : "" };
  }
  const order = slow === null || job.ended_at !== null ? null : orderOf(slow, job.headline || job.reason);
  return order && { ...order, condition: slow!.condition ?? "" };
}

/** The look at a slow rank, and what follows it. */
export function slowSteps({ then = "", ...look }: SlowAction): readonly Step[] {
  return then === "" ? [look] : [{ ...look, text: `${look.text.slice(0, -then.length - 2)}.` }, { text: then, command: "", host: "" }];
}

/** What to do about a job of which nothing is received or that has failed; null: nothing. */
export function stepsOfJob({ state, next_step: known, next_steps: steps }: JobSummary): { steps: readonly Step[]; runbook: string } | null {
  if (state !== "lost" && state !== "failed") return null;
  return { steps: steps?.length ? steps : [{ text: known ?? "", command: "", host: "" }], runbook: `runbook.html#rankwatchjob${state}` };
}
