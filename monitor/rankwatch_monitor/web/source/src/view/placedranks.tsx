// The ranks of a group as a table. One line stands for those that are alike, until it is opened.

import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import type { Dimension, RankReport } from "../api/types";
import { asOf } from "../api/connection";
import { alike, type Placed } from "../logic/alike";
import { deviceFacts } from "../logic/device";
import { cellOf } from "../logic/levels";
import { DIMENSIONS, groupName, rankAddress } from "../logic/route";
import { beatsApart, figures, isTrouble, moves, secondsIn, sectionWords, timeIn } from "../logic/severity";
import { restOf, score } from "../logic/stragglers";
import { clock, count, duration, plural, roughly, runs, wholeDuration, wholePercent } from "../logic/text";
import { RankMark } from "./marks";
import { GroupLinks, NodeLink } from "./placelinks";
import { SlowNote, SlowTag } from "./slowtag";
import { narrow } from "./preferences";

interface Props {
  job: string;
  ranks: readonly Placed[];
  name: string;
  /** Text above, of which nothing is repeated. */
  above?: string;
}

const WAITED_FOR = "Others wait for it";
/** On a phone these are columns, and those are a line below the state. */
const [ON_PHONE, BELOW]: [readonly string[], readonly string[]] = [["Node", "Time in it", WAITED_FOR], ["Section", "Heartbeat age", "Step"]];

export function PlacedRanks({ job, ranks, name, above = "" }: Props) {
  const [each, showEach] = useState(false);
  const lines = alike(ranks);
  const all = columnsOf(ranks, job);
  const columns = all.filter(({ head }) => !narrow.value || ON_PHONE.includes(head));
  const below = all.filter(({ head }) => narrow.value && BELOW.includes(head));
  return (
    <div class="scroll" role="region" aria-label={name} tabIndex={0}>
      <table>
        <thead>
          <tr>
            <th scope="col" class="number">Rank</th>
            <th scope="col">State</th>
            {columns.map(({ head, kind }) => <th key={head} scope="col" class={kind === "number" ? kind : undefined}>{head}</th>)}
          </tr>
        </thead>
        <tbody>
          {(each ? lines.flat().map((rank) => [rank]) : lines).map((same) => {
            const first = same[0]!;
            return (
              <tr key={first.rank} data-rank-state={first.state} class={isTrouble(first.state) ? "troubled" : undefined} data-slow={first.straggler != null || undefined} data-alike={same.length > 1 ? same.length : undefined}>
                <th scope="row" class="number">{same.length > 1 ? runs(same.map(({ rank }) => rank)) : <a href={rankAddress(job, first.rank)}>{first.rank}</a>}</th>
                <td><State rank={first} above={above} same={same.length} open={() => showEach(true)} />{below.length > 0 && <small class="why">{below.map(({ head, cell }, i) => <span key={head}>{i > 0 && " · "}{head.toLowerCase()} {cell(same)}</span>)}</small>}</td>
                {columns.map(({ head, kind, cell }) => <td key={head} class={kind}>{cell(same)}</td>)}
              </tr>
            );
          })}
        </tbody>
      </table>
      <SlowNote of={ranks.find(({ straggler }) => straggler)?.straggler} />
      {each && lines.length < ranks.length && <button type="button" class="quiet fold" onClick={() => showEach(false)}>One line for ranks that are alike</button>}
    </div>
  );
}

/** `same`: how many ranks the line stands for. */
function State({ rank, above, same, open }: { rank: Placed; above: string; same: number; open: () => void }) {
  const { straggler } = rank;
  return (
    <>
      <RankMark state={cellOf(rank.state, straggler != null)} /> {rank.state}
      {same > 1 && <button type="button" class="quiet" onClick={open}>{same} alike: show each</button>}
      {straggler && <SlowTag of={straggler} />}
      {straggler && <small class="why">{restOf(straggler.reason.replace(/\.$/, ""), above) && `${straggler.reason.replace(/\.$/, "")}. `}Since {clock(straggler.since, asOf.value)}, for {roughly(asOf.value - straggler.since)}.</small>}
      {rank.reason !== "" && <small class="why">{rank.reason}</small>}
    </>
  );
}

interface Column {
  head: string;
  kind?: "number" | "code" | "device";
  /** Of ranks that are alike. */
  cell: (same: readonly Placed[]) => ComponentChildren;
}

/** Those of which any rank has a figure. */
function columnsOf(ranks: readonly Placed[], job: string): Column[] {
  const cells = (of: (rank: Placed) => number | null | undefined, text: (value: number) => string) => (same: readonly Placed[]) => figures(same, of, text);
  const any = (of: (rank: Placed) => unknown) => ranks.some((rank) => of(rank) != null);
  const aged = ranks.every(({ state }) => moves(state)) ? duration : wholeDuration;
  const placed = ranks.some((rank) => secondsIn(rank) !== null);
  const all: (Column | false)[] = [
    { head: "Node", cell: (same) => <Nodes hosts={[...new Set(same.map(({ host }) => host))]} /> },
    placed && { head: "Section", kind: "code", cell: ([first]) => <InSection of={first!} /> },
    placed && { head: "Time in it", kind: "number", cell: (same) => timeIn(same, asOf.value) },
    ranks.some(beatsApart) && { head: "Heartbeat age", kind: "number", cell: cells((rank) => rank.heartbeat_age, aged) },
    { head: "Step", kind: "number", cell: cells((rank) => rank.iteration, count) },
    any((rank) => rank.scores?.lateness_share) && { head: WAITED_FOR, kind: "number", cell: cells((rank) => rank.scores?.lateness_share, (share) => wholePercent(Math.max(0, share))) },
    any((rank) => rank.scores?.gpu_robust) && { head: "GPU score", kind: "number", cell: cells((rank) => rank.scores?.gpu_robust, score) },
    ranks.some((rank) => deviceFacts(rank.device) !== "") && { head: "Device", kind: "device", cell: (same) => deviceFacts(...same.map(({ device }) => device)) || "–" },
    ranks.some((rank) => Object.keys(rank.groups).length > 0) && {
      head: "All its groups",
      cell: (same) => same.length > 1 ? groupsOf(same) : <GroupLinks job={job} groups={same[0]!.groups} />,
    },
  ];
  return all.filter((column) => column !== false);
}

/** "data rank 0–15 · pipeline stage 1": the groups of ranks that are alike. */
function groupsOf(same: readonly Placed[]): string {
  const numbers = (of: Dimension) => [...new Set(same.flatMap(({ groups }) => groups[of] ?? []))];
  return DIMENSIONS.filter((each) => numbers(each).length > 0).map((each) => groupName(each, runs(numbers(each)))).join(" · ");
}

/** The section of a rank; of a silent one as it was last heard. */
export function InSection({ of }: { of: RankReport }) {
  return <>{sectionWords(of)}{of.state === "silent" && secondsIn(of) !== null && <small> when last heard</small>}</>;
}

/** One node by its name, several by their number. */
export function Nodes({ hosts }: { hosts: readonly string[] }) {
  return hosts.length > 1 ? <>{plural(hosts.length, "node")}</> : <NodeLink host={hosts[0]} />;
}
