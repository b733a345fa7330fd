import assert from "node:assert/strict";
import { afterEach, test } from "node:test";
import { clock } from "../src/logic/text";
import { chooseZone } from "../src/logic/zone";

process.env.TZ = "Asia/Kolkata";
afterEach(() => chooseZone("local"));

test("the date is that of the zone", () => {
  const at = Date.UTC(2026, 10, 24, 20, 15, 30) / 1000;
  const before = at - 4 * 3600;
  assert.equal(clock(before, at), "24 Nov 21:45");
  chooseZone("utc");
  assert.equal(clock(before, at), "16:15:30");
});
