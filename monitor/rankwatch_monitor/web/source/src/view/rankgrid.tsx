// The rank grid: all ranks on a canvas, with keyboard navigation and a text readout.

import { useLayoutEffect, useMemo, useRef } from "preact/hooks";
import type { Incident, Straggler } from "../api/types";
import { asOf, stale } from "../api/connection";
import { useGrid } from "../live/grid";
import type { JobWatch } from "../live/job";
import { cell, layout, type Layout, readable, rings } from "../logic/layout";
import { type Cell, cellOf, cellWords, type Look } from "../logic/levels";
import { isFormer } from "../logic/incidents";
import { byCoordinate, byNode, coordinatesOf, type NodeGroup } from "../logic/nodes";
import { DIMENSIONS, groupName } from "../logic/route";
import { asOfNow, isTrouble, moves, openSection, secondsIn, sectionWords, tally } from "../logic/severity";
import { NUMBERED, readableOn, silentFrame } from "../logic/glyphs";
import { score, slowRanks, slowTag } from "../logic/stragglers";
import { count, duration, plural, wholeDuration, wholePercent } from "../logic/text";
import { cellBox, cellUnder, cssBox, drawCells, movedBy, useWidth } from "./cells";
import { Finder } from "./finder";
import { RankMark } from "./marks";
import { GroupChoice, LookChoice, useLooks, type Shown, shownBy } from "./look";
import { tone } from "./palette";
import { NodeLink } from "./placelinks";
import { SlowTag } from "./slowtag";
import { grouping, look, only, selected } from "./selection";
import { colour, repaint } from "./theme";

const TALLEST = 440;
/** Of more ranks one is found by its number. */
const EASILY_FOUND = 8;
/** In smaller cells, ranks in trouble get a ring. */
const EASILY_SEEN = 8;
const MOST_TROUBLED = 48;
/** In larger cells there is room for the tag of a slow rank. */
const ROOMY = 46;
/** Slow ranks whose names stand beside their rings where cells have no numbers. */
const NAMED_SLOW = 1;
/** Open stragglers by rank. */
type Slow = ReadonlyMap<number, Straggler>;

/** Drawn as a frame: the number is drawn on the background, not on the fill. */
const HOLLOW: ReadonlySet<string> = new Set(["unseen", "silent", "finished", "level-unknown"]);

const LEGEND: Record<Look, string> = {
  state: "States; choose one to filter by it",
  lateness: "Share of a step that the other ranks wait for the rank; choose one to filter by it",
  robust: "GPU score against the median of the peers; choose one to filter by it",
  heartbeat_age: "Age of the last heartbeat; choose one to filter by it",
  temperature: "Temperature of the device; choose one to filter by it",
};

