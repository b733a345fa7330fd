import assert from "node:assert/strict";
import { test } from "node:test";
import { firstPlaces, type Placed, shortened } from "../src/logic/errors";

const LONG = "RuntimeError: CUDA error: device-side assert triggered";
const shown = (...sentences: Placed[]) => sentences.map(([place, sentence]) => shortened(place, sentence, firstPlaces(sentences)));

test("an error stands in full once, and short below", () => {
  const sentences: Placed[] = [
    ["a", `Rank 5 exited with code 1: ${LONG}`],
    ["b", "Rank 5 on host-0 exited with code 1: RuntimeError: CUDA error"],
    ["c", `the job failed: rank 5 on host-0 exited with code 1: ${LONG}; all 3 restarts are used up.`],
  ];
  assert.deepEqual(shown(...sentences), [
    sentences[0]![1],
    "Rank 5 on host-0 exited with code 1, same error",
    "the job failed: rank 5 on host-0 exited with code 1, same error; all 3 restarts are used up.",
  ]);
});

test("another error, and a sentence without one, stay as they are", () => {
  const sentences: Placed[] = [["a", `Rank 5 exited with code 1: ${LONG}`], ["b", "Rank 5 exited with code 1: ValueError: no data"], ["c", "Rank 3 hung"], ["d", "Rank 3 exited with code 2"]];
  assert.deepEqual(shown(...sentences), sentences.map(([, sentence]) => sentence));
});
