// Addresses within the page: #/  #/jobs/ID  #/jobs/ID/incidents/IID, each with ?tab= &range= &rank= &look= &group= behind it.

import { isLook, type Look } from "./levels";
import { parseRange, type Range, rangeText } from "./range";

export const TABS = ["overview", "timeline", "charts", "control"] as const;
export type Tab = (typeof TABS)[number];
/** What the grid is grouped by: the nodes, or a coordinate of the parallel layout. */
export type Grouping = "node" | "data" | "tensor" | "pipeline" | "expert";
const GROUPINGS: readonly string[] = ["node", "data", "tensor", "pipeline", "expert"];

/** The selection within a job; what an address does not name stays unchanged. */
export interface Sight {
  rank?: number;
  look?: Look;
  group?: Grouping;
  range?: Range;
}

export type Route = { view: "fleet" } | { view: "job"; job: string; incident: string | null; tab: Tab; sight: Sight };

export function parse(hash: string): Route {
  const [path, query] = hash.replace(/^#?\/?/, "").split("?", 2);
  const [place, job, below, incident] = path!.split("/").map(decoded);
  if (place !== "jobs" || !job) return { view: "fleet" };
  const named = new URLSearchParams(query);
  const [tab, look, group, rank] = ["tab", "look", "group", "rank"].map((name) => named.get(name) ?? "");
  const sight: Sight = {};
  if (/^\d{1,7}$/.test(rank!)) sight.rank = Number(rank);
  if (isLook(look!)) sight.look = look;
  const range = parseRange(named.get("range") ?? "");
  if (range !== null) sight.range = range;
  if (GROUPINGS.includes(group!)) sight.group = group as Grouping;
  return {
    view: "job", job, sight,
    incident: below === "incidents" && incident ? incident : null,
    tab: TABS.find((each) => each === tab) ?? "overview",
  };
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

/** The charts of a job, of this time. */
export function chartsAddress(job: string, range: Range): string {
  return `${jobAddress(job, "charts")}${rangeText(range) && `&range=${rangeText(range)}`}`;
}

export function incidentAddress(job: string, incident: string): string {
  return `${jobAddress(job)}/incidents/${encodeURIComponent(incident)}`;
}

/** The address of this selection; defaults are left out. */
export function addressOf(route: Route, sight: { rank: number | null; look: Look; group: Grouping; range?: Range }): string {
  if (route.view === "fleet") return "#/";
  const query = new URLSearchParams();
  if (route.tab !== "overview") query.set("tab", route.tab);
  if (sight.range !== undefined && rangeText(sight.range)) query.set("range", rangeText(sight.range));
  if (sight.look !== "state") query.set("look", sight.look);
  if (sight.group !== "node") query.set("group", sight.group);
  if (sight.rank !== null) query.set("rank", String(sight.rank));
  const path = route.incident === null ? jobAddress(route.job) : incidentAddress(route.job, route.incident);
  return query.size > 0 ? `${path}?${query}` : path;
}
