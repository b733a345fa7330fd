// The ranks of a past incident, as they were then: its record has culprits and those that waited.

import type { Incident, RankState, StackGroup } from "../api/types";
import { asOf } from "../api/connection";
import { blame } from "../logic/suspicion";
import { classWords, hostsThen, innermost, placeWords, ranksThen } from "../logic/incidents";
import { clock, count, plural, runs } from "../logic/text";
import type { JobWatch } from "../live/job";
import { RankMark } from "./marks";
import { Nodes } from "./placedranks";
import { NodeLink } from "./placelinks";

const FEW = 16;
/** Kinds that add nothing to the state. */
const AS_STATED: ReadonlySet<string> = new Set(["", "behind"]);

export function RanksThen({ watch, incident, worldSize, groups }: { watch: JobWatch; incident: Incident; worldSize: number; groups: readonly StackGroup[] }) {
  const { culprits, waiting, others } = ranksThen(incident, worldSize);
  const { byRank } = watch.reports.value;
  const hosts = (ranks: readonly number[]) => hostsThen(ranks, culprits, (rank) => byRank[rank]?.host);
  const { section } = incident;
  const placed = section !== null || groups.length > 0;
  const inside = (ranks: readonly number[], last: string | null) => placed && <td class="inside"><span class="code">{innermost(groups, ranks) || last || "–"}</span>{last !== null && innermost(groups, ranks) !== "" && <>, section <span class="code">{last}</span></>}</td>;
  const was = (state: RankState, ranks: readonly number[], words: string) => ranks.length > 0 && (
    <tr>
      <th scope="row">{runs(ranks)}</th>
      <td><Nodes hosts={hosts(ranks)} /></td>
      <td><RankMark state={state} /> {words} <small>{plural(ranks.length, "rank")}</small></td>
      {inside(ranks, null)}
    </tr>
  );
  return (
    <section class="ranks then">
      <h2>
        Ranks then <small>{clock(incident.timeline.detected ?? incident.opened_at, asOf.value)}, in {placeWords(incident)}</small>
      </h2>
      <div class="scroll" role="region" aria-label="Ranks of the incident" tabIndex={0}>
        <table>
          <thead>
            <tr><th scope="col">Ranks</th><th scope="col">Node</th><th scope="col">State</th>{placed && <th scope="col" class="inside">In</th>}</tr>
          </thead>
          <tbody>
            {culprits.slice(0, FEW).map(({ rank, host, state, kind }) => (
              <tr key={rank} class={blame(incident)}>
                <th scope="row">{rank}</th>
                <td><NodeLink host={host} /></td>
                <td><RankMark state={state} /> {state}{!AS_STATED.has(kind) && kind !== state && `: ${classWords(kind)}`} <span class="tag">{blame(incident)}</span></td>
                {inside([rank], section)}
              </tr>
            ))}
            {was("waiting", waiting, incident.culprits.length > 0 ? "waited" : "made no progress")}
            {was("running", others, "made progress")}
          </tbody>
        </table>
      </div>
      {culprits.length > FEW && <p class="more">{count(FEW)} of {count(culprits.length)} culprits</p>}
    </section>
  );
}
