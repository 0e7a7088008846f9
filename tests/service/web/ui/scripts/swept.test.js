// The charts of a sweep.

import assert from "node:assert/strict";
import { test } from "node:test";
import { axesOf, bestRow, chartOf, chiefMetric, rowsOf } from "../../../../../service/web/ui/static/swept.js";

const row = (fields, value, count = 1) => ({ fields, metrics: value === undefined ? {} : { lml: { value, std_err: 0.5, count } } });
const table = (fields, items, pooled = []) => ({ fields, items, pooled, metrics: ["lml"] });

test("a chart shows the metric that chooses between models", () => {
  assert.equal(chiefMetric({ metrics: ["lml", "mpt", "lml_heldout"] }), "lml_heldout");
  assert.equal(chiefMetric({ metrics: ["bias", "masks"] }), "bias");
});

test("a curve for each choice of the other fields", () => {
  const items = [row({ "a.k": 2, "b.f": "x" }, -2), row({ "a.k": 1, "b.f": "x" }, -1), row({ "a.k": 1, "b.f": "y" }, -3), row({ "a.k": 3, "b.f": "y" }, null), row({ "a.k": 4, "b.f": "y" })];
  const made = table(["a.k", "b.f"], items);
  assert.deepEqual(axesOf(made), ["a.k"]);
  const { series, lines } = chartOf(made, "a.k", "lml");
  assert.deepEqual(series, [
    { label: "f x", x: [1, 2], value: [-1, -2], std_err: [0.5, 0.5], dots: false },
    { label: "f y", x: [1], value: [-3], std_err: [0.5], dots: false },
  ]);
  assert.deepEqual(lines, []);
});

test("fields with one value, and fields that change with the axis, separate no curves and are not told", () => {
  const items = [1, 2, 3].map((k) => row({ "a.k": k, "b.epochs": 10 * k, "c.n": 5 }, -k));
  const made = table(["a.k", "b.epochs", "c.n"], items);
  assert.deepEqual(chartOf(made, "a.k", "lml").series.map(({ label, x }) => [label, x]), [["lml", [1, 2, 3]]]);
  assert.deepEqual(chartOf(made, "b.epochs", "lml").series.map(({ x }) => x), [[10, 20, 30]]);
  assert.equal(bestRow(made).at, "k 1");
  const crossed = table(["a.k", "b.epochs"], [...items, row({ "a.k": 1, "b.epochs": 20 }, -9)]);
  assert.equal(chartOf(crossed, "a.k", "lml").series.length, 3);
  assert.equal(bestRow(crossed).at, "k 1, epochs 10");
  const one = table(["c.n"], items);
  assert.equal(bestRow(one).at, "n 5");
});

test("nothing is best where only the measurement differs", () => {
  const items = [4, 16].flatMap((masks) => [1, 2].map((k) => row({ "evaluate.masks.per_size": masks, "a.k": k }, -k)));
  const made = { ...table(["evaluate.masks.per_size"], items), metrics: ["lml", "mpt"] };
  assert.equal(bestRow(made), null);
  assert.equal(chiefMetric(made), "mpt");
  assert.equal(bestRow({ ...made, fields: ["evaluate.masks.per_size", "a.k"] }).at, "k 1");
  assert.equal(chiefMetric({ ...made, fields: ["evaluate.masks.per_size", "a.k"] }), "lml");
  assert.equal(chiefMetric({ ...made, fields: ["seeds"] }), "lml");
});

test("where seeds are swept, a curve is of means over them", () => {
  const items = [1, 2].flatMap((k) => [0, 1].map((seed) => row({ k, seeds: [seed] }, -k - seed)));
  const made = table(["seeds", "k"], items, [row({ k: 1 }, -1.5, 2), row({ k: 2 }, -2.5, 2)]);
  assert.equal(rowsOf(made), made.pooled);
  assert.deepEqual(axesOf(made), ["k", "seeds"]);
  assert.deepEqual(chartOf(made, "k", "lml").series, [{ label: "lml", x: [1, 2], value: [-1.5, -2.5], std_err: [0.5, 0.5], dots: false }]);
});

