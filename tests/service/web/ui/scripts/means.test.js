// Means over seeds, by the table of examples that the Python client is tested with too.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { aboutMean, meanTitle, overSeeds, paired } from "../../../../../service/web/ui/static/means.js";

const examples = JSON.parse(readFileSync(new URL("../../../../support/means.json", import.meta.url)));
const rounded = ({ std_err: error, ...rest }) => ({ ...rest, std_err: error && Number(error.toPrecision(12)) });
const metric = (value, labels, std_err = null) => ({ name: "lml", value, std_err, labels });

for (const { case: title, metrics, means } of examples) {
  test(title, () => {
    const found = overSeeds(metrics).map(({ key, all, ...mean }) => rounded(mean));
    assert.deepEqual(found, means.map(rounded));
  });
}

test("a mean keeps its metrics, and a key that tells labels apart", () => {
  const found = overSeeds([metric(1, { seed: 1, model: "model" }), metric(2, { seed: 1, model: "baseline" })]);
  assert.equal(new Set(found.map((one) => one.key)).size, 2);
  assert.deepEqual(found.map((one) => one.all.map(({ value }) => value)), [[1], [2]]);
  assert.deepEqual(found.map(meanTitle), ["lml, model model", "lml, model baseline"]);
});

test("differences are of pairs of equal seeds", () => {
  const [one] = overSeeds([metric(10, { seed: 1 }), metric(23, { seed: 2 }), metric(99, { seed: 3 }), metric(6, { seed: 4 })]);
  const [other] = overSeeds([metric(20, { seed: 2 }), metric(9, { seed: 1 }), metric(null, { seed: 3 }), metric(1, { seed: 4 })]);
  const { value, std_err, count } = paired(one, other);
  assert.deepEqual([value, Number(std_err.toPrecision(12)), count], [3, 1.15470053838, 3]);
  assert.equal(paired(one, overSeeds([metric(1, { seed: 8 })])[0]), null);
  assert.equal(paired({ ...one, all: one.all.map((own) => ({ ...own, name: "pll_population" })) }, other).std_err, std_err);
});

test("a tooltip says what the error covers", () => {
  const about = (...metrics) => aboutMean(overSeeds(metrics)[0]);
  assert.match(about(metric(1, { seed: 1 }, 0.1)), /masks or samples of this seed, not its training/);
  assert.equal(about({ ...metric(1, { seed: 1 }), reason: "exact" }), "exact");
  assert.match(about(...[1, 2, 3].map((seed) => metric(seed, { seed }))), /mean over 3 seeds; ± covers .* training/);
  assert.match(about(metric(1, { seed: 1 }), metric(2, { seed: 2 })), /mean over two seeds, which tell no error/);
  const population = (seed) => ({ ...metric(1, { seed }, 0.1), name: "pll_population" });
  assert.match(about(population(1)), /± covers the choice of texts and the masks/);
  assert.match(about(population(1), population(2)), /2 seeds; ± covers the choice of texts and the variation/);
  assert.match(about(metric(null, { seed: 1 }), metric(2, { seed: 2 })), /a seed has no value/);
});
