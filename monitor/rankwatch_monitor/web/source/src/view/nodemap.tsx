// All nodes of all jobs on a canvas: the worst state of the ranks, and a ring around those that incidents have named.

import { useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import type { NodeMap } from "../api/types";
import { stale } from "../api/connection";
import { cell } from "../logic/layout";
import type { Cell } from "../logic/levels";
import { blocks, cells, illWords, jobNames, mapLayout, named, ORDER, slowNodes, slowWords } from "../logic/nodemap";
import { nodeAddress } from "../logic/route";
import { isTrouble, tally } from "../logic/severity";
import { count, plural } from "../logic/text";
import { cellBox, cellUnder, drawCells, movedBy, useWidth } from "./cells";
import { RankMark } from "./marks";
import { NodeLink } from "./placelinks";
import { repaint } from "./theme";

const TALLEST = 220;
/** A screen that is narrower has more lines of blocks. */
const NARROW = 600;
const MOST_RINGS = 200;
/** If so many nodes are in trouble, or fewer, their names stand beside them. */
const MOST_NAMED = 3;

export function HeatMap({ map }: { map: NodeMap }) {
  const holder = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const width = useWidth(holder);
  const [at, setAt] = useState<number | null>(null);
  const [only, setOnly] = useState<Cell | null>(null);
  const scale = devicePixelRatio;
  const groups = useMemo(() => blocks(map), [map]);
  const { codes, legend } = useMemo(() => cells(map), [map]);
  const size = map.hosts.length;
  const placed = useMemo(
    () => (width > 0 && size > 0 ? mapLayout(groups, size, { width: Math.floor(width * scale), maxHeight: Math.round((width < NARROW ? 1.6 : 1) * TALLEST * scale), scale }) : null),
    [groups, size, width, scale],
  );
  const painted = repaint.value;
  const slow = useMemo(() => slowNodes(map), [map]);
  const worse = slow.filter((node) => legend[codes[node]!] !== "slow");
  useLayoutEffect(() => {
    if (placed && canvas.current) drawCells(canvas.current, placed, codes, legend, only);
  }, [placed, codes, legend, only, painted]);
  const rings = useMemo(() => named(map).slice(0, MOST_RINGS), [map]);
  const ill = useMemo(() => map.hosts.flatMap((_, node) => (isTrouble(legend[codes[node]!]!) ? [node] : [])), [map, codes, legend]).slice(0, MOST_NAMED + 1);
  if (ill.length > MOST_NAMED) ill.length = 0;
  const counts = tally(codes, legend);
  const present = ORDER.filter((state) => (counts.get(state) ?? 0) > 0);
  const under = (event: MouseEvent) => cellUnder(event, canvas.current!, placed, scale);
  const open = (node: number | null) => {
    if (node !== null && map.hosts[node]) location.hash = nodeAddress(map.hosts[node][0]);
  };
  const keys = (event: KeyboardEvent) => {
    if (!placed) return;
    const next = event.key === "Enter" ? (open(at), at) : movedBy(event, placed, at, codes, legend, (node) => slow.includes(node));
    if (next === undefined) return;
    setAt(next);
    event.preventDefault();
  };
  return (
    <section class="heat" aria-labelledby="heat">
      <h2 id="heat">
        {stale.value === null ? "Nodes" : "Nodes, last known"}{" "}
        <small>{count(map.total)}{map.total > size && `, the first ${count(size)} shown`}</small>
      </h2>
      <div class="legend" role="group" aria-label="States of nodes; choose one to single it out">
        {present.map((state) => (
          <button key={state} type="button" aria-pressed={only === state} onClick={() => setOnly(only === state ? null : state)}>
            <RankMark state={state} />
            {word(state)} <b>{count(counts.get(state))}</b>
          </button>
        ))}
        {worse.length > 0 && <span class="ringed"><i class="slow" aria-hidden="true" />slow besides <b>{count(worse.length)}</b></span>}
        {rings.length > 0 && <span class="ringed"><i aria-hidden="true" />incidents <b>{count(rings.length)}</b></span>}
      </div>
      <div
        ref={holder} class="field" tabIndex={0} role="application" aria-roledescription="map of nodes" aria-describedby="heat-keys"
        aria-label={`${plural(size, "node")} by the worst rank: ${present.map((state) => `${count(counts.get(state))} ${word(state)}`).join(", ")}`}
        onKeyDown={keys}
        onPointerMove={(event) => setAt(under(event) ?? at)}
        onClick={(event) => open(under(event))}
      >
        {placed && (
          <div class="plane" style={{ width: `${placed.width / scale}px`, height: `${placed.height / scale}px` }}>
            <canvas ref={canvas} width={placed.width} height={placed.height} aria-hidden="true" />
            {placed.labels.map((block) => (
              <span key={block.text} class="node" title={block.text} style={{ left: `${block.x / scale}px`, top: `${block.y / scale}px`, maxWidth: `${block.width / scale}px` }}>{block.text}</span>
            ))}
            {rings.map((node) => <span key={map.hosts[node]![0]} class="ring thin" style={cellBox(placed, node, scale)} />)}
            {worse.slice(0, MOST_RINGS).map((node) => <span key={`slow ${map.hosts[node]![0]}`} class="ring slow" style={cellBox(placed, node, scale)} />)}
            {ill.map((node) => {
              const at = cell(placed, node);
              return (
                <span key={`ill ${map.hosts[node]![0]}`} class="ring" style={cellBox(placed, node, scale)}>
                  {placed.named === 0 && !ill.some((other) => other !== node && near(at, cell(placed, other), scale)) && (
                    <em class={at.x > placed.width / 2 ? "before" : "after"}>{map.hosts[node]![0]}</em>
                  )}
                </span>
              );
            })}
            {placed.named > 0 && map.hosts.map(([host], node) => {
              const { x, y, height } = cell(placed, node), words = illWords(map, node);
              return (
                <span key={`name ${host}`} class="named" title={`${host} ${words}`} style={{ left: `${x / scale}px`, top: `${(y + height) / scale}px`, width: `${placed.named / scale - 12}px` }}>
                  {host}
                  <em>{words}</em>
                </span>
              );
            })}
            {at !== null && at < size && <span class="cursor" style={cellBox(placed, at, scale)} />}
          </div>
        )}
      </div>
      <p class="readout" id="heat-keys" aria-live="polite">
        {at === null || at >= size ? <small class="keys">Arrow keys; N: next in trouble; Enter opens it.</small> : <Words map={map} node={at} state={legend[codes[at]!]!} />}
      </p>
    </section>
  );
}

function Words({ map, node, state }: { map: NodeMap; node: number; state: Cell }) {
  const [host, , ranks, incidents, jobs] = map.hosts[node]!, slow = slowWords(map, host);
  return (
    <>
      <RankMark state={state} />
      <b><NodeLink host={host} /></b>
      <span>{ranks === 0 ? "no ranks now" : `${plural(ranks, "rank")}, the worst ${word(state)}`}</span>
      {jobs.length > 0 && <span>{jobNames(map, jobs)}</span>}
      {slow && <span class="tag slow">{slow}</span>}
      {incidents > 0 && <span>named by {plural(incidents, "incident")}</span>}
    </>
  );
}

/** Whether two names would overlap. */
function near(one: { x: number; y: number }, other: { x: number; y: number }, scale: number): boolean {
  return Math.abs(one.y - other.y) < 22 * scale && Math.abs(one.x - other.x) < 140 * scale;
}

function word(state: Cell): string {
  return state === "level-unknown" ? "no ranks" : state;
}
