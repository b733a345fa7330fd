// The content of the rank grid as a table.

import { useMemo, useState } from "preact/hooks";
import type { Incident } from "../api/types";
import type { JobWatch } from "../live/job";
import { cellWords, slowestFirst } from "../logic/levels";
import { isFormer } from "../logic/incidents";
import { openSection, worstFirst } from "../logic/severity";
import { blame } from "../logic/suspicion";
import { score, slowRanks, slowTag } from "../logic/stragglers";
import { count, duration, percent } from "../logic/text";
import { RankMark } from "./marks";
import { shownBy } from "./look";
import { NodeLink } from "./placelinks";
import { look, only, selected } from "./selection";

const FIRST_ROWS = 10;
const MORE_ROWS = 50;

export function RankTable({ watch, incident }: { watch: JobWatch; incident: Incident | null }) {
  const [limit, setLimit] = useState(FIRST_ROWS);
  const job = watch.job.value;
  const former = job !== null && incident !== null && isFormer(job, incident);
  const named = useMemo(() => new Set(incident?.closed_at === null ? incident.culprits.map((culprit) => culprit.rank) : []), [incident]);
  const past = job?.state === "lost" || job?.ended_at != null;
  const grid = watch.grid.value;
  const { byRank } = watch.reports.value;
  const culprits = useMemo(() => new Set(incident?.closed_at === null && !former ? incident.culprits.map((culprit) => culprit.rank) : []), [incident, former]);
  const states = useMemo(() => Array.from(grid?.states ?? [], (byte) => grid!.legend[byte] ?? "unseen"), [grid]);
  const performance = watch.performance.value;
  const slow = useMemo(() => slowRanks(performance), [performance]);
  const order = useMemo(() => worstFirst(states, byRank, named, slow.keys()), [states, byRank, named, slow]);
  const shown = shownBy(grid, look.value, watch.looks.value);
  const slowest = shown === null || shown.look === "state" ? order : slowestFirst(order, shown.codes);
  const wanted = only.value === null ? slowest : slowest.filter((rank) => shown!.legend[shown!.codes[rank]!] === only.value);
  if (grid === null) return null;
  const rows = wanted.slice(0, limit);
  const beating = !past && rows.some((rank) => byRank[rank]?.heartbeat_age != null);
  const withReasons = rows.some((rank) => byRank[rank]?.reason);
  return (
    <section class="ranks">
      <h2>
        Ranks <small>{only.value === null ? (named.size + slow.size === 0 && new Set(states).size === 1 ? `all ${states[0]}` : "worst first") : `${cellWords(shown?.look ?? "state", only.value)} only`}</small>
      </h2>
      <div class="scroll" role="region" aria-label="Ranks, worst first" tabIndex={0}>
        <table>
          <thead>
            <tr>
              <th scope="col" class="number">Rank</th>
              <th scope="col">Node</th>
              <th scope="col">State</th>
              {shown?.look === "lateness" && <th scope="col" class="number">Others wait</th>}
              {shown?.look === "robust" && <th scope="col" class="number">GPU score</th>}
              <th scope="col">{past ? "Last section" : "Section"}</th>
              {!past && <th scope="col" class="number">Time in it</th>}
              {beating && <th scope="col" class="number wide">Heartbeat age</th>}
              <th scope="col" class="number wide">Step</th>
              {withReasons && <th scope="col" class="wide">Why</th>}
            </tr>
          </thead>
          <tbody>
            {rows.map((rank) => {
              const report = byRank[rank];
              const section = openSection(report);
              const straggler = slow.get(rank);
              return (
                <tr key={rank} data-slow={straggler && true} class={incident && culprits.has(rank) ? blame(incident) : undefined} aria-selected={selected.value === rank} onClick={() => (selected.value = rank)}>
                  <th scope="row" class="number">{rank}</th>
                  <td><NodeLink host={report?.host} /></td>
                  <td>
                    <RankMark state={states[rank]!} /> {states[rank]}
                    {incident && named.has(rank) && <span class="tag">{blame(incident)}{former && ` of attempt ${incident.attempt}`}</span>}
                    {straggler && <span class="tag slow" title={straggler.reason}>{slowTag(straggler)}</span>}
                  </td>
                  {shown?.look === "lateness" && <td class="number">{percent(report?.scores?.lateness_share === undefined ? null : Math.max(0, report.scores.lateness_share))}</td>}
                  {shown?.look === "robust" && <td class="number">{score(report?.scores?.gpu_robust)}</td>}
                  <td class="code">{section?.name ?? (report?.idle != null ? "outside" : "–")}</td>
                  {!past && <td class="number">{duration(section?.seconds ?? report?.idle)}</td>}
                  {beating && <td class="number wide">{duration(report?.heartbeat_age)}</td>}
                  <td class="number wide">{count(report?.iteration)}</td>
                  {withReasons && <td class="wide why">{report?.reason}</td>}
                </tr>
              );
            })}
          </tbody>
        </table>
      </div>
      <p class="more">
        {count(rows.length)} of {count(wanted.length)}
        {rows.length < wanted.length && limit < 500 && (
          <button type="button" class="quiet" onClick={() => setLimit(limit + MORE_ROWS)}>
            Show {Math.min(MORE_ROWS, wanted.length - rows.length)} more
          </button>
        )}
      </p>
    </section>
  );
}
