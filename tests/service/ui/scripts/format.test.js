// Values as they are read.

import assert from "node:assert/strict";
import { test } from "node:test";
import * as format from "../../../../service/ui/static/format.js";

const { number, tick, withError, duration, expected, bytes, titleOf, labelText, secondsLeft, leaves, plain, ago, dateTime, beside, detailsOf } = format;

function check(title, of, examples) {
  test(title, () => examples.forEach(([expectedText, ...given]) => assert.equal(of(...given), expectedText)));
}

check("a number", number, [
  ["–", null], ["–", undefined], ["0", 0], ["−1.235", -1.23456], ["12350", 12345.6], ["12345", 12345],
  ["1.235 × 10⁶", 1234567.8], ["10⁶", 1e6], ["999999", 999999], ["0.0001", 0.0001], ["9.9 × 10⁻⁵", 0.000099], ["0.3333", 1 / 3], ["0.33", 1 / 3, 2],
]);
check("a number at an axis", tick, [
  ["0", 0], ["−1000", -1000], ["0.0001", 0.0001], ["10⁶", 1e6], ["2 × 10⁶", 2e6], ["−2.5 × 10⁻⁵", -0.000025],
  ["100", 100, true], ["10³", 1000, true], ["2000", 2000, true], ["0.01", 0.01, true], ["10⁻³", 0.001, true], ["10⁻¹²", 1e-12, true],
  ["0", 0, true], ["1.23457 × 10⁷", 12345678, true],
]);
check("a value with its error", withError, [
  ["0.00 ± 0.13", -0.003, 0.13],
  ["–", null, 1], ["−60.346", -60.34567891, 0], ["−60.346", -60.34567891, null], ["−61", -61, 0],
  ["−60.100", -60.1, 0], ["0.00912", 0.00911929, null], ["−0.0476", -0.0476116, null], ["0", 0, null], ["1.23457 × 10⁶", 1234567.25, null],
  ["−60.346 ± 0.012", -60.34567891, 0.0123], ["−60 ± 12", -60.3, 12.3], ["−60.3 ± 1.2", -60.3, 1.23],
  ["0.00000001 ± 0.00000000", 1e-8, 1e-12], ["−58.100", -58.1, 1e-14],
]);
check("a duration", duration, [
  ["less than 1 s", 0.4], ["1 s", 1], ["59 s", 59], ["1 min", 60], ["1 min 1 s", 61], ["1 h", 3600], ["1 h 30 min", 5400], ["1 d 2 h", 93_600], ["2 d", 172_800],
  ["1 min", 59.7], ["24 min", 1439.6], ["1 h", 3599.7], ["1 d", 86_399],
]);
check("an expected time", expected, [
  ["1 min (30 s to 2 min)", { median_s: 60, low_s: 30, high_s: 120 }],
  ["1 min", { median_s: 60, low_s: 60, high_s: 60 }],
]);
check("bytes", bytes, [["–", null], ["0 B", 0], ["999 B", 999], ["1 kB", 1000], ["1.5 MB", 1.5e6], ["2 GB", 2e9], ["3000 TB", 3e15]]);
test("experiments of one title are told apart by their ids", () => {
  const experiments = ["a", "b", "a"].map((title, i) => ({ title, id: `${i}`.repeat(32) }));
  assert.deepEqual(format.distinctTitles(experiments), ["a · 000000", "b", "a · 222222"]);
  assert.equal(titleOf(experiments[0]), "a");
});
check("labels", labelText, [["", {}], ["seed 4, model baseline", { seed: 4, model: "baseline" }]]);
check("a plain value", plain, [["a", "a"], ["[1,2]", [1, 2]], ["null", null], ["true", true]]);

test("leaves of a spec: lists and null are leaves", () => {
  assert.deepEqual(leaves({ a: { b: 1, c: [1] }, d: null }), [["a.b", 1], ["a.c", [1]], ["d", null]]);
});

test("seconds left are not negative, and null where no end is known", () => {
  const at = (ms) => ({ progress: { estimated_end: new Date(Date.now() + ms).toISOString() } });
  assert.equal(secondsLeft({ progress: null }), null);
  assert.equal(secondsLeft({ progress: { estimated_end: null } }), null);
  assert.equal(secondsLeft(at(-60_000)), 0);
  assert.ok(Math.abs(secondsLeft(at(3_600_000)) - 3600) < 60);
});

test("times of day", (t) => {
  t.mock.method(Date, "now", () => 1_800_000_000_000);
  const before = (seconds) => new Date(Date.now() - 1000 * seconds).toISOString();
  assert.equal(ago(before(4)), "just now");
  assert.equal(ago(before(5)), "5 s ago");
  assert.equal(ago(before(3 * 3600)), "3 h ago");
  assert.equal(dateTime(null), "–");
});

test("a measured value has a decimal more than the published one, and two digits beside a published 0", () => {
  assert.equal(beside({ published: -60.34, measured: -60.34362 }), "−60.344");
  assert.equal(beside({ published: 0, measured: -0.0046991 }), "−0.0047");
  assert.equal(beside({ published: 0, measured: 0.01377 }), "0.014");
  assert.equal(beside({ published: 0, measured: 4.2e-13 }), "4.2 × 10⁻¹³");
  assert.equal(beside({ published: 1, measured: null }), "–");
});

check("what was noted of a state, in words, and why a run failed", detailsOf, [
  ["attempt 1, worker node1", { status: "running", attempt: 1, worker: "node1", resumed_after: null }],
  ["attempt 2: it ran for longer than 60 s", { status: "failed", attempt: 2, failure: { kind: "timeout", message: "it ran for longer than 60 s" } }],
]);
