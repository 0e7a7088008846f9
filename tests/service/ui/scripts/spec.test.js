// A spec in lines.

import assert from "node:assert/strict";
import { test } from "node:test";

globalThis.addEventListener ??= () => {}; // live.js listens to the browser's window
const { canHaveMoreMasks, summary, usedParts, withMoreMasks, withNames } = await import("../../../../service/ui/static/spec.js");

test("a part begins with what it is; what is null or empty is left out", () => {
  const data = { n: 50, noise: { kind: "isotropic" }, seed: null, columns: [], source: "ppca" };
  assert.equal(summary(data), "ppca · n 50 · noise.kind isotropic");
});

test("a list has commas, and a long one is cut", () => {
  assert.equal(summary([4, 44]), "4, 44");
  const ten = Array.from({ length: 10 }, (_, i) => i);
  assert.equal(summary({ sizes: ten }), "sizes 0, 1, 2, 3, 4, 5, 6, 7, 8, 9");
  assert.equal(summary({ sizes: [...ten, 10] }), "sizes 0, 1, 2, …, 10 (11 values)");
});

test("what a run does not use is left out", () => {
  const masks = { schedule: "all", per_size: 100, design: "independent" };
  const spec = { train: null, data: { source: "upload", dataset: "1a", n: 3, dim: 2, heldout: null, standardize: false, seed: 0 }, evaluate: { masks, bias: false, target_std_err: null, target: "score", max_masks: 9 } };
  assert.deepEqual(usedParts(spec), { data: { source: "upload", dataset: "1a", n: 3, dim: 2 }, evaluate: { masks } });
  assert.deepEqual(usedParts({ evaluate: { ...spec.evaluate, target_std_err: 0.1 } }).evaluate, { masks: { schedule: "all", design: "independent" }, target_std_err: 0.1, target: "score", max_masks: 9 });
  assert.deepEqual(usedParts({ evaluate: { masks, texts: { scores: ["pll"], target_std_err: null, max_masks: 9 } } }).evaluate, { texts: { scores: ["pll"] } });
  const names = { dataset: { name: "mine.csv", columns: ["a", "b"] } };
  assert.equal(summary(withNames(usedParts(spec), names).data), "upload · mine.csv · columns a, b · rows 3");
});

test("more masks are more of each size, or a smaller target error", () => {
  const masks = { schedule: "all", per_size: 5, design: "independent" };
  assert.deepEqual(withMoreMasks({ evaluate: { masks, target_std_err: null } }, 4).evaluate, { masks: { ...masks, per_size: 20 }, target_std_err: null });
  const texts = { scores: ["cumulative"], target_std_err: 0.1, max_masks: 100 };
  assert.deepEqual(withMoreMasks({ evaluate: { texts } }, 4).evaluate.texts, { ...texts, target_std_err: 0.05, max_masks: 400 });
  const exact = [{ texts: { scores: ["pll"], target_std_err: null } }, { masks: { ...masks, design: "exhaustive" } }, null];
  assert.deepEqual([{ masks }, ...exact].map((evaluate) => canHaveMoreMasks({ evaluate })), [true, false, false, false]);
});
