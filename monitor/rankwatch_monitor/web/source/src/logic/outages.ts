// Times in which no step completed, as incidents state them: the measured speed is a mean, in which a short outage hardly shows.

import type { Incident, JobSummary } from "../api/types";

export interface Outage {
  from: number;
  to: number;
  /** The last step before it and the first one after it; null: not known. */
  before?: number | null;
  after?: number | null;
}

/** Incidents in which nothing had stopped, until the ranks were restarted. */
const ELECTIVE: ReadonlySet<string> = new Set(["ordered", "straggler", "wrong_result", "restarted_in_process"]);
/** Seconds from an outage to a point that is taken to hold up to it. */
const NEAR = 60;
/** Seconds between the two ends of an edge. */
const EDGE = 0.001;

/** The known outages, oldest first, those that overlap joined; from the last progress to the first new step. `now`: for one that goes on. */
export function outages(incidents: readonly Incident[], job: Pick<JobSummary, "ended_at" | "iterations_per_second" | "state">, now: number): Outage[] {
  const found = incidents.flatMap((incident) => outage(incident, job, now) ?? []).sort((a, b) => a.from - b.from);
  return found.reduce<Outage[]>((joined, each) => {
    const last = joined.at(-1);
    if (!last || each.from > last.to) joined.push(each);
    else if (each.to > last.to) Object.assign(last, { to: each.to, after: each.after ?? null });
    return joined;
  }, []);
}

function outage(incident: Incident, job: Pick<JobSummary, "ended_at" | "iterations_per_second" | "state">, now: number): Outage | null {
  const { timeline, closed_at: closedAt, confirmed, kind } = incident;
  const from = ELECTIVE.has(kind) ? timeline.restarted : timeline.since;
  const held = closedAt === null ? job.state !== "lost" && job.iterations_per_second === 0 : closedAt === job.ended_at;
  const to = timeline.first_step ?? (held && !ELECTIVE.has(kind) ? closedAt ?? job.ended_at ?? now : null);
  // In a suspicion that goes on, steps may complete: it is an outage while none does.
  if (!(confirmed || (held && closedAt === null)) || from === null || to === null || to <= from) return null;
  const before = incident.furthest_iteration ?? null;
  return { from, to, before, after: before === null || incident.steps_lost === null ? null : before - incident.steps_lost + 1 };
}

/** A line of the speed that is 0 in each outage, and holds from the points near one up to its ends. */
export function withOutages(time: readonly number[], values: readonly (number | null)[], all: readonly Outage[]): { time: readonly number[]; values: readonly (number | null)[] } {
  const shown = time.length === 0 ? [] : all.filter(({ to }) => to > time[0]!);
  if (shown.length === 0) return { time, values };
  const rows: [number, number | null][] = [];
  let next = 0;
  [...shown, null].forEach((after, k) => {
    const before = shown[k - 1];
    const points: [number, number | null][] = [];
    for (; next < time.length && (after === null || time[next]! < after.from); next++) if (before === undefined || time[next]! > before.to) points.push([time[next]!, values[next] ?? null]);
    const known = points.filter(([, value]) => value !== null);
    const [first, last] = [known[0], known.at(-1)];
    if (before && first && first[0] - before.to < NEAR) {
      points.splice(0, points.indexOf(first));
      rows.push([before.to + EDGE, first[1]]);
    }
    if (before && after && known.length === 0) {
      // No point, or none with a speed: the steps of the attempt by those that the incidents name.
      const steps = before.after != null && after.before != null ? after.before - before.after : 0;
      const mean = steps > 0 ? steps / (after.from - before.to) : null;
      rows.push([before.to + EDGE, mean], ...(mean !== null ? [[after.from - EDGE, mean] as [number, number]] : []));
      points.length = 0;
    }
    rows.push(...points.filter(([at]) => before === undefined || at > before.to + EDGE));
    if (after === null) return;
    if (last && after.from - last[0] < NEAR && points.at(-1) === last) rows.push([after.from - EDGE, last[1]]);
    rows.push([after.from, 0], [after.to, 0]);
  });
  const ordered = rows.filter(([at], i) => i === 0 || at > rows[i - 1]![0]);
  return { time: ordered.map(([at]) => at), values: ordered.map(([, value]) => value) };
}
