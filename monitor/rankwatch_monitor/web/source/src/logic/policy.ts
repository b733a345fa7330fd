// Conversion of policy settings to form fields and back. Validation is left to the monitor.

import type { JobSummary, Launcher, Remaining, Setting } from "../api/types";
import { count, plural } from "./text";

export type SettingValue = Setting["default"];

/** A value as the text of its field; a share in percent. */
export function asText(value: SettingValue, kind?: Setting["kind"]): string {
  if (value === null) return "";
  if (kind === "share" && typeof value === "number") return `${Number((100 * value).toPrecision(12))} %`;
  if (typeof value === "object") return Object.entries(value).map(([name, seconds]) => `${name}=${seconds}`).join(", ");
  return String(value);
}

/** A value with its unit, for display. */
export function shown(setting: Setting, value: SettingValue): string {
  if (typeof value === "boolean") return value ? "on" : "off";
  const text = asText(value, setting.kind);
  if (text === "") return setting.kind === "seconds_by_name" ? "none" : "off";
  const unit = setting.kind === "seconds_by_name" ? "" : unitOf(setting);
  return unit === "" ? text : `${text}\u2009${unit}`;
}

/** The unit as it is written behind a value: those of things that are counted stand in braces in the schema. */
export function unitOf({ unit }: Pick<Setting, "unit">): string {
  return unit.replace(/[{}]/g, "");
}

/** The value to send for a field's text. A text that is not a number is sent unchanged: the monitor rejects it with a message. */
export function asValue(setting: Setting, text: string, old: SettingValue): SettingValue {
  const trimmed = text.trim();
  switch (setting.kind) {
    case "switch":
      return text === "true";
    case "seconds_by_name":
      return sections(trimmed, (old ?? {}) as Record<string, number>);
    case "whole":
    case "share":
    case "number":
      if (trimmed === "") return null;
      return Number.isFinite(Number(trimmed)) ? Number(trimmed) : trimmed;
    default:
      return trimmed;
  }
}

/** "step=10, evaluation=600" as an object; null removes a section that is no longer named. */
function sections(text: string, old: Record<string, number>): Record<string, number | null> {
  const found: Record<string, number | null> = Object.fromEntries(Object.keys(old).map((name) => [name, null]));
  for (const part of text.split(",").map((each) => each.trim()).filter(Boolean)) {
    const at = part.lastIndexOf("=");
    const seconds = at < 0 ? part : part.slice(at + 1).trim();
    found[(at < 0 ? part : part.slice(0, at)).trim()] = (Number.isFinite(Number(seconds)) && seconds !== "" ? Number(seconds) : seconds) as number;
  }
  return found;
}

/** Settings whose field differs from the value in force. */
export function changed(settings: readonly Setting[], policy: Record<string, SettingValue>, edited: Record<string, string>): Setting[] {
  return settings.filter(({ name, kind }) => edited[name] !== undefined && edited[name] !== asText(policy[name] ?? null, kind));
}

export interface Group {
  title: string;
  /** Settings that most jobs need, and the others. */
  basic: Setting[];
  expert: Setting[];
}

const GROUPS: readonly (readonly [string, readonly string[], readonly string[]])[] = [
  ["What the monitor does", ["on_hang", "observe_only", "max_restarts", "max_no_progress"], ["capture_deadline", "stop_deadline"]],
  ["Hangs", ["detection", "section_timeouts", "heartbeat_timeout", "initial_heartbeat_timeout", "out_of_section_timeout", "silence_timeout", "confirmation_window", "longest_patience"],
    ["learn_timeouts", "calculate_timeouts", "learned_factor", "learned_minimum", "first_time_timeout"]],
  ["Stragglers", ["straggler_detection", "on_straggler", "straggler_slowdown", "straggler_alarms_per_day"],
    ["straggler_reference", "straggler_windows", "straggler_windows_needed", "calc_relative", "calc_individual", "relative_threshold", "individual_threshold"]],
  ["Profiling and reports", ["kernel_timings", "profiled_ranks", "report_interval"], ["profiling_interval", "num_gpu_perf_scores_to_print"]],
];

/** The settings by what they are about, in the order of this page; what it does not know comes last. */
export function grouped(settings: readonly Setting[]): Group[] {
  const pick = (names: readonly string[]) => names.flatMap((name) => settings.find((each) => each.name === name) ?? []);
  const known = new Set(GROUPS.flatMap(([, basic, expert]) => [...basic, ...expert]));
  const groups = GROUPS.map(([title, basic, expert]) => ({ title, basic: pick(basic), expert: pick(expert) }));
  const others = { title: "Other", basic: settings.filter(({ name }) => !known.has(name)), expert: [] };
  return [...groups, others].filter(({ basic, expert }) => basic.length + expert.length > 0);
}

export type ActionName = "capture" | "restart" | "restart_excluding_node" | "save_and_stop" | "stop";

