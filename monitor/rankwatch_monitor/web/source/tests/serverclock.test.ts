import assert from "node:assert/strict";
import { test } from "node:test";
import { ServerClock, SILENT_MS } from "../src/logic/serverclock";

const started = () => {
  const clock = new ServerClock();
  clock.take({ now: 1000, judged: 999.8 }, 50_000);
  return clock;
};

test("time goes on between clock events, whatever the browser's own clock shows", () => {
  assert.equal(started().at(51_500), 1001.5);
});

test("time never runs backwards, except with a new connection", () => {
  const clock = started();
  assert.equal(clock.at(52_000), 1002);
  clock.take({ now: 1000.5, judged: null }, 52_000);
  assert.equal(clock.at(52_100), 1002);
  assert.equal(clock.at(55_000), 1003.5);
  clock.restart(55_000);
  clock.take({ now: 900, judged: null }, 55_000);
  assert.equal(clock.at(55_000), 900);
});

test("a monitor that is silent is outdated within five seconds, since its last sign of life", () => {
  const clock = started();
  assert.ok(SILENT_MS < 5000);
  assert.equal(clock.stale(50_000 + SILENT_MS - 1), null);
  assert.deepEqual(clock.stale(50_000 + SILENT_MS), { since: 1000, answering: false });
  clock.alive(53_000);
  assert.equal(clock.stale(50_000 + SILENT_MS), null);
  assert.deepEqual(clock.stale(60_000), { since: 1003, answering: false });
  clock.take({ now: 1010.2, judged: null }, 60_200);
  assert.equal(clock.stale(60_300), null);
});

test("a monitor that answers but evaluates no job is outdated since its last evaluation", () => {
  const clock = started();
  clock.take({ now: 1012, judged: 999.8 }, 62_000);
  assert.deepEqual(clock.stale(62_000), { since: 999.8, answering: true });
  clock.take({ now: 1013, judged: 1012.9 }, 63_000);
  assert.equal(clock.stale(63_000), null);
});

test("before its first clock event, and of a stream that is refused, nothing follows from silence", () => {
  const clock = new ServerClock();
  clock.alive(1000);
  assert.equal(clock.known, false);
  assert.equal(clock.stale(1e9), null);
  const refused = started();
  refused.forget();
  assert.equal(refused.stale(1e9), null);
});
