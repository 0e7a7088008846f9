// The map of mutations.

import assert from "node:assert/strict";
import { test } from "node:test";

globalThis.addEventListener ??= () => {}; // live.js listens to the browser's window
const { mapOf } = await import("../../../../service/ui/static/mutation_map.js");

test("single changes are on the map, by place and letter", () => {
  const rows = [
    { text: "K10A", s: -1 },
    { text: "M2W", s: -2 },
    { text: "M2A", s: 0 },
    { text: "M2C", s: null },
    { text: "M2A:K10W", s: -9 },
    { text: "no mutation", s: -3 },
  ];
  const { places, letters, values } = mapOf(rows, "s");
  assert.deepEqual(places, [{ place: 2, letter: "M" }, { place: 10, letter: "K" }]);
  assert.deepEqual(letters, ["A", "W"]);
  assert.deepEqual([...values], [["K10A", -1], ["M2W", -2], ["M2A", 0]]);
});
