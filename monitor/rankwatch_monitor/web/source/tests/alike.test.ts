import assert from "node:assert/strict";
import { test } from "node:test";
import type { Device, PlacedRank } from "../src/api/types";
import { alike } from "../src/logic/alike";
import { deviceFacts } from "../src/logic/device";
import { device as some } from "./samples";

const device = (temperature: number, facts: Partial<Device> = {}) => some({ temperature, utilization: 0.98, power: 640, ...facts });
const ranks = (many: number, facts: (rank: number) => Partial<PlacedRank> = () => ({})): PlacedRank[] =>
  Array.from({ length: many }, (_, rank) => ({
    rank, local_rank: rank, host: "a", pid: 1, uuid: null, state: "running", iteration: 900, progress: 900, function: null, scores: {}, straggler: null, heartbeat_age: 0.5, report_age: 0.5, open_sections: { step: 0.5 },
    idle: null, reason: "", groups: {}, device: device(60 + (rank % 4)), ...facts(rank),
  }));
const shape = (found: readonly PlacedRank[]) => alike(found).map((same) => same.map(({ rank }) => rank).join(","));

test("ranks that are alike are one line", () => {
  assert.deepEqual(shape(ranks(8)), ["0,1,2,3,4,5,6,7"]);
  assert.equal(deviceFacts(...ranks(8).map((rank) => rank.device)), "60–63 °C, 98 % busy, 640 W");
  assert.equal(deviceFacts(device(63)), "63 °C, 98 % busy, 640 W");
});

test("a rank of another state, a slow one, a hot one and one behind stand alone", () => {
  const apart: Record<number, Partial<PlacedRank>> = {
    1: { state: "hung", reason: "it is behind" },
    2: { straggler: { share: 0.3, score: null, since: 1, reason: "slow", cause: "compute" } },
    3: { device: device(88) },
    4: { iteration: 880 },
    5: { device: device(60, { throttled: ["thermal"] }) },
    6: { scores: { lateness_share: 0.2 } },
  };
  const others = { scores: { lateness_share: 0.01 } };
  assert.deepEqual(shape(ranks(12, (rank) => ({ ...others, ...apart[rank] }))).sort(), ["0,7,8,9,10,11", "1", "2", "3", "4", "5", "6"]);
});

test("two alike are two lines, and the order is that of the first", () => {
  assert.deepEqual(shape(ranks(5, (rank) => (rank < 2 ? { state: "waiting" } : {}))), ["0", "1", "2,3,4"]);
});
