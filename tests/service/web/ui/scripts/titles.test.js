// Titles of experiments without a name.

import assert from "node:assert/strict";
import { test } from "node:test";
import { pointTitle, readTitles } from "../../../../../service/web/ui/static/titles.js";

const spec = { model: { family: "ppca", latent_dim: 3, experiment: null }, data: { source: "digits" }, seeds: [4, 44] };

test("a point of a sweep is named by the sweep and its swept fields", () => {
  assert.equal(pointTitle({ name: "mine", fields: ["model.latent_dim"] }, spec), "mine: latent_dim 3");
  assert.equal(pointTitle({ name: null, fields: ["seeds", "data.n.a", "model.experiment"] }, spec), "sweep: seeds [4,44]");
  assert.equal(pointTitle({ name: "a", fields: ["data.source"] }, { data: { source: "x".repeat(30) } }), `a: source ${"x".repeat(24)}…`);
});

test("specs of experiments without a name are read once", async () => {
  const asked = [];
  globalThis.fetch = async (path) => {
    asked.push(decodeURIComponent(path));
    return { ok: true, status: 200, json: async () => ({ items: [{ id: "b", spec, sweep: null }] }) };
  };
  const items = [{ id: "a", name: "named" }, { id: "b", name: null }];
  await readTitles(items, "lab");
  await readTitles(items, "lab");
  assert.deepEqual(asked, ['/v1/experiments?whose=lab&filter=id+in+("b")&fields=full&limit=50']);
  await readTitles(Array.from({ length: 60 }, (_, i) => ({ id: `many ${i}`, name: null })), null);
  assert.equal(asked[1].match(/"many/g).length, 50);
});
