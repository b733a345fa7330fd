import assert from "node:assert/strict";
import { test } from "node:test";
import { addingUp, costOf, costText, phases } from "../src/logic/phases";
import { duration } from "../src/logic/text";
import { course, incident } from "./samples";

const healed = course(100, { detect: 110, capture: 111.5, restart: 115, recover: 121.5 });

test("a phase has its name, the words of its mark and what it took; one that goes on takes until now", () => {
  const shown = phases(incident({ phases: [...healed.slice(0, 3), { ...healed[3]!, end: null }] }), 120);
  assert.deepEqual(shown.map(({ name, ends, seconds, to }) => [name, ends, seconds, to]), [
    ["Detect", "detected", 10, 110], ["Capture", "captured", 1.5, 111.5], ["Restart", "restarted", 3.5, 115], ["Recover", "first new step", 5, null],
  ]);
});

test("the lost steps are the last part of what a restart cost", () => {
  const resumed = incident({ phases: healed, lost_steps_s: 7, steps_lost: 8 });
  assert.deepEqual(phases(resumed, 500).slice(-2).map(({ name, note, seconds }) => [name, note, seconds]), [["Recover", undefined, 6.5], ["Lost steps", "8 steps, the first counts as Recover", 7]]);
  assert.equal(phases({ ...resumed, lost_steps_s: 0 }, 500).at(-1)!.name, "Recover", "none");
});

test("a phase that would be shown as 0 s is left out", () => {
  const short = { ...healed[1]!, end: healed[1]!.begin + 0.01 };
  assert.deepEqual(phases(incident({ phases: [healed[0]!, short, ...healed.slice(2)] }), 500).map(({ name }) => name), ["Detect", "Restart", "Recover"]);
});

test("durations that are shown add up to their sum as it is shown", () => {
  const shown = (...seconds: number[]) => addingUp(seconds).map((each) => duration(each).replaceAll("\u2009", " "));
  assert.deepEqual(shown(11.04, 1.04, 1.54), ["11.0 s", "1.1 s", "1.5 s"], "13.6 s, as 13.62");
  assert.deepEqual(shown(0.24, 0, 2.06), ["240 ms", "0 s", "2.1 s"], "exact below a second");
  assert.deepEqual(shown(61.4, 61.4, 61.4), ["1 min 1 s", "1 min 2 s", "1 min 1 s"], "3 min 4 s, as 184.2");
});

test("what goes on costs whole seconds of the page's clock, what is over the exact time", () => {
  assert.equal(costText({ cost: { seconds: 0, since: 100.4 } }, 113), "13\u2009s so far");
  assert.equal(costText({ cost: { seconds: 21.6, since: null } }, 500), "21.6\u2009s");
  assert.equal(costOf({ cost: { seconds: 7.5, since: 100 } }, 110), 17.5);
});