export function RankGrid({ watch, incident }: { watch: JobWatch; incident: Incident | null }) {
  const snapshot = watch.grid.value;
  const lost = watch.job.value?.state === "lost";
  const former = incident !== null && watch.job.value !== null && isFormer(watch.job.value, incident);
  const chosen = look.value;
  const layouts = useGrid(`/jobs/${encodeURIComponent(watch.id)}`, chosen, watch.looks);
  const bytes = useLooks(watch);
  const performance = watch.performance.value;
  const slow = useMemo(() => slowRanks(performance), [performance]);
  const grid = useMemo(() => shownBy(snapshot, chosen, bytes, slow.keys()), [snapshot, chosen, bytes, slow]);
  const worldSize = grid?.codes.length ?? 0;
  const hosts = useHosts(watch, worldSize);
  const dimension = grouping.value;
  const coordinates = layouts[dimension];
  const groups = useMemo(
    () => (coordinates ? byCoordinate(worldSize, dimension, coordinates) : byNode(worldSize, (rank) => hosts[rank])),
    [worldSize, hosts, coordinates],
  );
  const holder = useRef<HTMLDivElement>(null);
  const width = useWidth(holder);
  const canvas = useRef<HTMLCanvasElement>(null);
  const scale = devicePixelRatio;
  const placed = useMemo(
    () => (width > 0 && worldSize > 0 ? layout(groups, worldSize, { width: Math.floor(width * scale), maxHeight: Math.round(TALLEST * scale), scale }) : null),
    [groups, worldSize, width, scale],
  );
  const painted = repaint.value;
  const filter = only.value;
  useLayoutEffect(() => {
    if (placed && grid && canvas.current) draw(canvas.current, placed, grid, filter, scale);
  }, [placed, grid, filter, painted]);

  const at = (event: PointerEvent) => cellUnder(event, canvas.current!, placed, scale);
  const keys = (event: KeyboardEvent) => {
    const next = placed && grid ? movedBy(event, placed, selected.value, grid.codes, grid.legend, (rank) => slow.has(rank)) : undefined;
    if (next === undefined) return;
    selected.value = next;
    event.preventDefault();
  };
  const counts = grid ? tally(grid.codes, grid.legend) : new Map<Cell, number>();
  const stateCounts: ReadonlyMap<Cell, number> = snapshot && grid?.look === "state" ? counts : new Map<Cell, number>();
  const besides = slow.size - (counts.get("slow") ?? 0);
  const present = (grid?.order ?? []).filter((cell) => (counts.get(cell) ?? 0) > 0);
  const words = (cell: Cell) => cellWords(grid!.look, cell);
  return (
    <section class="grid">
      <header>
        <h2>
          {stale.value !== null ? "Ranks, last known" : "Ranks"} <small>{worldSize > 0 && `${count(worldSize)} ${coordinates ? `in ${plural(groups.length, `${dimension} group`)}` : `on ${groups[0]?.host === "" ? "unknown nodes" : plural(groups.length, "node")}`}`}</small>
        </h2>
        {worldSize > EASILY_FOUND && <Finder job={watch.id} places={{ worldSize, hosts, states: stateCounts }} />}
        <LookChoice looks={bytes} />
        <GroupChoice dimensions={layouts} />
      </header>
      <div class="legend" role="group" aria-label={LEGEND[grid?.look ?? "state"]}>
        {present.map((state) => (
          <button key={state} type="button" aria-pressed={filter === state} onClick={() => (only.value = filter === state ? null : state)}>
            <RankMark state={state} />
            {words(state)}{lost && state === "silent" && " since then"} <b>{count(counts.get(state))}</b>{state === "slow" && performance!.open > slow.size && ` of ${count(performance!.open)}, the costliest`}
          </button>
        ))}
        {besides > 0 && <span class="ringed"><i class="slow" aria-hidden="true" />{grid?.look === "state" ? "slow besides" : "slow"} <b>{count(besides)}</b></span>}
      </div>
      <div
        ref={holder}
        class="field"
        tabIndex={0}
        role="application"
        aria-roledescription="rank grid"
        aria-label={`${count(worldSize)} ranks: ${present.map((state) => `${count(counts.get(state))} ${words(state)}`).join(", ")}`}
        aria-describedby="grid-keys"
        onKeyDown={keys}
        onPointerMove={(event) => (selected.value = at(event) ?? selected.value)}
        onPointerDown={(event) => (selected.value = at(event))}
      >
        {placed && (
          <div class="plane" style={{ width: `${placed.width / scale}px`, height: `${placed.height / scale}px` }}>
            <canvas ref={canvas} width={placed.width} height={placed.height} aria-hidden="true" />
            {(placed.lines || placed.head.height > 0) && <NodeNames placed={placed} scale={scale} />}
            <Rings placed={placed} groups={groups} scale={scale} grid={grid!} incident={former ? null : incident} slow={slow} />
            {selected.value !== null && selected.value < worldSize && <span class="cursor" style={cellBox(placed, selected.value, scale)} />}
          </div>
        )}
      </div>
      <Readout watch={watch} shown={grid} coordinates={layouts} slow={slow} />
    </section>
  );
}

/** Hosts by rank; the same array until a host changes, so that the layout is cached. */
function useHosts(watch: JobWatch, worldSize: number): string[] {
  const kept = useRef<string[]>([]);
  const { byRank } = watch.reports.value;
  const hosts = Array.from({ length: worldSize }, (_, rank) => byRank[rank]?.host ?? "");
  const same = hosts.length === kept.current.length && hosts.every((host, rank) => host === kept.current[rank]);
  if (!same) kept.current = hosts;
  return kept.current;
}

function draw(canvas: HTMLCanvasElement, placed: Layout, grid: Shown, filter: string | null, scale: number): void {
  const context = drawCells(canvas, placed, grid.codes, grid.legend, filter);
  if (placed.cell / scale < NUMBERED) return;
  context.font = `${Math.round(10 * scale)}px ${colour("sans")}`;
  context.textBaseline = "top";
  const quiet = colour("quiet");
  const numbers = new Map(grid.legend.map((state) => [state, HOLLOW.has(state) ? quiet : readableOn(colour(tone(state)))]));
  for (let rank = 0; rank < grid.codes.length; rank++) {
    const state = grid.legend[grid.codes[rank]!]!;
    context.fillStyle = numbers.get(state)!;
    const inset = state === "silent" ? silentFrame(placed.cell) + 3 * scale : 4 * scale;
    context.fillText(String(rank), placed.corners[2 * rank]! + inset, placed.corners[2 * rank + 1]! + inset);
  }
}

function NodeNames({ placed, scale }: { placed: Layout; scale: number }) {
  return (
    <>
      {placed.nodes.map((node) => (
        <span key={node.host} class="node" title={node.host} style={{ left: `${node.x / scale}px`, top: `${node.y / scale}px`, lineHeight: placed.lines ? `${placed.cell / scale}px` : "16px", maxWidth: placed.lines ? undefined : `${placed.head.width / scale}px` }}>
          {node.host}
        </span>
      ))}
    </>
  );
}

