// The stacks of an incident as text, to be copied.

import type { IncidentDetail, StackGroup } from "../api/types";
import { blame } from "./incidents";
import { runs } from "./text";

const MANY = 100;

export function stacksText(incident: IncidentDetail): string {
  const groups = incident.stack_groups.map((group) => [title(group, incident), ...lines(group)].join("\n"));
  const failures = withoutStack(incident.stack_errors);
  return [...groups, ...(failures.length > 0 ? [failures.join("\n")] : [])].join("\n\n");
}

/** "No stack of ranks 8–15: host-1 did not answer the capture", a line for each reason. */
export function withoutStack(errors: IncidentDetail["stack_errors"]): string[] {
  const reasons = [...new Set(errors.map(({ error }) => error))];
  return reasons.map((reason) => {
    const ranks = errors.filter(({ error }) => error === reason).map(({ rank }) => rank);
    return `No stack of ${ranks.length === 1 ? "rank" : "ranks"} ${runs(ranks, MANY)}: ${reason}`;
  });
}

function title(group: StackGroup, incident: IncidentDetail): string {
  const facts = [culpritLabel(group, incident), group.process_state === "alive" ? "" : group.process_state].filter(Boolean);
  return `${group.ranks.length === 1 ? "rank" : "ranks"} ${runs(group.ranks, MANY)}${facts.length > 0 ? ` (${facts.join(", ")})` : ""}`;
}

function lines({ frames, note }: StackGroup): string[] {
  return [...(note ? [`  ${note}`] : []), ...frames.map(({ function: name, file, line }) => `  ${name} (${file}:${line})`)];
}

/** "culprit" if all ranks of the group are, else which of them; empty: none. */
export function culpritLabel(group: StackGroup, incident: IncidentDetail): string {
  if (!group.is_culprit) return "";
  const named = new Set(incident.culprits.map((culprit) => culprit.rank));
  const found = group.ranks.filter((rank) => named.has(rank));
  if (found.length === group.ranks.length || found.length === 0) return found.length > 1 ? `${blame(incident)}s` : blame(incident);
  return `${blame(incident)}: ${found.length === 1 ? "rank" : "ranks"} ${runs(found, 3)}`;
}
