// The charts of a sweep.

import assert from "node:assert/strict";
import { test } from "node:test";
import { fieldName, fieldSymbol, metricName } from "../../../../service/ui/static/names.js";
import { axesOf, bestRow, chartOf, errorOf, rowsOf } from "../../../../service/ui/static/swept.js";

const row = (fields, value, count = 1) => ({ fields, metrics: value === undefined ? {} : { lml: { value, std_err: 0.5, count } } });
const table = (fields, items, pooled = [], varying = fields.map((one) => [one]), best = null) => ({ fields, items, pooled, metrics: ["lml"], varying, best });

test("a curve for each choice of the other fields", () => {
  const items = [row({ "a.k": 2, "b.f": "x" }, -2), row({ "a.k": 1, "b.f": "x" }, -1), row({ "a.k": 1, "b.f": "y" }, -3), row({ "a.k": 3, "b.f": "y" }, null), row({ "a.k": 4, "b.f": "y" })];
  const made = table(["a.k", "b.f"], items);
  assert.deepEqual(axesOf(made), ["a.k"]);
  const { series, lines } = chartOf(made, "a.k", "lml");
  assert.deepEqual(series, [
    { label: "f = x", x: [1, 2], value: [-1, -2], std_err: [0.5, 0.5], dots: false },
    { label: "f = y", x: [1], value: [-3], std_err: [0.5], dots: false },
  ]);
  assert.deepEqual(lines, []);
});

test("fields with one value, and fields that change with the axis, separate no curves", () => {
  const items = [1, 2, 3].map((k) => row({ "a.k": k, "b.epochs": 10 * k, "c.n": 5 }, -k));
  const made = table(["a.k", "b.epochs", "c.n"], items, [], [["a.k", "b.epochs"]]);
  assert.deepEqual(chartOf(made, "a.k", "lml").series.map(({ label, x }) => [label, x]), [["LML", [1, 2, 3]]]);
  assert.deepEqual(chartOf(made, "b.epochs", "lml").series.map(({ x }) => x), [[10, 20, 30]]);
  const crossed = table(["a.k", "b.epochs"], [...items, row({ "a.k": 1, "b.epochs": 20 }, -9)]);
  assert.equal(chartOf(crossed, "a.k", "lml").series.length, 3);
});

test("where seeds are swept, a curve is of means over them", () => {
  const items = [1, 2].flatMap((k) => [0, 1].map((seed) => row({ k, seeds: [seed] }, -k - seed)));
  const made = table(["seeds", "k"], items, [row({ k: 1 }, -1.5, 2), row({ k: 2 }, -2.5, 2)], [["k"]]);
  assert.equal(rowsOf(made), made.pooled);
  assert.deepEqual(axesOf(made), ["k", "seeds"]);
  assert.deepEqual(chartOf(made, "k", "lml").series, [{ label: "LML", x: [1, 2], value: [-1.5, -2.5], std_err: [0.5, 0.5], dots: false }]);
});

test("the best row is the one that the service names, and it is marked", () => {
  const items = [row({ "a.k": 2 }, -2), row({ "a.k": 1 }, -1), row({ "a.k": 3 }, null)];
  const best = { metric: "lml", label: "LML", row: 1, alike: [0], smallest: 0, fields: ["a.k"] };
  const made = table(["a.k"], items, [], [["a.k"]], best);
  const { metric, label, row: shown, at } = bestRow(made);
  assert.deepEqual({ metric, label, shown, at }, { metric: "lml", label: "LML", shown: items[1], at: "k = 1" });
  assert.equal(bestRow({ ...made, best: null }), null);
  const marks = chartOf(made, "a.k", "lml").series.slice(1);
  assert.deepEqual(marks.map(({ label, x, value, dots }) => [label, x, value, dots]), [["best: k = 1", [1], [-1], true], ["smallest as good: k = 2", [2], [-2], true]]);
  assert.equal(chartOf({ ...made, best: { ...best, smallest: 1 } }, "a.k", "lml").series.length, 2);
  assert.equal(chartOf({ ...made, best: { ...best, metric: "mpt" } }, "a.k", "lml").series.length, 1);
  const pooled = [row({ "a.k": 1 }, -1.5, 2), row({ "a.k": 2 }, -2.5, 2)];
  assert.equal(bestRow({ ...made, pooled, best: { ...best, row: 0 } }).row, pooled[0]);
});

test("the bands of the held-out LML are those of the difference from the best", () => {
  const cell = (value, std_err) => ({ value, std_err, count: 1 });
  const rowOf = (k, lml, error) => ({ fields: { "a.k": k }, metrics: { lml_heldout: cell(lml, 9), lml_heldout_behind_best: cell(-1 - lml, error) } });
  const made = table(["a.k"], [rowOf(1, -3, 0.5), rowOf(2, -1, 0)]);
  assert.equal(errorOf(made, "lml_heldout"), "lml_heldout_behind_best");
  assert.equal(errorOf(made, "mpt"), "mpt");
  assert.deepEqual(chartOf(made, "a.k", "lml_heldout").series[0].std_err, [0.5, 0]);
});

test("against seeds it is a dot for each, and a line at their mean", () => {
  const items = [5, 3].map((seed) => row({ seeds: [seed] }, -seed));
  const made = table(["seeds"], items, [row({}, -4, 2)]);
  assert.deepEqual(axesOf(made), ["seeds"]);
  const { series, lines } = chartOf(made, "seeds", "lml");
  assert.deepEqual(series, [{ label: "LML", x: [3, 5], value: [-3, -5], std_err: [0.5, 0.5], dots: true }]);
  assert.deepEqual(lines, [{ label: "mean over seeds", y: -4, colour: 0 }]);
});

test("lines at means have the colour of their dots, and there are few", () => {
  const of = (count) => {
    const ks = Array.from({ length: count }, (_, i) => i);
    return chartOf(table(["k", "seeds"], ks.map((k) => row({ k, seeds: [1] }, k)), ks.map((k) => row({ k }, k)).reverse()), "seeds", "lml").lines;
  };
  assert.deepEqual(of(2), [{ label: "mean over seeds, k = 1", y: 1, colour: 1 }, { label: "mean over seeds, k = 0", y: 0, colour: 0 }]);
  assert.equal(of(8).length, 8);
  assert.deepEqual(of(9), []);
});

test("points of several seeds have no place on an axis of seeds", () => {
  assert.deepEqual(axesOf(table(["seeds"], [row({ seeds: [1, 2] }, -1)])), []);
});

test("fields and metrics have words and units on axes", () => {
  assert.deepEqual(["model.latent_dim", "train.learning_rate", "seeds"].map(fieldName), ["latent dimensions K", "learning rate", "seed"]);
  assert.deepEqual(["model.latent_dim", "train.learning_rate"].map(fieldSymbol), ["K", "learning rate"]);
  assert.equal(metricName("difference", { hasUnit: true }), "MPT − LML, nats");
  assert.equal(metricName("bits_per_token[of=pll]", { hasUnit: true }), "bits per token [of=pll]");
});
