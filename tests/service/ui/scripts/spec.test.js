// A spec in lines.

import assert from "node:assert/strict";
import { test } from "node:test";
import { summary } from "../../../../service/ui/static/spec.js";

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
