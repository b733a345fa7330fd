// The incident that tests start from: confirmed, without culprits.

import type { Advice, Incident } from "../src/api/types";

export const incident = (facts: Partial<Incident>): Incident => ({
  id: "i", opened_at: 100, closed_at: null, job_id: "j", kind: "section_overrun", attempt: 1, culprits: [], affected: [], reason: "",
  section: null, limit: null, elapsed: null, action: "restart", action_reason: "", withheld: null, ended: null, phase: "capturing", confirmed: true, proof: null, outcome: "",
  timeline: { since: null, detected: null, decided: null, captured: null, restarted: null, first_step: null }, steps_lost: null,
  ...facts,
});

/** An advice to do one thing. */
export const advice = (facts: Partial<Advice>): Advice => ({
  rule: "restart", text: "Restart the ranks", waits: false, steps: [], until: null, otherwise: null, orders: [], proposed: false, condition: "", weighs_restart: false, notes: [], alternatives: [], host: "", runbook: "",
  ...facts,
});
