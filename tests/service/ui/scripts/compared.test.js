// Experiments side by side.

import assert from "node:assert/strict";
import { test } from "node:test";
import * as compared from "../../../../service/ui/static/compared.js";

const mean = (name, value, std_err = null, more = {}) => ({ name, title: name, labels: {}, value, std_err, tokens: null, higher_is_better: true, ...more });
const run = (spec, ...summary) => ({ id: "0".repeat(32), title: "a", spec, summary, metrics: [] });
const rowsOf = (...specs) => compared.rowsOf(specs.map((spec) => run(spec)));

test("the fields that differ, missing ones too, by their shortest names", () => {
  const rows = rowsOf({ model: { k: 1, p: 2 }, data: { k: 1 }, seeds: [1] }, { model: { k: 2, p: 2 }, data: { k: 2, n: 3 }, seeds: [1] });
  const paths = [...rows[0].fields.keys()];
  assert.deepEqual(paths, ["model.k", "data.k", "data.n"]);
  assert.deepEqual(rows.map(({ fields }) => compared.fieldText(fields.get("data.n"))), ["–", "3"]);
  assert.deepEqual(compared.shortNames(paths), ["model.k", "data.k", "n"]);
  assert.deepEqual(compared.shortNames(["model.k", "k"]), ["model.k", "k"]);
  assert.equal(rowsOf({ a: 1 }, { a: 1 })[0].fields.size, 0);
});

test("objects that some runs lack show the fields that differ", () => {
  const texts = (...architectures) => {
    const rows = rowsOf(...architectures.map((architecture) => ({ model: { architecture } })));
    return rows.map(({ fields }) => [...fields].map(([path, value]) => [path, compared.fieldText(value)]));
  };
  const [small, wide] = [{ layers: 1, size: 32 }, { layers: 1, size: 64 }];
  assert.deepEqual(texts(small, wide), [[["model.architecture.size", "32"]], [["model.architecture.size", "64"]]]);
  assert.deepEqual(texts(null, small), [[["model.architecture", "none"]], [["model.architecture", "layers 1, size 32"]]]);
  assert.deepEqual(texts(null, small, wide).map(([[, text]]) => text), ["none", "size 32", "size 64"]);
  assert.equal(compared.fieldText({ steps: 5, masks: { schedule: "fixed", rates: [1, 2] } }), "steps 5, masks (schedule fixed, rates [1,2])");
});

test("runs with one value of a field have one colour, in the order of the values", () => {
  const rows = rowsOf(...[10, 9, 10].map((k) => ({ k, of: k === 9 ? "b" : "a" })));
  assert.deepEqual(compared.coloursBy(rows, ""), [0, 1, 2]);
  assert.deepEqual(compared.coloursBy(rows, "k"), [1, 0, 1]);
  assert.deepEqual(compared.coloursBy(rows, "of"), [0, 1, 0]);
});

test("results come first, and what was measured in training last", () => {
  const interim = mean("lml", 1, null, { title: "lml[epoch=0]", labels: { epoch: 0 } });
  const rows = compared.rowsOf([run({}, mean("lml", 1), interim), run({}, mean("lml", 2), mean("bias", 2))]);
  assert.deepEqual(compared.metricsOf(rows).map(({ title }) => title), ["lml", "bias", "lml[epoch=0]"]);
});

const best = (name, ...values) => {
  const rows = compared.rowsOf(values.map(([value, error, more, spec = {}]) => run(spec, mean(name, value, error, more))));
  return [...compared.bestOf(rows, compared.metricsOf(rows)[0])].map(({ index }) => index);
};

test("the best are those that the errors do not tell apart", () => {
  assert.deepEqual(best("lml", [-1, 0.3], [-3, 0.3], [-1.8, 0.3]), [0, 2]);
  assert.deepEqual(best("lml", [-1, null], [-1.1, null], [null, null]), [0]);
  assert.deepEqual(best("lml", [-1, null]), []);
  assert.deepEqual(best("lml", [-1, null], [null, null]), []);
  assert.deepEqual(best("lml", [-1, 0], [-1, 0]), []);
  const lowerIsBetter = { higher_is_better: false };
  assert.deepEqual(best("perplexity", [1, 0, lowerIsBetter], [2, 0, lowerIsBetter]), []);
});

