import assert from "node:assert/strict";
import { test } from "node:test";
import type { NodeMap } from "../src/api/types";
import { blocks, cells, illWords, mapLayout, nodesOf, ORDER, slowNodes, slowWords } from "../src/logic/nodemap";
import { tally } from "../src/logic/severity";

/** Hosts of jobs a, b, ... by the codes of their states. */
function map(...jobs: number[][]): NodeMap {
  const hosts = jobs.flatMap((states, job) => states.map((state, i) => [`${"abcdefgh"[job]}-${i}`, state, 8, 0, [job]] as NodeMap["hosts"][number]));
  return { legend: ["unseen", "running", "hung", "no ranks"], jobs: jobs.map((_, i) => ({ id: `${i}`, name: `job-${"abcdefgh"[i]}` })), total: hosts.length, slow: {}, slow_jobs: {}, worst_jobs: {}, hosts };
}

test("the job with the worst node has the first block", () => {
  const found = blocks({ ...map([1, 1], [1, 2], [1]), hosts: [...map([1, 1], [1, 2], [1]).hosts, ["spare", 3, 0, 1, []]] });
  assert.deepEqual(found.map(({ host }) => host), ["job-b", "job-a", "job-c", "no job"]);
});

test("each node is counted once: one with a slow rank as slow, unless a worse state is there", () => {
  const every = { ...map([1, 1, 2], [1, 3]), slow: { "a-1": 1, "a-2": 2 } };
  const { codes, legend } = cells(every);
  const counts = tally(codes, legend);
  assert.deepEqual(ORDER.flatMap((cell) => (counts.get(cell) ? [[cell, counts.get(cell)]] : [])), [["hung", 1], ["slow", 1], ["running", 2], ["level-unknown", 1]]);
  assert.deepEqual(blocks({ ...map([1], [1]), slow: { "b-0": 1 } }).map(({ host }) => host), ["job-b", "job-a"]);
});

test("a node that several jobs run on stands under all of them, each name once", () => {
  const every = map([1], [1], [1]);
  every.jobs[1]!.name = every.jobs[0]!.name;
  every.hosts = [["h-0", 1, 8, 0, [0, 1, 2]], ["h-1", 1, 8, 0, [2]], ["h-2", 1, 8, 0, [0, 1, 2]]];
  assert.deepEqual(blocks(every), [{ host: "job-a ×2, job-c", ranks: [0, 2] }, { host: "job-c", ranks: [1] }]);
  const many = map(...Array.from({ length: 8 }, () => [1]));
  many.hosts = Array.from({ length: 20 }, (_, at) => [`h-${at}`, 1, 8, 0, [at % 8, 8 - (at % 5)].filter((job) => job < 8)]);
  assert.ok(blocks(many).some(({ host }) => host === "several jobs"));
});

test("the mark of a slow rank names its job, by its id where others have the name; a job is found by its nodes", () => {
  const every = map([1, 1], [1], [1]);
  every.jobs[2]!.name = every.jobs[1]!.name;
  every.slow_jobs = { "a-0": ["0", "2"] };
  assert.equal(slowWords(every, "a-0"), "slow: job-a, 2");
  assert.equal(slowWords(every, "a-1"), "");
  assert.equal(illWords(every, 1), "");
  every.worst_jobs = { "a-0": ["1", "0", "2"] };
  assert.equal(illWords(every, 0), `${every.legend[every.hosts[0]![1]]}: 1, job-a, 2; slow: job-a, 2`);
  assert.equal(nodesOf(every).get("0"), " a-0 a-1");
});

test("a few nodes have room for their names, many have none", () => {
  const placed = (size: number) => {
    const every = map(Array.from({ length: size }, () => 1));
    return mapLayout(blocks(every), size, { width: 1300, maxHeight: 220, scale: 1 });
  };
  const few = placed(12);
  assert.ok(few.named > 100);
  const cells = Array.from({ length: 12 }, (_, at) => [few.corners[2 * at]!, few.corners[2 * at + 1]!] as const);
  for (const [x, y] of cells) assert.ok(x + few.named <= 1300 && y + few.cell + 20 <= few.height);
  for (const [i, [x, y]] of cells.entries()) assert.ok(cells.slice(i + 1).every(([a, b]) => b !== y || Math.abs(a - x) >= few.named));
  assert.equal(placed(33).named, 0);
});

test("blocks do not overlap, stay within the width, and have their names above them", () => {
  const jobs = [64, 128, 8, 1, 32, 256].map((size) => Array.from({ length: size }, () => 1));
  const every = map(...jobs);
  const groups = blocks(every);
  const placed = mapLayout(groups, every.hosts.length, { width: 900, maxHeight: 220, scale: 1 });
  assert.ok(placed.width <= 900);
  assert.ok(placed.height <= 220, `${placed.height}`);
  const boxes = groups.map(({ ranks }, i) => {
    const xs = ranks.map((at) => placed.corners[2 * at]!);
    const ys = ranks.map((at) => placed.corners[2 * at + 1]!);
    const { x, y, width } = placed.labels[i]!;
    assert.ok(Math.min(...ys) > y && Math.min(...xs) >= x && Math.max(...xs) + placed.cell <= x + width + 1);
    return { left: x, right: x + width, top: y, bottom: Math.max(...ys) + placed.cell };
  });
  for (const [i, one] of boxes.entries())
    for (const other of boxes.slice(i + 1))
      assert.ok(one.right < other.left || other.right < one.left || one.bottom < other.top || other.bottom < one.top);
  assert.equal(new Set(every.hosts.map((_, at) => `${placed.corners[2 * at]},${placed.corners[2 * at + 1]}`)).size, every.hosts.length);
});

test("nodes with slow ranks, those with the most first; older monitors report none", () => {
  const every = map([1, 1, 1], [1]);
  assert.deepEqual(slowNodes({ ...every, slow: { "a-2": 1, "b-0": 3 } }), [3, 2]);
  assert.deepEqual(slowNodes(every), []);
});
