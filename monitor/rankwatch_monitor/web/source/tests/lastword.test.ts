import assert from "node:assert/strict";
import { test } from "node:test";
import { goesOn, momentWords, noIncidentWords } from "../src/logic/lastword";

const RUNS = { ended_at: null, state: "running" as const, last_heard: 100 };
const LOST = { ...RUNS, state: "lost" as const };
const ENDED = { ...RUNS, state: "failed" as const, ended_at: 120 };

test("of a job that is over or lost nothing is stated in the present", () => {
  assert.deepEqual([RUNS, LOST, ENDED].map(goesOn), [true, false, false]);
  assert.deepEqual([RUNS, ENDED].map((job) => momentWords(job, 200)), ["now", "when the job ended"]);
  assert.match(momentWords(LOST, 200), /^when last heard, \d\d:\d\d:\d\d$/);
  assert.deepEqual([RUNS, ENDED].map((job) => noIncidentWords(job, 200)), ["None in this job so far.", "No incidents in this run."]);
  assert.match(noIncidentWords(LOST, 200), /^None until the job was last heard, \d\d:\d\d:\d\d\.$/);
  assert.equal(momentWords({ ...LOST, last_heard: null }, 200), "when last heard");
});
