// The charts of the workers over the last hours.

import assert from "node:assert/strict";
import { test } from "node:test";

globalThis.addEventListener ??= () => {}; // live.js listens to the browser's window
const { chartsOf } = await import("../../../../service/ui/static/worker-history.js");

test("the charts begin at the first sample of any worker, and end now", () => {
  const at = ["2026-01-01T00:00:00Z", "2026-01-01T01:00:00Z", "2026-01-01T02:00:00Z"];
  const items = [
    { id: "a", busy: [null, null, 1], memory_free: [null, null, null] },
    { id: "b", busy: [null, 0.5, null], memory_free: [null, 2 ** 30, 2 ** 31] },
  ];
  const { busy, free } = chartsOf({ at, stretch_s: 3600, items }, ["a", "b", "here"], Date.parse("2026-01-01T02:30:00Z"));
  assert.deepEqual(busy.map(({ x, value }) => [x, value]), [[[-60, -15], [null, 100]], [[-60, -15], [50, null]]]);
  assert.deepEqual(free[1].value, [1, 2]);
  assert.deepEqual(busy.map(({ faint }) => faint), [false, false]);
});

test("workers that have gone are faint, and last", () => {
  const at = ["2026-01-01T00:00:00Z", "2026-01-01T01:00:00Z", "2026-01-01T02:00:00Z"];
  const items = [
    { id: "gone", busy: [1, null, null], memory_free: [1, null, null] },
    { id: "here", busy: [null, null, 1], memory_free: [null, null, 1] },
  ];
  const { busy } = chartsOf({ at, stretch_s: 3600, items }, ["a", "b", "here"], Date.parse("2026-01-01T02:30:00Z"));
  assert.deepEqual(busy.map(({ label, faint }) => [label, faint]), [["here", false], ["gone", true]]);
});
