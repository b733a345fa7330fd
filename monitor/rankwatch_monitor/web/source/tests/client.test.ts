import assert from "node:assert/strict";
import { test } from "node:test";
import { get } from "../src/api/client";
import { tokenRefused, tokenRejection } from "../src/api/connection";

test("only a token that may not read is said to be rejected, whatever the words of the monitor", async () => {
  for (const [status, told] of [[401, null], [403, "in any words"]] as const) {
    globalThis.fetch = () => Promise.resolve(Response.json({ detail: "in any words" }, { status }));
    await assert.rejects(get("/jobs"));
    assert.deepEqual([tokenRefused.value, tokenRejection.value], [true, told]);
  }
});
