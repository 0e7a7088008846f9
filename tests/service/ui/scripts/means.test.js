// Means over seeds: those of curves by the table of examples that the service is tested with too.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { aboutMean, meanOf, meansOf, paired, withoutSeed } from "../../../../service/ui/static/means.js";

const examples = JSON.parse(readFileSync(new URL("../../../support/means.json", import.meta.url)));
const rounded = ({ value, std_err: error }) => ({ value, std_err: error && Number(error.toPrecision(12)) });
const isCurve = ({ name }) => !name.endsWith("_population"); // whose error would not be divided: no series has it

for (const { case: title, metrics, means } of examples) {
  test(title, () => {
    for (const mean of means.filter(isCurve)) {
      const isOf = ({ name, labels }) => name === mean.name && JSON.stringify(withoutSeed(labels)) === JSON.stringify(mean.labels);
      assert.deepEqual(rounded(meanOf(metrics.filter(isOf))), rounded(mean));
    }
  });
}

const metric = (value, labels, name = "lml") => ({ name, value, std_err: null, labels });
const row = (title, labels, name = "lml") => ({ name, title, labels });

test("a mean has the values of its seeds; those of the training come last", () => {
  const metrics = [metric(0, { epoch: 0, seed: 1 }), metric(1, { model: "a", seed: 1 }), metric(2, { model: "b", seed: 1 }), metric(3, { model: "a", seed: 2 })];
  const summary = [row("lml[epoch=0]", { epoch: 0 }), row("lml[model=a]", { model: "a" }), row("lml[model=b]", { model: "b" })];
  const means = meansOf({ summary, metrics });
  assert.deepEqual(means.map(({ key, all }) => [key, all.map(({ value }) => value)]), [["lml[model=a]", [1, 3]], ["lml[model=b]", [2]], ["lml[epoch=0]", [0]]]);
});

test("differences are of pairs of equal seeds", () => {
  const one = { all: [metric(10, { seed: 1 }), metric(23, { seed: 2 }), metric(99, { seed: 3 }), metric(6, { seed: 4 })] };
  const other = { all: [metric(20, { seed: 2 }), metric(9, { seed: 1 }), metric(null, { seed: 3 }), metric(1, { seed: 4 })] };
  const { value, std_err, count } = paired(one, other);
  assert.deepEqual([value, Number(std_err.toPrecision(12)), count], [3, 1.15470053838, 3]);
  assert.equal(paired(one, { all: [metric(1, { seed: 8 })] }), null);
});

test("a tooltip says what the error covers", () => {
  const mean = { value: 1, std_err: 0.1, count: 1, covers: "the masks", reason: null };
  assert.equal(aboutMean(mean), "± covers the masks");
  assert.equal(aboutMean({ ...mean, std_err: 0, reason: "exact" }), "exact");
  assert.equal(aboutMean({ ...mean, count: 3 }), "mean over 3 seeds; ± covers the masks");
  assert.equal(aboutMean({ ...mean, count: 2, std_err: null }), "mean over two seeds, which tell no error");
  assert.equal(aboutMean({ ...mean, value: null, reason: "not final" }), "not final");
  assert.match(aboutMean({ ...mean, value: null }), /a seed has no value/);
});
