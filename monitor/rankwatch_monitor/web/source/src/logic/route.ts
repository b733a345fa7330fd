// Addresses within the page: #/  #/?hours=24  #/nodes/HOST  #/jobs/ID  #/jobs/ID/incidents/IID, those of a job
// with ?tab= &range= &with= &rank= &look= &group= behind it.

import type { Dimension } from "../api/types";
import { isLook, type Look } from "./levels";
import { type Overlay, parseOverlay, writeOverlay } from "./overlay";
import { parseRange, type Range, rangeText } from "./range";

export const TABS = ["overview", "timeline", "kernels", "charts", "control"] as const;
export type Tab = (typeof TABS)[number];
/** What the grid is grouped by: the nodes, or a coordinate of the parallel layout. */
export type Grouping = "node" | Dimension;
export const DIMENSIONS: readonly Dimension[] = ["data", "tensor", "pipeline", "expert"];
/** The name of a group, or of all groups of a dimension: "pipeline stage 1", "tensor rank 5", "tensor rank". */
export function groupName(dimension: string, number: number | string = ""): string {
  return `${dimension} ${dimension === "pipeline" ? "stage" : "rank"} ${number}`.trimEnd();
}

const GROUPINGS: readonly string[] = ["node", ...DIMENSIONS];

/** The selection within a job; what an address does not name stays unchanged. */
export interface Sight {
  rank?: number;
  look?: Look;
  group?: Grouping;
  range?: Range;
  overlay?: Overlay;
}

export type Route =
  | { view: "fleet"; hours: number }
  | { view: "node"; host: string }
  | { view: "job"; job: string; incident: string | null; tab: Tab; sight: Sight };

export function parse(hash: string): Route {
  const [path, query] = hash.replace(/^#?\/?/, "").split("?", 2);
  const [place, job, below, incident] = path!.split("/").map(decoded);
  if (place === "nodes" && job) return { view: "node", host: job };
  const named = new URLSearchParams(query);
  if (place !== "jobs" || !job) return { view: "fleet", hours: HOURS.find((each) => String(each) === named.get("hours")) ?? HOURS[0] };
  const [tab, look, group, rank] = ["tab", "look", "group", "rank"].map((name) => named.get(name) ?? "");
  const sight: Sight = {};
  if (/^\d{1,7}$/.test(rank!)) sight.rank = Number(rank);
  if (isLook(look!)) sight.look = look;
  const range = parseRange(named.get("range") ?? "");
  if (range !== null) sight.range = range;
  const overlay = parseOverlay(named);
  if (overlay !== null) sight.overlay = overlay;
  if (GROUPINGS.includes(group!)) sight.group = group as Grouping;
  return {
    view: "job", job, sight,
    incident: below === "incidents" && incident ? incident : null,
    tab: TABS.find((each) => each === tab) ?? "overview",
  };
}

/** Hours of the digest that can be chosen; the first is the default. */
export const HOURS = [12, 1, 4, 24, 72, 168] as const;

/** The address of the list of jobs with a digest of so many hours. */
export function fleetAddress(hours: number): string {
  return hours === HOURS[0] ? "#/" : `#/?hours=${hours}`;
}

// A typed address may hold a stray percent sign; such a part is taken literally.
function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

export function jobAddress(job: string, tab: Tab = "overview"): string {
  return `#/jobs/${encodeURIComponent(job)}${tab === "overview" ? "" : `?tab=${tab}`}`;
}

export function incidentAddress(job: string, incident: string): string {
  return `${jobAddress(job)}/incidents/${encodeURIComponent(incident)}`;
}

export function nodeAddress(host: string): string {
  return `#/nodes/${encodeURIComponent(host)}`;
}

export function rankAddress(job: string, rank: number): string {
  return `${jobAddress(job)}?rank=${rank}`;
}

/** The address of this selection; defaults are left out. */
export function addressOf(route: Route, sight: { rank: number | null; look: Look; group: Grouping; range?: Range; overlay?: Overlay | null }): string {
  if (route.view === "fleet") return fleetAddress(route.hours);
  if (route.view === "node") return nodeAddress(route.host);
  const query = new URLSearchParams();
  if (route.tab !== "overview") query.set("tab", route.tab);
  if (sight.range !== undefined && rangeText(sight.range)) query.set("range", rangeText(sight.range));
  if (sight.overlay) writeOverlay(sight.overlay, query);
  if (sight.look !== "state") query.set("look", sight.look);
  if (sight.group !== "node") query.set("group", sight.group);
  if (sight.rank !== null) query.set("rank", String(sight.rank));
  const path = route.incident === null ? jobAddress(route.job) : incidentAddress(route.job, route.incident);
  return query.size > 0 ? `${path}?${query}` : path;
}