interface Ringed {
  placed: Layout;
  groups: NodeGroup[];
  scale: number;
  grid: Shown;
  incident: Incident | null;
  slow: Slow;
}

/** Rings around culprits and slow ranks, with their names, and around others in trouble: few of 16,384 cells are hard to see. */
function Rings({ placed, groups, scale, grid, incident, slow }: Ringed) {
  const culprits = incident !== null && incident.closed_at === null ? incident.culprits.map((culprit) => culprit.rank) : [];
  const size = placed.cell / scale;
  const others = size < EASILY_SEEN ? troubled(grid).filter((rank) => !culprits.includes(rank) && !slow.has(rank)) : [];
  const stragglers = [...slow.values()].filter(({ rank }) => rank < grid.codes.length && !culprits.includes(rank));
  const side = (x: number) => (x > placed.width / 2 ? "before" : "after");
  const found = rings(placed, groups, culprits);
  // Where cells have no numbers, names stand beside their rings: of several at one place, the first.
  const names = [
    ...found.map(({ x, y, label }) => ({ x, y, text: label })),
    ...stragglers.slice(0, NAMED_SLOW).map((each) => ({ ...cell(placed, each.rank), text: `rank ${each.rank} ${slowTag(each)}` })),
  ].map(({ x, y, text }) => ({ x: x / scale, y: y / scale, text, before: side(x) === "before" }));
  const named = size < NUMBERED ? readable(names) : new Set<string>();
  return (
    <>
      {stragglers.map((each) => {
        const at = cell(placed, each.rank);
        const name = `rank ${each.rank} ${slowTag(each)}`;
        return (
          <span key={`slow ${each.rank}`} class={grid.look === "state" && size >= EASILY_SEEN ? "ring slow filled" : "ring slow"} style={cssBox(at, scale)}>
            {size >= ROOMY && <em class="within">slow</em>}
            {named.has(name) && <em class={side(at.x)}>{name}</em>}
          </span>
        );
      })}
      {others.map((rank) => (
        <span key={rank} class="ring thin" style={cellBox(placed, rank, scale)} />
      ))}
      {found.map((ring) => (
        <span key={ring.label} class="ring" style={cssBox(ring, scale)}>
          {named.has(ring.label) && <em class={side(ring.x)}>{ring.label}</em>}
        </span>
      ))}
    </>
  );
}

/** The ranks in trouble; none if they are too many for rings. */
function troubled(grid: Shown): number[] {
  const found: number[] = [];
  for (let rank = 0; rank < grid.codes.length && found.length <= MOST_TROUBLED; rank++) {
    if (isTrouble(grid.legend[grid.codes[rank]!]!)) found.push(rank);
  }
  return found.length > MOST_TROUBLED ? [] : found;
}

function Readout({ watch, shown, coordinates, slow }: { watch: JobWatch; shown: Shown | null; coordinates: Record<string, Uint16Array>; slow: Slow }) {
  const rank = selected.value;
  const grid = watch.grid.value;
  const byte = rank === null ? undefined : grid?.states[rank];
  if (rank === null || !grid || byte === undefined) {
    return (
      <p class="readout" id="grid-keys">
        <small class="keys">Arrow keys; N: next in trouble; /: go to.</small>
      </p>
    );
  }
  const { byRank, at } = watch.reports.value;
  const state = grid.legend[byte]!;
  const report = byRank[rank] && asOfNow({ ...byRank[rank], state }, asOf.value - at);
  const inside = secondsIn(report);
  const aged = moves(state) ? duration : wholeDuration;
  return (
    <p class="readout" id="grid-keys" aria-live="polite">
      <RankMark state={cellOf(state, slow.has(rank))} />
      <b>Rank {rank}</b>
      {report?.host && <span><NodeLink host={report.host} /></span>}
      {DIMENSIONS.map((each) => coordinatesOf(coordinates, rank)[each] !== undefined && <span key={each}>{groupName(each, coordinatesOf(coordinates, rank)[each])}</span>)}
      <span>{state}</span>
      {slow.has(rank) && <SlowTag of={slow.get(rank)!} />}
      {shown && shown.look !== "state" && shown.codes[rank] !== undefined && <RankMark state={shown.legend[shown.codes[rank]!]!} />}
      {report?.scores?.gpu_robust !== undefined && <span>GPU score {score(report.scores.gpu_robust)}</span>}
      {(report?.scores?.lateness_share ?? 0) > 0 && <span>others wait {wholePercent(report!.scores!.lateness_share!)} of a step</span>}
      {inside !== null && <span>{openSection(report) && "in "}<span class="code">{sectionWords(report!)}</span> {state === "silent" ? "when last heard" : `for ${aged(inside)}`}</span>}
      {report?.heartbeat_age != null && <span>heartbeat {aged(report.heartbeat_age)} ago</span>}
      {report?.iteration != null && <span>step {count(report.iteration)}</span>}
      {report?.pid != null && <span>pid {report.pid}</span>}
      {report?.reason && <span>{report.reason}</span>}
    </p>
  );
}
