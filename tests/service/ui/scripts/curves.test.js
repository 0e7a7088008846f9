// Curves: what a chart is made of, and reading them in parts.

import assert from "node:assert/strict";
import { test } from "node:test";
import * as curves from "../../../../service/ui/static/curves.js";

const series = (name, labels, x = [1, 2], value = x) => ({ name, labels, x, value, std_err: x.map(() => 0.1) });
const metric = (value, labels, name = "lml") => ({ name, labels, value, std_err: null });

test("a chart for each name, with x ascending", () => {
  const found = curves.chartsOf([series("score", { seed: 1 }, [3, 1, 2], [30, null, 20]), series("loss", {}), series("score", { seed: 2 })]);
  assert.deepEqual(found.map(({ name, about }) => [name, about[0]]), [["score", "Score by mask size"], ["loss", "Loss in training"]]);
  const [first, second] = found[0].series;
  assert.deepEqual([first.label, first.x, first.value], ["seed 1", [1, 2, 3], [null, 20, 30]]);
  assert.equal(second.label, "seed 2");
  assert.equal(found[1].series[0].label, "loss");
  assert.deepEqual(curves.chartsOf([series("lml_heldout_parts", {})]), []);
});

test("differences by rate are drawn over the rate", () => {
  const xLabels = (...found) => curves.chartsOf(found).map(({ about }) => about.slice(1));
  const bySize = series("score_difference", {}, [1, 2, 3]);
  const byRate = series("score_difference", { model: "a" }, [0.15, 0.5, 1]);
  assert.deepEqual(xLabels(bySize), [["mask size m", "difference, nats"]]);
  assert.deepEqual(xLabels(byRate), [["masking rate", "difference, nats per token"]]);
  assert.deepEqual(xLabels(byRate, bySize), [["masking rate", "difference, nats per token"], ["mask size m", "difference, nats"]]);
  const onTheWay = [series("score_by_rate", {}), series("score_by_rate_interim", {})];
  assert.deepEqual([true, false].map((isPartial) => curves.chartsOf(onTheWay, isPartial).length), [2, 1]);
  assert.equal(curves.chartsOf(onTheWay.slice(1), false).length, 1);
  const keys = curves.chartsOf([byRate, bySize]).map(({ key }) => key);
  assert.equal(new Set(keys).size, 2);
  assert.deepEqual(curves.aboutSeries("mine"), ["mine", "", "mine"]);
});

test("seeds with the same x have a mean at each, with the error of a metric's mean", () => {
  const mean = (...found) => curves.chartsOfMany([{ id: "1".repeat(32), title: "a" }], [{ series: found }])[0].series;
  const labels = (seed, model = "m") => ({ seed, model });
  const found = mean(series("score", labels(1), [1, 2], [1, null]), series("score", labels(2), [1, 2], [2, 5]), series("score", labels(1, "n"), [1, 2]));
  assert.deepEqual(found.map(({ label }) => label), ["a, seed 1, model m", "a, seed 2, model m", "a, model m", "a, seed 1, model n"]);
  assert.deepEqual(found.map(({ dash }) => dash), [0, 0, 0, 1]);
  assert.deepEqual(found[2].value, [1.5, null]);
  assert.deepEqual(found[2].std_err, [0.5, null]);
  const apart = mean(series("loss", { seed: 1 }, [1, 2]), series("loss", { seed: 2 }, [1, 3]), series("loss", { seed: 3 }, [1, 2, 3]));
  assert.deepEqual(apart.map(({ label, faint }) => [label, faint]), [["a, seed 1", undefined], ["a, seed 2", undefined], ["a, seed 3", undefined]]);
});

