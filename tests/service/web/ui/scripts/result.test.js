import assert from "node:assert/strict";
import test from "node:test";

import { resultOf } from "../../../../../service/web/ui/static/result.js";
import { sorted } from "../../../../../service/web/ui/static/sorting.js";

const metric = (name, value, std_err = null, labels = { seed: 4 }) => ({ name, value, std_err, labels });

test("a result is the LML, the score and whether they agree", () => {
  const near = [metric("lml", -60.34), metric("mpt", -60.2, 0.1), metric("difference", 0.14, 0.1)];
  const [lml, mpt] = resultOf(near);
  assert.deepEqual([lml.label, lml.mean.value, lml.agreement], ["LML", -60.34, undefined]);
  assert.equal(mpt.agreement.text, "they agree: MPT − LML is 0.14 ± 0.10");
  const far = [...near.slice(0, 2), metric("difference", -0.21, 0.1)];
  const { agrees, tone, text } = resultOf(far)[1].agreement;
  assert.deepEqual([agrees, tone, text], [false, "", "they differ by 2.1 standard errors: MPT − LML is −0.21 ± 0.10"]);
  const farther = [...near.slice(0, 2), metric("difference", -0.4, 0.1)];
  assert.equal(resultOf(farther)[1].agreement.tone, "bad-text");
});

test("the figures are the model's own, then those held out", () => {
  const metrics = [
    metric("lml", -1, null, { seed: 1, model: "baseline" }),
    metric("lml", -2, null, { seed: 1, model: "model" }),
    metric("lml_heldout", -3, null, { seed: 1, model: "model" }),
    metric("mpt", null, null, { seed: 1, model: "model" }),
    metric("area", -1.5, 0.1),
  ];
  const found = resultOf(metrics).map(({ label, unit, mean }) => [label, unit, mean.value]);
  assert.deepEqual(found, [["LML", "nats", -2], ["LML, held out", "nats", -3], ["Area under the curve", "nats", -1.5]]);
  assert.deepEqual(resultOf([metric("masks", 3)]), []);
});

test("each objective has figures of its own", () => {
  const of = (objective, ...figures) => figures.map(([name, value, error]) => metric(name, value, error, { seed: 4, objective }));
  const both = [...of("elbo", ["lml", null], ["mpt", -5, 0.1]), ...of("mpt", ["lml", -3], ["mpt", -3, 0.1])];
  const found = resultOf(both).map(({ label, mean, agreement }) => [label, mean.value, agreement?.agrees]);
  assert.deepEqual(found, [
    ["MPT, trained by elbo", -5, undefined],
    ["LML, trained by mpt", -3, undefined],
    ["MPT, trained by mpt", -3, true],
  ]);
  assert.equal(resultOf(of("elbo", ["lml", -4]))[0].label, "LML");
});

test("an LML that is not final has its reason in its place", () => {
  const metrics = [{ ...metric("lml", null), reason: "not final: raise evaluate.lml.nodes" }, metric("mpt", -5, 0.1)];
  const [lml, mpt] = resultOf(metrics);
  assert.deepEqual(lml, { label: "LML", reason: "not final: raise evaluate.lml.nodes" });
  assert.deepEqual([mpt.label, mpt.agreement], ["MPT", null]);
});

test("rows are sorted by numbers or words, with missing values last", () => {
  const rows = [{ v: 10 }, { v: null }, { v: 9 }, { v: -1 }];
  const by = (order) => sorted(rows, ({ v }) => v, order).map(({ v }) => v);
  assert.deepEqual(by("asc"), [-1, 9, 10, null]);
  assert.deepEqual(by("desc"), [10, 9, -1, null]);
  assert.deepEqual(sorted(["b", "a"], (one) => one, "asc"), ["a", "b"]);
});