/** What an action will do, shown for confirmation. */
export function consequence(action: ActionName, job: Pick<JobSummary, "restart_loses" | "world_size" | "attempt" | "restarts" | "max_restarts">, left: string): string {
  const ranks = job.world_size === 1 ? "its one rank" : `all ${count(job.world_size)} ranks`;
  const again = `Stacks are captured, then ${ranks} are ended and restarted as attempt ${job.attempt + 1}`;
  const lost = job.restart_loses === "" ? "" : `${action === "stop" ? "Another launch" : "The restart"} ${job.restart_loses}.`;
  const over = "The job ends and is not restarted.";
  const budget = `The job has used ${job.restarts} of ${job.max_restarts} restarts.`;
  switch (action) {
    case "capture":
      return `The stacks of ${ranks} are captured and stored in an incident. The ranks are left as they are.`;
    case "restart":
    case "restart_excluding_node":
      return `${again}${action === "restart" ? "" : ` without ${left}`}. ${lost} ${budget}`;
    case "save_and_stop":
      return `The ranks agree on a step, save a checkpoint there and end. ${over}`;
    case "stop":
      return `The ranks are ended at once, without saving. ${lost} ${over}`;
  }
}

export const ACTIONS: readonly (readonly [ActionName, string])[] = [
  ["capture", "Capture stacks"],
  ["restart", "Restart"],
  ["restart_excluding_node", "Restart without some nodes"],
  ["save_and_stop", "Save and stop"],
  ["stop", "Stop now"],
];

/** Actions by what becomes of the training; the last ones end the job. */
export const KINDS: readonly { title: string; names: readonly ActionName[]; ends?: true }[] = [
  { title: "The ranks are left as they are", names: ["capture"] },
  { title: "The ranks are restarted", names: ["restart", "restart_excluding_node"] },
  { title: "The job ends", names: ["save_and_stop", "stop"], ends: true },
];

/** Whether an action ends the job. */
export const isFinal = (action: ActionName): boolean => action === "save_and_stop" || action === "stop";

type Place = Pick<Launcher, "node" | "host" | "ranks">;

/** The nodes that an order leaves out, in words: "host-0"; where no launcher names the node of a rank, "the node of rank 5". */
export function leftOut(nodes: readonly string[], ranks: string, launchers: readonly Place[]): string {
  const ofRanks = nodesOf(rankList(ranks) ?? [], launchers);
  const hosts = [...nodes, ...(ofRanks ?? [])].map((node) => launchers.find((each) => each.node === node)?.host ?? node);
  const unknown = ranks !== "" && ofRanks === null ? `the ${/[-,]/.test(ranks) ? "nodes of ranks" : "node of rank"} ${ranks}` : "";
  return [[...new Set(hosts)].join(", "), unknown].filter(Boolean).join(" and ");
}

/** The nodes that run these ranks, by their launchers; null: not known of each of them. */
export function nodesOf(ranks: readonly number[], launchers: readonly Place[]): string[] | null {
  const found = ranks.map((rank) => launchers.find((each) => each.ranks.includes(rank))?.node);
  return found.length === 0 || found.includes(undefined) ? null : [...new Set(found as string[])];
}

/** What a job has left without some of its nodes; the sentence of those that were chosen here is made here. */
export type Left = Omit<Remaining, "sentence">;

/** What is left without the nodes of an order; null: not known. */
export function remaining(nodes: readonly string[], ranks: string, launchers: readonly Pick<Launcher, "node" | "host" | "ranks" | "role" | "lost" | "ended" | "min_nodes">[]): Left | null {
  const running = launchers.filter(({ ended }) => ended === null);
  const active = running.filter(({ role }) => role === "active");
  const out = new Set([...nodes, ...(nodesOf(rankList(ranks) ?? [], active) ?? [])]);
  const live = running.filter(({ node, lost }) => lost === null && !out.has(node));
  const number = (of: Launcher["role"]) => live.filter(({ role }) => role === of).length;
  return out.size === 0 ? null : { nodes: number("active"), of: active.length, spares: number("spare"), min_nodes: Math.max(...running.map((each) => each.min_nodes ?? 0)) };
}

/** "3 of 4 nodes remain, and no spare; the job may run on 2 or more.", as `exclusion.py` words it. */
export function leftWords({ nodes, of, spares, min_nodes: least }: Left): string {
  const usable = nodes + spares;
  const enough = !nodes || usable >= of ? "" : least ? `; the job may run on ${least} or more` : `: the job goes on if it may run on ${usable}, else waits`;
  const follows = usable < least ? `; the job needs at least ${least} (--nnodes): first start a launcher on another node, or start the job again with fewer` : enough;
  return `${nodes} of ${plural(of, "node")} remain, and ${spares ? plural(spares, "spare") : "no spare"}${follows}.`;
}

/** A text with the values in force in place of the settings that it names. */
export const withValues = (text: string, settings: readonly Setting[], policy: Record<string, SettingValue>): string =>
  text.replace(/[a-z]+_[a-z_]+/g, (name) => {
    const setting = settings.find((each) => each.name === name);
    return setting === undefined ? name : shown(setting, policy[name] ?? null);
  });

/** "0, 8-11" as numbers, else null. */
export function rankList(text: string): number[] | null {
  const found: number[] = [];
  for (const part of text.split(",").map((each) => each.trim()).filter(Boolean)) {
    const run = /^(\d{1,7})(?:\s*-\s*(\d{1,7}))?$/.exec(part);
    if (!run) return null;
    const [first, last] = [Number(run[1]), Number(run[2] ?? run[1])];
    if (last < first || last - first > 10_000) return null;
    for (let rank = first; rank <= last; rank++) found.push(rank);
  }
  return found;
}
