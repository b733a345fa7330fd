import assert from "node:assert/strict";
import { test } from "node:test";
import type { Frame, StackGroup } from "../src/api/types";
import { isUserFrame, sharedOuter, shortFile, stuckAt } from "../src/logic/frames";

const frame = (name: string, file: string, line = 1): Frame => ({ function: name, file, line });
const group = (...frames: Frame[]): StackGroup => ({ ranks: [0], label: "rank 0", frames, is_culprit: false, process_state: "alive" });

test("the training code stands out from packages, the standard library and frozen modules", () => {
  assert.ok(isUserFrame(frame("train", "/srv/ada/train/train_gpt.py")));
  assert.ok(!isUserFrame(frame("wait", "/usr/lib/python3.11/threading.py")));
  assert.ok(!isUserFrame(frame("wait", "/opt/venv/lib/python3.12/site-packages/torch/_tensor.py")));
  assert.ok(!isUserFrame(frame("run", "<frozen runpy>")));
  assert.ok(!isUserFrame(frame("poll", "/usr/lib/x86_64-linux-gnu/libc.so.6")));
});

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

test("the culprit is at the innermost frame of the training code", () => {
  const waits = group(frame("all_reduce", "/v/lib/python3.11/site-packages/torch/c10d.py"), frame("step", "/srv/t.py", 5));
  const stuck = { ...group(frame("read", "/usr/lib/python3.11/socket.py"), frame("load", "/srv/data.py", 41)), is_culprit: true };
  assert.equal(stuckAt([waits, stuck])?.function, "load");
  assert.equal(stuckAt([waits]), null);
});