test("the best row is by the metric that chooses between models", () => {
  const items = [row({ "a.k": 2 }, -2), row({ "a.k": 1 }, -1), row({ "a.k": 3 }, null), row({ "a.k": 4 })];
  const { metric, row: best, at } = bestRow(table(["a.k"], items));
  assert.deepEqual([metric, best, at], ["lml", items[1], "k 1"]);
  const heldOut = items.map((one, i) => ({ ...one, metrics: { ...one.metrics, lml_heldout: { value: -i * (i - 5), std_err: null } } }));
  assert.equal(bestRow({ ...table(["a.k"], heldOut), metrics: ["lml", "lml_heldout"] }).at, "k 3");
  assert.equal(bestRow(table(["a.k"], items.slice(1))), null);
  assert.equal(bestRow(table(["seeds"], items, items)), null);
  const pooled = [row({ k: 1 }, -1.5, 2), row({ k: 2 }, -2.5, 2)];
  assert.equal(bestRow(table(["seeds", "k"], [row({ k: 2, seeds: [0] }, 9)], pooled)).at, "k 1");
});

test("rows that the held-out observations do not tell from the best are told", () => {
  const cell = (value, std_err) => ({ value, std_err, count: 1 });
  const rowOf = (k, lml, behind, error) => ({ fields: { "a.k": k }, metrics: { lml_heldout: cell(lml, 0), lml_heldout_behind_best: cell(behind, error) } });
  const items = [rowOf(1, -4, 3, 1.6), rowOf(2, -1, 0, 0), rowOf(3, -1.5, 0.5, 0.24), rowOf(4, -1.5, 0.5, null), rowOf(5, -1.5, 0.5, 0.26)];
  const made = (rows) => ({ fields: ["a.k"], items: rows, pooled: [], metrics: ["lml_heldout"] });
  assert.deepEqual(bestRow(made(items)).alike, ["k 1", "k 5"]);
  assert.deepEqual(bestRow(made([...items, rowOf(6, -1.75, 0, 0)])).alike, ["k 1", "k 5"]); // of other data
  assert.deepEqual(bestRow(made([...items, rowOf(6, -1, 0, 0)])).alike, ["k 1", "k 5", "k 6"]); // a tie
  assert.deepEqual(bestRow(made([...items, { fields: { "a.k": 7 }, metrics: { lml_heldout: cell(-9, 0) } }])).alike, ["k 1", "k 5"]);
});

test("against seeds it is a dot for each, and a line at their mean", () => {
  const items = [5, 3].map((seed) => row({ seeds: [seed] }, -seed));
  const made = table(["seeds"], items, [row({}, -4, 2)]);
  assert.deepEqual(axesOf(made), ["seeds"]);
  const { series, lines } = chartOf(made, "seeds", "lml");
  assert.deepEqual(series, [{ label: "lml", x: [3, 5], value: [-3, -5], std_err: [0.5, 0.5], dots: true }]);
  assert.deepEqual(lines, [{ label: "mean over seeds", y: -4, colour: 0 }]);
});

test("lines at means have the colour of their dots, and there are few", () => {
  const of = (count) => {
    const ks = Array.from({ length: count }, (_, i) => i);
    return chartOf(table(["k", "seeds"], ks.map((k) => row({ k, seeds: [1] }, k)), ks.map((k) => row({ k }, k)).reverse()), "seeds", "lml").lines;
  };
  assert.deepEqual(of(2), [{ label: "mean over seeds, k 1", y: 1, colour: 1 }, { label: "mean over seeds, k 0", y: 0, colour: 0 }]);
  assert.equal(of(8).length, 8);
  assert.deepEqual(of(9), []);
});

test("points of several seeds have no place on an axis of seeds", () => {
  assert.deepEqual(axesOf(table(["seeds"], [row({ seeds: [1, 2] }, -1)])), []);
});