test("of many experiments each has a colour, and its series of one name a dash each", () => {
  const experiments = [{ id: "1".repeat(32), title: "a" }, { id: "2".repeat(32), title: "b" }];
  const items = [{ series: [series("score", { seed: 1 }), series("score", { seed: 2 }), series("loss", {})] }, { series: [series("score", {})] }];
  const [score, loss] = curves.chartsOfMany(experiments, items);
  const looks = ({ series: some }) => some.map(({ label, colour, dash, faint = false }) => [label, colour, dash, faint]);
  assert.deepEqual(looks(score), [["a, seed 1", 0, 0, true], ["a, seed 2", 0, 0, true], ["a", 0, 0, false], ["b", 1, 0, false]]);
  const [again] = curves.chartsOfMany(experiments, items, [4, 4]);
  assert.deepEqual(again.series.map(({ colour }) => colour), [4, 4, 4, 4]);
  assert.deepEqual(loss.series.map(({ label, colour, dash }) => [label, colour, dash]), [["a", 0, 0]]);
});

test("levels: zero, each model's final LML, or none", () => {
  const mean = (value, labels, name = "lml") => ({ name, labels, value });
  const summary = [mean(-11, { model: "model" }), mean(-30, { model: "baseline" }), mean(-99, {}, "mpt"), mean(-50, { epoch: 0, model: "model" })];
  assert.deepEqual(curves.levelsOf("convergence", summary), [{ label: "0", y: 0 }]);
  assert.deepEqual(curves.levelsOf("score_difference", []), [{ label: "0", y: 0 }]);
  assert.deepEqual(curves.levelsOf("score", summary), []);
  assert.deepEqual(curves.levelsOf("elbo", summary), [{ label: "LML, model model", y: -11 }, { label: "LML, model baseline", y: -30 }]);
  assert.deepEqual(curves.levelsOf("lml", [mean(-5, {})], "LML of x"), [{ label: "LML of x", y: -5 }]);
  assert.deepEqual(curves.levelsOf("lml", [mean(null, {})]), []);
  const seeds = [{ labels: { seed: 1 }, value: -3 }, { labels: { seed: 2 }, value: -5 }];
  const levels = curves.levelsOf("lml", [{ ...mean(-4, {}), all: seeds }]);
  assert.deepEqual(levels, [{ label: "LML, seed 1", y: -3 }, { label: "LML, seed 2", y: -5 }]);
  assert.deepEqual(curves.colouredAlike(levels, [{ label: "seed 1", colour: 0 }, { label: "seed 2", colour: 1 }]).map(({ colour }) => colour), [0, 1]);
  assert.equal(curves.levelsOf("lml", [{ ...mean(-3, {}), all: [seeds[0], seeds[0]] }]).length, 1);
});

test("the loss of a training in steps is drawn over the steps", () => {
  const about = (spec) => curves.chartsOf([series("loss", { seed: 0 })], false, spec)[0].about;
  assert.deepEqual(about({ train: { epochs: 60 } }), ["Loss in training", "epoch", "loss, nats"]);
  assert.deepEqual(about({ train: { steps: 30 } }), ["Loss in training", "step", "loss, nats per token"]);
  assert.equal(curves.chartsOf([series("loss_heldout", {})], false, { train: { steps: 30 } })[0].about[0], "Loss, held out, in training");
});

test("after the end no points are drawn that a later estimate has replaced", () => {
  const found = [series("score", { seed: 1, epoch: 0 }), series("score", { seed: 1, epoch: 60 }), series("score", { seed: 1 })];
  const labels = (...given) => curves.chartsOf(found, ...given)[0].series.map(({ label, area }) => [label, area ?? false]);
  const final = ["seed 1", true]; // the area below the final curve is the score
  assert.deepEqual(labels(false, { train: { epochs: 60 } }), [final, ["seed 1, epoch 0", false]]);
  assert.deepEqual(labels(true, { train: { epochs: 60 } }).length, 3);
  const experiment = { id: "1".repeat(32), title: "a", spec: { train: { epochs: 60 } } };
  const [many] = curves.chartsOfMany([experiment], [{ series: [...found, series("score_by_rate_interim", {}), series("score_by_rate", {})], partial: false }]);
  assert.deepEqual(many.series.map(({ label, dash }) => [label, dash]), [["a, seed 1", 0], ["a, seed 1, epoch 0", 1]]);
  const twice = curves.chartsOf([series("score", {}, [1, 2, 1], [10, 20, 11])])[0].series[0];
  assert.deepEqual([twice.x, twice.value], [[1, 2], [11, 20]]);
});

