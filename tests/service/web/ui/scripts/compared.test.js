// Experiments side by side.

import assert from "node:assert/strict";
import { test } from "node:test";
import * as compared from "../../../../../service/web/ui/static/compared.js";

const metric = (name, value, seed = 1, std_err = null, labels = {}) => ({ name, value, std_err, labels: { seed, ...labels } });
const run = (spec, ...metrics) => ({ spec, metrics });

test("the fields that differ, missing ones too, by their shortest names", () => {
  const rows = compared.rowsOf([run({ model: { k: 1, p: 2 }, data: { k: 1 }, seeds: [1] }), run({ model: { k: 2, p: 2 }, data: { k: 2, n: 3 }, seeds: [1] })]);
  const paths = compared.differing(rows);
  assert.deepEqual(paths, ["model.k", "data.k", "data.n"]);
  assert.deepEqual(compared.shortNames(paths), ["model.k", "data.k", "n"]);
  assert.deepEqual(compared.shortNames(["model.k", "k"]), ["model.k", "k"]);
  assert.deepEqual(compared.differing(compared.rowsOf([run({ a: 1 }), run({ a: 1 })])), []);
});

test("runs with one value of a field have one colour, in the order of the values", () => {
  const rows = compared.rowsOf([10, 9, 10].map((k) => run({ k, of: k === 9 ? "b" : "a" })));
  assert.deepEqual(compared.coloursBy(rows, ""), [0, 1, 2]);
  assert.deepEqual(compared.coloursBy(rows, "k"), [1, 0, 1]);
  assert.deepEqual(compared.coloursBy(rows, "of"), [0, 1, 0]);
  const missing = compared.rowsOf([run({ k: 2 }), run({})]);
  assert.deepEqual(compared.coloursBy(missing, "k"), [1, 0]);
});

test("metrics that choose between models come first", () => {
  const rows = compared.rowsOf([run({}, metric("bias", 1), metric("mpt", 1), metric("lml", 1)), run({}, metric("lml_heldout", 1), metric("lml", 2, 1, null, { model: "b" }))]);
  assert.deepEqual(compared.metricsOf(rows).map(({ name }) => name), ["lml_heldout", "lml", "lml", "mpt", "bias"]);
});

test("the best are those that the errors do not tell apart", () => {
  const best = (name, ...values) => {
    const rows = compared.rowsOf(values.map(([value, error]) => run({}, metric(name, value, 1, error))));
    return [...compared.bestOf(rows, compared.metricsOf(rows)[0])].map(({ index }) => index);
  };
  assert.deepEqual(best("lml", [-1, 0.3], [-3, 0.3], [-1.8, 0.3]), [0, 2]);
  assert.deepEqual(best("lml", [-1, null], [-1.1, null], [null, null]), [0]);
  assert.deepEqual(best("lml", [-1, null]), []);
  assert.deepEqual(best("lml", [-1, null], [null, null]), []);
  assert.deepEqual(best("lml", [-1, 0], [-1, 0]), []);
  assert.deepEqual(best("perplexity", [1, 0], [2, 0]), []);
});
