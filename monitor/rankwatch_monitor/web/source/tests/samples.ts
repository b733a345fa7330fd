// The incident that tests start from: confirmed, without culprits.

import type { Advice, Incident, PhaseRow } from "../src/api/types";

export const incident = (facts: Partial<Incident>): Incident => ({
  id: "i", opened_at: 100, closed_at: null, job_id: "j", kind: "section_overrun", attempt: 1, culprits: [], affected: [], reason: "",
  section: null, limit: null, elapsed: null, action: "restart", action_reason: "", withheld: null, ended: null, phase: "capturing", confirmed: true, proof: null, outcome: "",
  timeline: { since: null, detected: null, decided: null, captured: null, restarted: null, first_step: null }, steps_lost: null, lost_steps_s: null, phases: [], place: null, cost: { seconds: 0, since: null },
  ...facts,
});

/** An advice to do one thing. */
export const advice = (facts: Partial<Advice>): Advice => ({
  rule: "restart", text: "Restart the ranks", waits: false, steps: [], until: null, otherwise: null, orders: [], proposed: false, condition: "", weighs_restart: false, notes: [], alternatives: [], host: "", runbook: "",
  ...facts,
});

const END_MARKS: Record<string, string> = { detect: "detected", confirm: "decided", capture: "captured", restart: "restarted", recover: "first_step" };

/** Consecutive phases by name, each with the time at which it ends; null: it goes on. */
export function course(begin: number, ends: Record<string, number | null>): PhaseRow[] {
  let from = begin;
  return Object.entries(ends).map(([name, end]) => {
    const row = { name, begin: from, end, mark: END_MARKS[name] ?? "closed", limit: null };
    from = end ?? from;
    return row;
  });
}
