import assert from "node:assert/strict";
import { test } from "node:test";
import type { StackFrame } from "../src/api/types";
import { group as some } from "./samples";
import { sharedOuter, shortFile } from "../src/logic/frames";

const frame = (name: string, file: string, line = 1): StackFrame => ({ function: name, file, line, of_script: false });
const group = (...frames: StackFrame[]) => some({ frames });

test("files are shortened to a distinctive part", () => {
  assert.equal(shortFile("/v/lib/python3.11/site-packages/torch/distributed/c10d.py"), "torch/…/c10d.py");
  assert.equal(shortFile("/v/lib/python3.11/site-packages/torch/_tensor.py"), "torch/_tensor.py");
  assert.equal(shortFile("/srv/ada/train/examples/train_gpt.py"), "examples/train_gpt.py");
  assert.equal(shortFile("train.py"), "train.py");
});

test("outer frames that all groups share are counted, down to where they part", () => {
  const outer = [frame("train", "t.py", 9), frame("main", "t.py", 20)];
  assert.equal(sharedOuter([group(frame("hang", "f.py"), ...outer), group(frame("wait", "w.py"), ...outer)]), 2);
  assert.equal(sharedOuter([group(frame("step", "t.py", 5), outer[1]!), group(frame("step", "t.py", 6), outer[1]!)]), 1);
});

test("every group that has frames keeps at least its innermost one", () => {
  const same = [frame("train", "t.py"), frame("main", "t.py")];
  assert.equal(sharedOuter([group(...same), group(...same)]), 1);
  assert.equal(sharedOuter([group(...same)]), 0);
  assert.equal(sharedOuter([group(), group(...same)]), 0);
});
