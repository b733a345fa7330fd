import assert from "node:assert/strict";
import { afterEach, test } from "node:test";
import { clock } from "../src/logic/text";
import { chooseZone, zoneName } from "../src/logic/zone";

process.env.TZ = "Asia/Kolkata";
afterEach(() => chooseZone("local"));

test("times are shown in the browser's zone or in UTC, with the zone's name", () => {
  const at = Date.UTC(2026, 10, 24, 20, 15, 30) / 1000;
  assert.equal(clock(at, at), "01:45:30");
  assert.equal(zoneName(new Date(at * 1000)), "UTC+5:30");
  chooseZone("utc");
  assert.equal(clock(at, at), "20:15:30");
  assert.equal(zoneName(new Date(at * 1000)), "UTC");
});

test("the date is that of the zone", () => {
  const at = Date.UTC(2026, 10, 24, 20, 15, 30) / 1000;
  const before = at - 4 * 3600;
  assert.equal(clock(before, at), "24 Nov 21:45");
  chooseZone("utc");
  assert.equal(clock(before, at), "16:15:30");
});