test("held-out rows that runs share tell which are as good, and by how much", () => {
  const runs = [-8, -8.01, -9].map((value) => ({ ...run({}, mean("lml_heldout", value)), metrics: [{ name: "lml_heldout", labels: { seed: 1 }, value, std_err: null }] }));
  const n = Array(8).fill(4);
  const curves = runs.map(({ metrics: [{ value }] }, k) => ({ series: [{ name: "lml_heldout_parts", labels: { seed: 1 }, n, value: n.map((_, i) => value + (k ? (i % 2 ? 0.1 : -0.1) : 0)) }] }));
  const rows = compared.rowsOf(runs, { curves });
  const [metric] = compared.metricsOf(rows);
  const { value, std_err: error } = compared.differenceOf(rows[1], rows[0], metric.key);
  assert.deepEqual([value.toFixed(2), error.toFixed(4)], ["-0.01", (0.1 / Math.sqrt(7)).toFixed(4)]);
  assert.deepEqual([...compared.bestOf(rows, metric)].map(({ index }) => index), [0, 1]);
  const fitted = runs.map((one, k) => ({ ...one, summary: [...one.summary, mean("lml", k)] }));
  assert.equal(compared.bestOf(compared.rowsOf(fitted), mean("lml", 0, null, { key: "lml" })).size, 0);
  assert.equal(compared.differenceOf(compared.rowsOf(runs)[1], rows[0], metric.key).std_err, null);
});

test("nothing is best among different data, and the fields that differ are named", () => {
  const spec = (n, seeds = [1]) => ({ data: { source: "ppca", n, seed: 0 }, seeds });
  assert.deepEqual(best("lml", [-1, 0, {}, spec(50)], [-2, 0, {}, spec(50, [2])]), [0]);
  assert.deepEqual(best("lml", [-1, 0, {}, spec(50)], [-2, 0, {}, spec(60)]), []);
  assert.deepEqual(best("area", [-1, 0, { tokens: 512 }], [-2, 0, { tokens: 128 }]), []);
  const different = (...specs) => compared.differentData(specs.map((one) => run(one)));
  assert.deepEqual(different(spec(50), spec(60)), ["data.n"]);
  assert.deepEqual(different(spec(50), spec(50, [2])), []);
  const ofSeed = (seeds) => ({ data: { source: "ppca", seed: "run" }, seeds });
  assert.deepEqual(different(ofSeed([1]), ofSeed([2])), ["seeds"]); // each seed draws its own data
});

test("ids have names, and all fields that any run sets can be shown", () => {
  const runs = [run({ data: { dataset: "1a", n: 3 }, model: { k: 1, init: null } }), run({ data: { dataset: "2b", n: 3 }, model: { k: 2, init: null } })];
  const names = new Map([["1a", "mine.csv"]]);
  assert.deepEqual(compared.idsIn(runs), [{ kind: "dataset", id: "1a" }, { kind: "dataset", id: "2b" }]);
  assert.deepEqual([...compared.rowsOf(runs, { names })[0].fields], [["data.dataset", "mine.csv"], ["model.k", 1]]);
  assert.deepEqual([...compared.rowsOf(runs, { names, all: true })[1].fields], [["data.dataset", "2b"], ["data.n", 3], ["model.k", 2]]);
  assert.deepEqual([...rowsOf({ data: { array: null } }, { data: {} })[0].fields], []); // neither sets it
});

test("scores of texts are compared by the texts that both runs scored", () => {
  const texts = (...values) => values.map((pll, row) => ({ row, pll }));
  const found = compared.differenceOfTexts(texts(-1, -2, -3, null), texts(-2, -2, -5, -1), "pll");
  assert.deepEqual([found.value, found.count], [1, 3]);
  assert.ok(Math.abs(found.std_err - Math.sqrt(1 / 3)) < 1e-12);
  assert.equal(compared.differenceOfTexts(texts(-1), texts(-2), "pll"), null);
});
