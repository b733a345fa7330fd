// The content of the rank grid as a table.

import { useMemo, useState } from "preact/hooks";
import type { Incident, RankReport, RankState } from "../api/types";
import type { JobWatch } from "../live/job";
import { asOf } from "../api/connection";
import { alike, type Placed } from "../logic/alike";
import { cellOf, cellWords, slowestFirst } from "../logic/levels";
import { asOfNow, figures, moves, sectionWords, timeIn, worstFirst } from "../logic/severity";
import { blame, isFormer } from "../logic/incidents";
import { score, slowRanks } from "../logic/stragglers";
import { clock, count, duration, runs, wholeDuration, wholePercent } from "../logic/text";
import { RankMark } from "./marks";
import { shownBy, useLooks } from "./look";
import { InSection, Nodes } from "./placelinks";
import { SlowNote, SlowTag } from "./slowtag";
import { look, only, selected } from "./selection";
import { type Head, Table } from "./table";

const FIRST_ROWS = 10;
const MORE_ROWS = 50;

export function RankTable({ watch, incident }: { watch: JobWatch; incident: Incident | null }) {
  const [limit, setLimit] = useState(FIRST_ROWS);
  const [each, showEach] = useState(false);
  const job = watch.job.value;
  const former = job !== null && incident !== null && isFormer(job, incident);
  const named = useMemo(() => new Set(incident?.closed_at === null ? incident.culprits.map((culprit) => culprit.rank) : []), [incident]);
  const past = job?.state === "lost" || job?.ended_at != null;
  const grid = watch.grid.value;
  const { byRank, at } = watch.reports.value;
  const culprits = useMemo(() => (former ? new Set<number>() : named), [former, named]);
  const silent = new Set(job?.quiet_host?.ranks ?? []);
  const states = useMemo(() => Array.from(grid?.states ?? [], (byte) => grid!.legend[byte] ?? "unseen"), [grid]);
  const performance = watch.performance.value;
  const slow = useMemo(() => slowRanks(performance), [performance]);
  const order = useMemo(() => worstFirst(states, byRank, named, slow.keys()), [states, byRank, named, slow]);
  const looks = useLooks(watch);
  const shown = useMemo(() => shownBy(grid, look.value, looks, slow.keys()), [grid, look.value, looks, slow]);
  // Ordered by a figure, each rank has its place.
  const folds = shown === null || shown.look === "state";
  const lines = useMemo(() => {
    const slowest = folds ? order : slowestFirst(order, shown.codes);
    const wanted = (only.value === null ? slowest : slowest.filter((rank) => shown!.legend[shown!.codes[rank]!] === only.value)).map((rank) => placed(rank, states, byRank));
    return each || !folds ? wanted.map((one) => [one]) : folded(wanted, (rank) => culprits.has(rank) || slow.has(rank) || rank === selected.value);
  }, [order, shown, only.value, each, states, byRank, culprits, slow, selected.value]);
  if (grid === null) return null;
  const age = asOf.value - at;
  const rows = lines.slice(0, limit).map((same) => same.map((one) => asOfNow(one, age)));
  // Of ranks that have not reported nothing else is known.
  const known = states.some((state) => state !== "unseen");
  const ranksShown = rows.reduce((sum, same) => sum + same.length, 0);
  const beating = !past && known && rows.some((same) => same.some((one) => one.heartbeat_age != null));
  const heads: Head[] = [
    ["Rank", "number"], "Node", "State",
    shown?.look === "lateness" && ["Others wait", "number"], shown?.look === "robust" && ["GPU score", "number"],
    known && (past ? "Last section" : "Section"), !past && known && ["Time in it", "number"],
    beating && ["Heartbeat age", "number wide beat", "Since its last heartbeat or step"],
    !past && known && ["Report age", "number wide", "Since its last report: a rank that hangs still reports"],
    known && ["Step", "number wide"],
  ];
  return (
    <section class="ranks">
      <h2>
        Ranks <small>{only.value === null ? (culprits.size + slow.size === 0 && new Set(states).size === 1 ? `all ${states[0]}${job?.state === "lost" && job.last_heard != null && states[0] === "silent" ? ` since ${clock(job.last_heard, asOf.value)}` : ""}` : "worst first") : `${cellWords(shown?.look ?? "state", only.value)} only`}</small>
      </h2>
      <Table name="Ranks, worst first" heads={heads}>
        {rows.map((same) => {
          const [report] = same as [Placed];
          const { rank } = report;
          const straggler = slow.get(rank);
          const alone = same.length === 1;
          const aged = moves(report.state) ? duration : wholeDuration;
          const tone = incident && culprits.has(rank) ? blame(incident) : silent.has(rank) ? "suspect" : undefined;
          const before = same.filter((one) => named.has(one.rank) && !culprits.has(one.rank));
          return [
            <tr key={rank} data-slow={straggler && true} data-alike={alone ? undefined : same.length} class={tone} aria-selected={selected.value === rank} onClick={() => alone && (selected.value = rank)}>
              <th scope="row" class="number">{runs(same.map((one) => one.rank), 3)}</th>
              <td><Nodes hosts={[...new Set(same.map(({ host }) => host))]} /></td>
              <td>
                <RankMark state={cellOf(report.state, straggler !== undefined)} /> {report.state}
                {!alone && <button type="button" class="quiet" title="Show each" onClick={() => showEach(true)}>{count(same.length)} alike</button>}
                {tone && !report.state.startsWith(tone) && <span class="tag">{tone}</span>}
                {incident && before.length > 0 && <span class="tag">{!alone && `rank ${runs(before.map((one) => one.rank), 3)}: `}{blame(incident)} of attempt {incident.attempt}</span>}
                {straggler && <SlowTag of={straggler} />}
              </td>
              {shown?.look === "lateness" && <td class="number">{wholePercent(report.scores.lateness_share === undefined ? null : Math.max(0, report.scores.lateness_share))}</td>}
              {shown?.look === "robust" && <td class="number">{score(report.scores.gpu_robust)}</td>}
              {known && <td class="code">{past ? sectionWords(report) : <InSection of={report} />}</td>}
              {!past && known && <td class="number time">{timeIn(same, asOf.value, incident?.kind === "process_exited" && culprits.has(rank) ? incident.timeline.since : null)}</td>}
              {beating && <td class="number wide beat">{figures(same, (one) => one.heartbeat_age, aged)}</td>}
              {!past && known && <td class="number wide">{figures(same, (one) => one.report_age, aged)}</td>}
              {known && <td class="number wide">{figures(same, (one) => one.iteration, count)}</td>}
            </tr>,
            report.reason !== "" && <tr key={`${rank} why`} class={["because", tone].filter(Boolean).join(" ")}><td /><td colSpan={heads.filter(Boolean).length - 1}>{report.reason}</td></tr>,
          ];
        })}
      </Table>
      <SlowNote of={slow.values().next().value} />
      <p class="more">
        {count(ranksShown)} of {count(lines.reduce((sum, same) => sum + same.length, 0))}
        {each && folds && <button type="button" class="quiet fold" onClick={() => showEach(false)}>One line for ranks that are alike</button>}
        {rows.length < lines.length && limit < 500 && (
          <button type="button" class="quiet" onClick={() => setLimit(limit + MORE_ROWS)}>
            Show {Math.min(MORE_ROWS, lines.length - rows.length)} more
          </button>
        )}
      </p>
    </section>
  );
}

/** What is known of a rank with its state in the grid, which may be newer than its report: a reason for another state is left out. */
function placed(rank: number, states: readonly RankState[], byRank: readonly (RankReport | undefined)[]): Placed {
  const none = { rank, host: "", pid: null, iteration: null, heartbeat_age: null, report_age: null, open_sections: {}, idle: null, reason: "", local_rank: null, progress: null, function: null, scores: {} };
  const report = byRank[rank];
  return { ...none, ...report, reason: report?.state === states[rank] ? report!.reason : "", state: states[rank]!, straggler: null };
}

/** In lines of ranks that are alike; those to be kept apart are alone. */
function folded(ranks: readonly Placed[], apart: (rank: number) => boolean): Placed[][] {
  const first = ranks.filter(({ rank }) => apart(rank));
  const order = new Map(ranks.map(({ rank }, place) => [rank, place]));
  const lines = [...first.map((rank) => [rank]), ...alike(ranks.filter(({ rank }) => !apart(rank)))];
  return lines.sort(([a], [b]) => order.get(a!.rank)! - order.get(b!.rank)!);
}
