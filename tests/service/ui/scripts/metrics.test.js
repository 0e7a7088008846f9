// The table of a run's metrics.

import assert from "node:assert/strict";
import { test } from "node:test";
import { tableOf as tableOfMeans } from "../../../../service/ui/static/metrics.js";
import { meanOf, meansOf, withoutSeed } from "../../../../service/ui/static/means.js";

const metric = (name, value, labels, std_err = 0.5) => ({ name, value, std_err, labels });

/** The table of metrics, with their summary as the service makes it. */
function tableOf(metrics) {
  const groups = new Map();
  for (const one of metrics) {
    const key = `${one.name} ${JSON.stringify(withoutSeed(one.labels))}`;
    groups.set(key, [...(groups.get(key) ?? []), one]);
  }
  const summary = [...groups].map(([title, all]) => ({ title, name: all[0].name, labels: withoutSeed(all[0].labels), count: all.length, covers: "the choice of texts and the masks", ...meanOf(all) }));
  return tableOfMeans(meansOf({ summary, metrics }));
}

const titles = ({ columns }) => columns.map(({ title }) => title);
const values = ({ rows }) => rows.map(({ title, cells }) => [title, ...cells.map((cell) => cell?.metric?.value ?? null)]);

test("one seed, or none, has no mean", () => {
  assert.deepEqual(titles(tableOf([metric("lml", 1, { seed: 4 })])), ["seed 4"]);
  const table = tableOf([metric("lml", 1, {})]);
  assert.deepEqual([titles(table), values(table)], [["value"], [["LML", 1]]]);
  const mixed = tableOf([metric("cut", 1, {}), metric("width", 2, { seed: 3 })]);
  assert.deepEqual([titles(mixed), values(mixed)], [["value"], [["cut", 1], ["width", 2]]]);
});

test("several seeds have a mean, beside what has no seed", () => {
  const table = tableOf([metric("lml", 1, { seed: 4 }), metric("lml", 3, { seed: 5 }), metric("cut", 7, {}), metric("mpt", 2, { seed: 5, of: "a" })]);
  assert.deepEqual(titles(table), ["mean over seeds", "seed 4", "seed 5"]);
  assert.deepEqual(values(table), [["LML", 2, 1, 3], ["cut", 7, null, null], ["MPT, of a", 2, null, 2]]);
});

test("model and baseline are side by side, and the error over texts is beside the value", () => {
  const of = (model, seed, name = "area") => metric(name, seed, { model, seed }, name === "area" ? 0.1 : 5);
  const table = tableOf([of("model", 1), of("model", 1, "area_population"), of("baseline", 1), of("model", 1, "pll_population")]);
  assert.deepEqual(titles(table), ["model", "baseline"]);
  assert.deepEqual(values(table), [["area", 1, 1], ["pll", null, null]]);
  assert.equal(table.rows[0].cells[0].population.std_err, 5);
  assert.equal(table.rows[1].cells[0].population.value, 1);
  const twice = tableOf([of("model", 1), of("baseline", 1), of("model", 2), of("baseline", 2)]);
  assert.deepEqual(titles(twice), ["model, mean over seeds", "baseline, mean over seeds", "model, seed 1", "baseline, seed 1", "model, seed 2", "baseline, seed 2"]);
});

test("at most 24 seeds are shown", () => {
  const table = tableOf(Array.from({ length: 30 }, (_, seed) => metric("lml", 1, { seed })));
  assert.deepEqual([table.columns.length, table.hiddenSeeds], [25, 6]);
});
