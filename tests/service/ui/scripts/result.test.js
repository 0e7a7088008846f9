import assert from "node:assert/strict";
import test from "node:test";

import { agreementText, beforeText, inWords, ofPoint, overText, resultsOf, seedsText, tokensText, unitOf } from "../../../../service/ui/static/result.js";
import { sorted } from "../../../../service/ui/static/sorting.js";

test("the results are the rows of a summary that have a label", () => {
  const rows = [{ label: "LML" }, { label: "MPT" }, { label: null }];
  assert.deepEqual(resultsOf(rows), rows.slice(0, 2));
  assert.deepEqual(resultsOf(null), []);
});

test("a result without an error has the values of its seeds below it, if they differ", () => {
  const all = [{ value: -58.93 }, { value: -56.39 }, { value: null }];
  assert.equal(seedsText({ std_err: null, all }), "from −58.930 to −56.390 by seed");
  assert.equal(seedsText({ std_err: 0.1, all }), null);
  assert.equal(seedsText({ std_err: null, all: [all[0], all[0]] }), null);
});

test("a point of a sweep shows what decides which is best", () => {
  const best = { metric: "lml_heldout", label: "LML, held out" };
  const summary = [{ name: "lml", label: "LML" }, { name: "lml_heldout", label: null, value: -17 }];
  assert.deepEqual(ofPoint({ summary }, best), { name: "lml_heldout", label: "LML, held out", value: -17 });
  assert.equal(ofPoint({ summary: [] }, best), null);
  assert.equal(ofPoint({ summary }, null), null);
});

test("a large figure has its name in words, and says of what it is a mean", () => {
  assert.equal(unitOf({ name: "lml_heldout", unit: "nats" }, []), "nats per row");
  assert.equal(unitOf({ name: "pll", unit: "nats" }, [{ name: "texts_scored" }]), "nats per text");
  assert.equal(unitOf({ name: "area", unit: "nats", tokens: 512 }, []), "nats per 512 tokens");
  assert.equal(inWords("LML, held out"), "Log marginal likelihood (LML), held out");
  assert.equal(inWords("MPT"), "Masked score (MPT)");
  assert.equal(inWords("Area under the curve"), "Area under the curve");
});

test("a result after training has what it was before below it", () => {
  const row = { value: -10.2, std_err: 0.12, before: { at: { epoch: 0 }, value: -56.481, std_err: null } };
  assert.equal(beforeText(row), "−56.481 at epoch 0 → −10.20 ± 0.12");
  assert.equal(beforeText({ ...row, before: null }), null);
});

test("an area stands beside its number of tokens", () => {
  assert.equal(tokensText({ value: -956.7, tokens: 512 }, []), "= −1.869 per token × 512 tokens");
  assert.equal(tokensText({ value: -1008.3, tokens: 512 }, [{ name: "area_width", value: 0.99 }]), "= −1.989 per token × 512 tokens × width 0.99");
  assert.equal(tokensText({ value: -956.7, tokens: null }), null);
  assert.equal(tokensText({ value: null, tokens: 512 }), null);
});

test("an agreement is told with its difference", () => {
  const agreement = { outcome: "agree", text: "they agree", value: 0.14, std_err: 0.1 };
  assert.equal(agreementText({ agreement }), "they agree: MPT − LML is 0.14 ± 0.10");
  assert.equal(agreementText({ agreement: null }), null);
});

test("rows are sorted by numbers or words, with missing values last", () => {
  const rows = [{ v: 10 }, { v: null }, { v: 9 }, { v: -1 }];
  const by = (order) => sorted(rows, ({ v }) => v, order).map(({ v }) => v);
  assert.deepEqual(by("asc"), [-1, 9, 10, null]);
  assert.deepEqual(by("desc"), [10, 9, -1, null]);
  assert.deepEqual(sorted(["b", "a"], (one) => one, "asc"), ["a", "b"]);
});

test("a mean over texts has the error over their choice", () => {
  const row = { name: "pll", labels: { seed: 0 }, value: -6.309 };
  const population = { ...row, name: "pll_population", std_err: 2.1, covers: "the choice of texts and the model's error" };
  const scored = { name: "texts_scored", labels: { seed: 0 }, value: 24 };
  assert.equal(overText(row, [row, population, scored]), "± 2.1 over 24 texts");
  assert.equal(overText(row, [row, { ...population, labels: { seed: 4 } }]), null);
});