test("an objective has its colour, and a seed its dash, in each chart; a level has the colour of its curves", () => {
  const of = (name, objective, seed, more = {}) => series(name, { objective, seed, ...more });
  const [loss, elbo] = curves.chartsOf([of("loss", "mpt", 4, { epoch: 0 }), of("loss", "mpt", 4), of("loss", "elbo", 4), of("loss", "elbo", 5), of("elbo", "elbo", 5)]);
  const looks = ({ series: some }) => some.map(({ label, colour, dash }) => [label, colour, dash]);
  const last = ["objective elbo, seed 5", 1, 1];
  assert.deepEqual(looks(loss), [["objective mpt, seed 4", 0, 0], ["objective elbo, seed 4", 1, 0], last, ["objective mpt, seed 4, epoch 0", 2, 0]]);
  assert.deepEqual(looks(elbo), [last]);
  const levels = [{ label: "LML, objective elbo", y: -1 }, { label: "LML, objective mpt", y: -2 }];
  assert.deepEqual(curves.colouredAlike(levels, loss.series).map(({ colour }) => colour), [1, 0]);
  assert.deepEqual(curves.colouredAlike([{ label: "LML", y: 0 }], [{ label: "seed 4" }]), [{ label: "LML", y: 0 }]);
  const ofSeeds = curves.chartsOf([series("loss", { seed: 4 }), series("loss", { seed: 5 }), series("score", { seed: 5 })]);
  assert.deepEqual(ofSeeds.map(looks), [[["seed 4", 0, undefined], ["seed 5", 1, undefined]], [["seed 5", 1, undefined]]]);
});

function answering(...answers) {
  const asked = [];
  globalThis.fetch = async (path) => {
    asked.push(path);
    const answer = answers.shift();
    return { ok: true, status: 200, json: async () => answer };
  };
  return asked;
}
const answer = (last_seq, found, partial = true) => ({ experiment_id: "e", last_seq, partial, series: found });

test("the whole is read once, then what came since", async () => {
  const asked = answering(
    answer(4, [series("score", { seed: 1 }, [1, 2]), series("loss", {}, [1])]),
    answer(6, [series("score", { seed: 1 }, [3]), series("score", { seed: 2 }, [1])], false),
  );
  const read = curves.curvesOf("e");
  const first = await read();
  const second = await read();
  assert.deepEqual(asked, ["/v1/experiments/e/curves?max_points=20000", "/v1/experiments/e/curves?max_points=20000&after=4"]);
  assert.deepEqual(second.series.map(({ name, labels, x }) => [name, labels.seed, x]), [["score", 1, [1, 2, 3]], ["loss", undefined, [1]], ["score", 2, [1]]]);
  assert.deepEqual([first.points, second.points, second.lastSeq, second.partial], [3, 5, 6, false]);
  assert.equal(second.series[1], first.series[1]); // what did not grow is the same object
  assert.notEqual(second.series[0], first.series[0]);
});

test("a curve that has grown long is read as a whole again, thinned", async () => {
  const long = Array.from({ length: 40_001 }, (_, i) => i);
  const asked = answering(answer(1, [series("score", {}, long)]), answer(2, [series("score", {}, [1])]));
  const read = curves.curvesOf("e");
  await read();
  assert.equal((await read()).points, 1);
  assert.equal(asked[1], asked[0]);
});

test("many experiments are one request, then those alone that are not complete", async () => {
  const asked = answering({ items: [{ ...answer(1, []), experiment_id: "a" }, { ...answer(1, [], false), experiment_id: "b" }] }, answer(3, [series("score", {}, [1])], false));
  const read = curves.curvesOfMany(["a", "b"]);
  assert.deepEqual((await read()).map(({ partial }) => partial), [true, false]);
  assert.deepEqual((await read()).map(({ points }) => points), [1, 0]);
  assert.deepEqual(asked, ["/v1/curves:batchGet", "/v1/experiments/a/curves?max_points=20000&after=1"]);
});
