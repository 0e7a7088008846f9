// Asking the service.

import assert from "node:assert/strict";
import { test } from "node:test";
import * as api from "../../../../service/ui/static/api.js";

function answering(status, body) {
  const asked = [];
  globalThis.fetch = async (path, options) => {
    asked.push({ path, ...options });
    if (status === 0) throw new TypeError("no network");
    return { ok: status < 400, status, json: async () => (body === undefined ? JSON.parse("") : body) };
  };
  return asked;
}

test("an answer is its JSON, and nothing where it has none", async () => {
  const asked = answering(200, { a: 1 });
  assert.deepEqual(await api.post("/v1/x", { b: [1] }, { "Idempotency-Key": "k" }), { a: 1 });
  assert.deepEqual(asked, [{ path: "/v1/x", method: "POST", headers: { "Content-Type": "application/json", "Idempotency-Key": "k" }, body: '{"b":[1]}' }]);
  const file = new Blob(["a"]);
  const sent = answering(204);
  assert.equal(await api.call("PUT", "/v1/x", file), null);
  assert.deepEqual([sent[0].body, sent[0].headers], [file, {}]);
  const bare = answering(200, {});
  await api.get("/v1/x");
  assert.equal(bare[0].body, undefined);
});

test("a problem says what is wrong at which field", async () => {
  const errors = [{ pointer: "/a", detail: "one" }, { pointer: "/b", detail: "two" }, { pointer: "/a", detail: "three" }];
  answering(422, { detail: "wrong", reason: "invalid_request", errors });
  const refused = await api.get("/v1/x").catch((error) => error);
  assert.ok(refused instanceof api.Refused);
  assert.deepEqual([refused.message, refused.status, refused.reason], ["wrong", 422, "invalid_request"]);
  assert.deepEqual([refused.at("/a"), refused.at("/c")], ["one; three", null]);
  answering(500);
  assert.equal((await api.get("/v1/x").catch((error) => error)).message, "the answer was 500");
});

test("the service is away where it does not answer, or says not now", async () => {
  for (const status of [0, 429, 502, 503, 504]) {
    answering(status, {});
    assert.ok((await api.get("/v1/x").catch((error) => error)) instanceof api.Away, `${status}`);
  }
});

test("who is not signed in is led to the page for that, and back", async () => {
  const left = [];
  globalThis.location = { pathname: "/lab", search: "?a=1", assign: (to) => left.push(to) };
  answering(401, {});
  const state = await Promise.race([api.get("/v1/me"), new Promise((resolve) => setTimeout(resolve, 20, "left"))]);
  assert.deepEqual([state, left], ["left", ["/sign-in?next=%2Flab%3Fa%3D1"]]);
  assert.ok((await api.post("/v1/sign-in", {}).catch((error) => error)) instanceof api.Refused);
});

test("a query leaves out what is empty, and repeats lists", () => {
  assert.equal(api.withQuery("/a", { b: 1, c: null, d: "", e: ["x", "y z"], f: undefined, g: 0 }), "/a?b=1&e=x&e=y+z&g=0");
  assert.equal(api.withQuery("/a", { b: [] }), "/a");
});

test("each of many, four at a time; who is refused is told", async () => {
  let most = 0;
  let now = 0;
  const refused = await api.withEach([...Array(10).keys()], async (one) => {
    most = Math.max(most, (now += 1));
    await new Promise((resolve) => setImmediate(resolve));
    now -= 1;
    if (one % 5 === 4) throw new Error(`not ${one}`);
  });
  assert.deepEqual([most, refused], [4, ["not 4", "not 9"]]);
});

test("who asks while one call is under way gets its answer", async () => {
  let calls = 0;
  const read = api.oneAtATime(async () => (calls += 1));
  assert.deepEqual(await Promise.all([read(), read()]), [1, 1]);
  assert.equal(await read(), 2);
});
