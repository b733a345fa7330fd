import assert from "node:assert/strict";
import { test } from "node:test";
import { h } from "preact";
import { joined, joinUnits } from "../src/view/units";

const plain = (text: string) => text.replaceAll("\u202f", "_");

test("a figure and its unit are one word", () => {
  assert.equal(plain(joined("31 ranks wait 59 ms of each 225 ms step (26 %); 12\u2009min, 3.6 GPU-minutes at 2.4 steps/s")), "31 ranks wait 59_ms of each 225_ms step (26_%); 12_min, 3.6_GPU-minutes at 2.4_steps/s");
  assert.equal(joined("step 5 hangs; 3 hosts, 2 s/w"), "step 5 hangs; 3 hosts, 2 s/w");
});

test("all text of elements is treated, commands are not", () => {
  joinUnits();
  const text = (node: { props: object }) => JSON.stringify((node.props as { children: unknown }).children);
  assert.equal(plain(text(h("p", {}, "waits 5 s", [" or 27 %"] as never))), '["waits 5_s",[" or 27_%"]]');
  assert.equal(text(h("code", {}, "sleep 5 s")), '"sleep 5 s"');
});
