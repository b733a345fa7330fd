// Launchers that run no ranks, and why: spare, parked (excluded) and lost nodes.

import type { Launcher } from "../api/types";

export interface IdleLauncher {
  name: string;
  host: string;
  what: "spare" | "parked" | "lost";
  reason: string;
}

const ORDER = ["lost", "parked", "spare"] as const;

/** Lost ones first; launchers that have ended are left out. */
export function idleLaunchers(launchers: readonly Launcher[]): IdleLauncher[] {
  const hosts = new Map<string, number>();
  for (const { host } of launchers) hosts.set(host, (hosts.get(host) ?? 0) + 1);
  const found: IdleLauncher[] = [];
  for (const { node, host, role, role_reason, lost, ended, unfit } of launchers) {
    if (ended !== null || (role === "active" && lost === null && unfit === "")) continue;
    // Launchers that share a host are shown by node name.
    const name = host !== "" && hosts.get(host) === 1 ? host : node;
    if (lost !== null) found.push({ name, host, what: "lost", reason: lost });
    // A node that fails its checks before the first attempt has no role yet.
    else found.push({ name, host, what: role === "active" ? "parked" : role, reason: role_reason || unfit });
  }
  return found.sort((a, b) => ORDER.indexOf(a.what) - ORDER.indexOf(b.what));
}

/** "2 active, 1 spare, 1 lost". */
export function figures(launchers: readonly Launcher[]): string {
  const active = launchers.filter(({ role, lost, ended, unfit }) => role === "active" && lost === null && ended === null && unfit === "").length;
  const rest = idleLaunchers(launchers);
  const each = (["spare", "parked", "lost"] as const).map((what) => [rest.filter((one) => one.what === what).length, what] as const);
  return [[active, "active"] as const, ...each].filter(([n]) => n > 0).map(([n, what]) => `${n} ${what}`).join(", ");
}
