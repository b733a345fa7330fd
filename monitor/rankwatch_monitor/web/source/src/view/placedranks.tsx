// The ranks of a node or a group as a table.

import type { PlacedRank } from "../api/types";
import { asOf } from "../api/connection";
import { rankAddress } from "../logic/route";
import { isTrouble, openSection } from "../logic/severity";
import { score, slowTag } from "../logic/stragglers";
import { clock, count, duration, percent, roughly } from "../logic/text";
import { deviceFacts } from "../logic/device";
import { RankMark } from "./marks";
import { GroupLinks, NodeLink } from "./placelinks";

interface Props {
  job: string;
  ranks: readonly PlacedRank[];
  name: string;
  /** Leave out what the page itself is about. */
  without: "node" | "groups";
}

export function PlacedRanks({ job, ranks, name, without }: Props) {
  const devices = ranks.some((rank) => deviceFacts(rank.device) !== "");
  const grouped = ranks.some((rank) => Object.keys(rank.groups).length > 0);
  const scored = ranks.some((rank) => rank.scores?.gpu_robust !== undefined);
  const late = ranks.some((rank) => rank.scores?.lateness_share !== undefined);
  const beating = ranks.some((rank) => rank.heartbeat_age !== null);
  return (
    <div class="scroll" role="region" aria-label={name} tabIndex={0}>
      <table>
        <thead>
          <tr>
            <th scope="col" class="number">Rank</th>
            {without !== "node" && <th scope="col">Node</th>}
            <th scope="col">State</th>
            <th scope="col">Section</th>
            <th scope="col" class="number">Time in it</th>
            {beating && <th scope="col" class="number">Heartbeat age</th>}
            <th scope="col" class="number">Step</th>
            {late && <th scope="col" class="number">Others wait</th>}
            {scored && <th scope="col" class="number">GPU score</th>}
            {devices && <th scope="col">Device</th>}
            {grouped && <th scope="col">{without === "groups" ? "All its groups" : "Groups"}</th>}
          </tr>
        </thead>
        <tbody>
          {ranks.map((rank) => {
            const section = openSection(rank);
            const share = rank.scores?.lateness_share;
            return (
              <tr key={rank.rank} class={isTrouble(rank.state) ? "troubled" : undefined} data-slow={rank.straggler != null || undefined}>
                <th scope="row" class="number"><a href={rankAddress(job, rank.rank)}>{rank.rank}</a></th>
                {without !== "node" && <td><NodeLink host={rank.host} /></td>}
                <td>
                  <RankMark state={rank.state} /> {rank.state}
                  {rank.straggler && <span class="tag slow">{slowTag(rank.straggler)}</span>}
                  {rank.straggler && <small class="why">{rank.straggler.reason.replace(/\.$/, "")}. Since {clock(rank.straggler.since, asOf.value)}, for {roughly(asOf.value - rank.straggler.since)}.</small>}
                  {rank.reason !== "" && <small class="why">{rank.reason}</small>}
                </td>
                <td class="code">{section?.name ?? (rank.idle != null ? "outside" : "–")}</td>
                <td class="number">{duration(section?.seconds ?? rank.idle)}</td>
                {beating && <td class="number">{duration(rank.heartbeat_age)}</td>}
                <td class="number">{count(rank.iteration)}</td>
                {late && <td class="number">{percent(share === undefined ? null : Math.max(0, share))}</td>}
                {scored && <td class="number">{score(rank.scores?.gpu_robust)}</td>}
                {devices && <td>{deviceFacts(rank.device) || "–"}</td>}
                {grouped && <td><GroupLinks job={job} groups={rank.groups} /></td>}
              </tr>
            );
          })}
        </tbody>
      </table>
    </div>
  );
}
