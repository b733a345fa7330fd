import assert from "node:assert/strict";
import { test } from "node:test";
import type { Setting } from "../src/api/types";
import { ACTIONS, asText, asValue, changed, consequence, grouped, isFinal, KINDS, leftOut, leftWords, nodesOf, rankList, remaining, shown, withValues } from "../src/logic/policy";
import cases from "./remaining.json";

const setting = (kind: Setting["kind"], facts: Partial<Setting> = {}): Setting => ({
  name: "x", kind, choices: [], optional: false, default: null, unit: "", meaning: "", ...facts,
});

test("fields become what the monitor reads", () => {
  assert.equal(asValue(setting("switch"), "true", false), true);
  assert.equal(asValue(setting("number"), " 2.5 ", 1), 2.5);
  assert.equal(asValue(setting("number", { optional: true }), "", 60), null);
  assert.equal(asValue(setting("number"), "soon", 1), "soon"); // rejected by the monitor with a message
  assert.equal(asValue(setting("text"), " 0,8-15 ", "all"), "0,8-15");
});

test("a section that is not named any more is removed, the others are set", () => {
  const old = { step: 10, eval: 600 };
  assert.equal(asText(old), "step=10, eval=600");
  assert.deepEqual(asValue(setting("seconds_by_name"), "step=20, save=a", old), { step: 20, eval: null, save: "a" });
});

test("only what differs from what is in force is sent", () => {
  const settings = [setting("number", { name: "a" }), setting("number", { name: "b" }), setting("number", { name: "c" })];
  assert.deepEqual(changed(settings, { a: 1, b: 2, c: 3 }, { a: "1", b: "5" }).map((each) => each.name), ["b"]);
});

test("values are shown with their unit, or as off", () => {
  assert.equal(shown(setting("number", { unit: "s" }), 60), "60\u2009s");
  assert.equal(shown(setting("number", { unit: "s" }), null), "off");
  assert.equal(shown(setting("whole", { unit: "{restarts}" }), 3), "3\u2009restarts");
  assert.equal(shown(setting("seconds_by_name", { unit: "s" }), { step: 10 }), "step=10");
  assert.equal(shown(setting("switch"), true), "on");
});

test("a share is shown and read in percent, also as a part", () => {
  const share = setting("share", { name: "a" });
  assert.equal(shown(share, 0.05), "5 %");
  assert.equal(asText(0.07, "share"), "7 %");
  assert.equal(asValue(share, "7 %", 0.05), "7 %"); // the monitor reads it
  assert.equal(asValue(share, "0.07", 0.05), 0.07);
  assert.deepEqual(changed([share], { a: 0.05 }, { a: "5 %" }), []);
});

test("the consequence of an order is stated", () => {
  const job = { world_size: 512, attempt: 2, restarts: 1, max_restarts: 3, restart_loses: "loses up to 45 steps" };
  assert.match(consequence("restart", job, ""), /all 512 ranks are ended and restarted as attempt 3\. The restart loses up to 45 steps\. .*1 of 3 restarts/);
  assert.match(consequence("restart_excluding_node", job, "node-7"), /without node-7/);
  assert.match(consequence("capture", job, ""), /The ranks are left as they are/);
  assert.match(consequence("stop", job, ""), /without saving\. Another launch loses up to 45 steps/);
});

test("every action stands in one kind, those that end the job in the last", () => {
  assert.deepEqual(KINDS.flatMap(({ names }) => names), ACTIONS.map(([name]) => name));
  assert.deepEqual(KINDS.flatMap(({ names, ends }) => names.map((name) => isFinal(name) === (ends ?? false))), ACTIONS.map(() => true));
});

test("ranks are read as people write them", () => {
  assert.deepEqual(rankList("0, 8-10"), [0, 8, 9, 10]);
  assert.deepEqual(rankList(""), []);
  assert.equal(rankList("8-"), null);
  assert.equal(rankList("10-8"), null);
});

test("settings are grouped, and one that the page does not know comes last", () => {
  const settings = ["brand_new", "learned_factor", "on_hang", "detection"].map((name) => setting("text", { name }));
  const names = (rows: Setting[]) => rows.map((each) => each.name);
  assert.deepEqual(grouped(settings).map(({ title, basic, expert }) => [title, names(basic), names(expert)]), [
    ["What the monitor does", ["on_hang"], []], ["Hangs", ["detection"], ["learned_factor"]], ["Other", ["brand_new"], []],
  ]);
});

test("nodes to be left out stand by name where launchers know them, with what remains", () => {
  const launcher = (host: number, role: "active" | "spare" = "active") => ({ node: `n${host}`, host: `host-${host}`, ranks: role === "spare" ? [] : [2 * host, 2 * host + 1], role, lost: null, ended: null, min_nodes: null });
  const launchers = [launcher(0), launcher(1), launcher(2)];
  assert.deepEqual(nodesOf([0, 1, 2], launchers), ["n0", "n1"]);
  assert.equal(nodesOf([0, 9], launchers), null);
  assert.equal(leftOut([], "1", launchers), "host-0");
  assert.equal(leftOut(["n0"], "0-2", launchers), "host-0, host-1");
  assert.equal(leftOut([], "5, 8-9", launchers), "the nodes of ranks 5, 8-9");
  assert.equal(leftOut(["n1", "elsewhere"], "", launchers), "host-1, elsewhere");
  assert.equal(leftOut([], "", launchers), "");
  const registered = (min_nodes: number) => [...launchers, launcher(3, "spare")].map((each) => ({ ...each, min_nodes }));
  assert.deepEqual(remaining(["n0"], "1", launchers), { nodes: 2, of: 3, spares: 0, min_nodes: 0 });
  assert.deepEqual(remaining(["n0"], "2", registered(3)), { nodes: 1, of: 3, spares: 1, min_nodes: 3 });
  assert.equal(remaining([], "99", launchers), null);
});

test("what is lost or has ended does not remain", () => {
  const launcher = (node: string, role: "active" | "spare", facts: { lost?: string; ended?: string } = {}) => ({ node, host: node, ranks: [], role, lost: null, ended: null, min_nodes: null, ...facts });
  const launchers = [launcher("a", "active"), launcher("b", "active"), launcher("c", "active", { lost: "its machine" }), launcher("d", "spare", { ended: "it left" }), launcher("e", "spare", { lost: "silent" })];
  assert.deepEqual(remaining(["a"], "", launchers), { nodes: 1, of: 3, spares: 0, min_nodes: 0 });
  assert.deepEqual(remaining(["c"], "", launchers), { nodes: 2, of: 3, spares: 0, min_nodes: 0 });
});

test("what remains is worded as the monitor does it", () => {
  for (const { sentence, ...left } of cases) assert.equal(leftWords(left), sentence);
});

test("an action's text has the job's values for the settings that it names", () => {
  const settings = [setting("number", { name: "stop_deadline", unit: "s" })];
  assert.equal(withValues("if the script calls should_stop(), else they are ended after stop_deadline", settings, { stop_deadline: 90 }), "if the script calls should_stop(), else they are ended after 90\u2009s");
});
