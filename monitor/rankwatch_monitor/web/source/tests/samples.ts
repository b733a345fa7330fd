// The records that tests start from: what they do not state is empty.

import type { Advice, Contributor, Device, HistorySample, Incident, Launcher, PhaseRow, StackGroup, Trends, Why } from "../src/api/types";

const from = <T>(empty: T) => (facts: Partial<T> = {}): T => ({ ...empty, ...facts });

export const device = from<Device>({ utilization: null, memory_used: null, memory_total: null, temperature: null, power: null, power_limit: null, clock: null, clock_limit: null, throttled: [], errors: {}, at: null });
export const launcher = from<Launcher>({ node: "", host: "", launcher_pid: 10, local_world_size: 1, min_nodes: null, last_seen: 0, last_seen_age: 1, attempt: 1, ranks: [0], role: "active", role_reason: "", lost: null, facts: {}, checks: [], unfit: "", ended: null, ended_reason: "", topology: [] });
export const group = from<StackGroup>({ ranks: [0], label: "rank 0", frames: [], is_culprit: false, waits: false, process_state: "alive", method: "", note: "" });
export const sample = from<HistorySample>({ at: 0, attempt: 1, iteration: 0, seconds: 10, step: 0.5, step_max: 0.6, parts: {}, waiting: null });
export const trends = from<Trends>({ at: [], attempts: [], attempt: [], iteration: [], goodput: [], goodput_window: [], speed: [], scores: {}, logged: {}, non_finite: {} });
export const why = from<Why>({ kind: "change", sentence: "", since: null, before: null, after: null, factor: null, cause: "", parts: [], contributors: [], circumstances: [], seen: [], slow: [], states_slow: false, compared: null, late: null });
export const contributor = from<Contributor>({ kind: "", name: "", before: 0, after: 0, share: 0, part: "", rank: null, stated: false, words: "", sentence: "" });

/** Confirmed, without culprits. */
export const incident = from<Incident>({
  id: "i", opened_at: 100, closed_at: null, job_id: "j", kind: "section_overrun", attempt: 1, culprits: [], affected: [], reason: "",
  section: null, limit: null, elapsed: null, action: "restart", action_reason: "", withheld: null, ended: null, phase: "capturing", confirmed: true, proof: null, outcome: "",
  timeline: { since: null, detected: null, decided: null, captured: null, restarted: null, first_step: null }, steps_lost: null, lost_steps_s: null, phases: [], place: null, cost: { seconds: 0, since: null },
  label: "", headline: "", title: "", detail: "", sequel: "", of_host: null, limit_source: null, exclude: [], provisional: false, proof_reason: "", waits: [], acts_at: null, restart_cost: null, attempts_here: 0, furthest_iteration: null, node_checks: [], of_place: null,
});

/** An advice to do one thing. */
export const advice = from<Advice>({
  rule: "restart", slow: false, text: "Restart the ranks", waits: false, steps: [], until: null, otherwise: null, orders: [], proposed: false, condition: "", weighs_restart: false, notes: [], alternatives: [], host: "", runbook: "",
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
