import assert from "node:assert/strict";
import { test } from "node:test";
import { around, firstPlaces, type Place } from "../src/logic/errors";

const LONG = "RuntimeError: CUDA error: device-side assert triggered";
const at = (id: string): Place => ({ id, label: `at ${id}`, href: `#/${id}` });
const shown = (...sentences: (readonly [string, string])[]) => {
  const first = firstPlaces(sentences.map(([id, sentence]) => [at(id), sentence]));
  return sentences.map(([id, sentence]) => around(id, sentence, first));
};

test("an error stands in full once, and below as a link to that place", () => {
  const found = shown(
    ["a", `Rank 5 exited with code 1: ${LONG}`],
    ["b", `Rank 5 on host-0 exited with code 1: ${LONG}.`],
    ["c", `the job failed: rank 5 on host-0 exited with code 1: ${LONG}; all 3 restarts are used up.`],
    ["a", "its process exited with code 1: RuntimeError: CUDA error"],
    ["d", "Rank 5 exited with code 1: RuntimeError: CUDA error…"],
  );
  assert.deepEqual(found, [
    null,
    { before: "Rank 5 on host-0 exited with code 1", place: at("a"), after: "." },
    { before: "the job failed: rank 5 on host-0 exited with code 1", place: at("a"), after: "; all 3 restarts are used up." },
    null,
    { before: "Rank 5 exited with code 1", place: at("a"), after: "" },
  ]);
});

test("another error, and a sentence without one, stay as they are", () => {
  assert.deepEqual(shown(["a", `Rank 5 exited with code 1: ${LONG}`], ["b", "Rank 5 exited with code 1: ValueError: no data"], ["c", "Rank 3 hung"], ["d", "Rank 3 exited with code 2"]), [null, null, null, null]);
});
