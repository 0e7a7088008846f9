// What a chart hands to uPlot, its bands, and its file.

import assert from "node:assert/strict";
import { test } from "node:test";
import { bandSeries, endsOf } from "../../../../service/ui/static/bands.js";
import { farCurves, hasGaps, isFlat, isPositive, move, optionsOf, summaryOf, widthOf } from "../../../../service/ui/static/chart.js";
import { bandsOf, pathOf, thumbnailOf } from "../../../../service/ui/static/drawing.js";
import { apart, axisOf } from "../../../../service/ui/static/parallel.js";

globalThis.document = { documentElement: null };
globalThis.getComputedStyle = () => ({ getPropertyValue: (name) => ` ${name} ` });

const one = (label, more = {}) => ({ label, x: [1, 2], value: [1, 2], std_err: [0.1, 0.2], ...more });
const options = (more = {}) => optionsOf({ series: [one("a")], lines: [], xLabel: "m", yLabel: "nats", logX: false, logY: false, ...more }, 500);
const distributions = (more) => Object.values(options(more).scales).map(({ distr }) => distr);

test("a curve has gaps where only some of its points have errors", () => {
  assert.equal(hasGaps(one("a", { std_err: [null, 0.1] })), true);
  assert.equal(hasGaps(one("a", { std_err: [0.1, 0.1] })), false);
  assert.equal(hasGaps(one("a", { std_err: [null, null] })), false);
  assert.equal(hasGaps(one("a", { value: [null, 1], std_err: [null, 0.1] })), false);
});

test("each axis is logarithmic where that is asked for it", () => {
  assert.deepEqual(distributions(), [1, 1]);
  assert.deepEqual(distributions({ logX: true }), [3, 1]);
  assert.deepEqual(distributions({ logY: true }), [1, 3]);
  assert.equal(options().scales.x.time, false);
  assert.deepEqual(options().axes.map(({ label }) => label), ["m", "nats"]);
});

test("the cursor is near a curve, and never near its band or a seed", () => {
  const { series, cursor } = options({ series: [one("a"), one("b", { faint: true })] });
  const distances = series.slice(1).map((_, i) => cursor.focus.dist({ series }, i + 1, 0, 30, 20));
  assert.deepEqual(distances, [Infinity, Infinity, 10, Infinity, Infinity, Infinity]);
});

test("a curve is flat where a scale from 0 would leave it little height", () => {
  assert.equal(isFlat([one("a", { value: [-2.4, null, -2.67] })]), true);
  assert.equal(isFlat([one("a", { value: [-2.4, -2.67] }), one("b", { value: [-0.5, null] })]), false);
  assert.equal(isFlat([one("a", { value: [3, 1] })]), false);
});

test("ticks of a log axis are powers of ten", () => {
  const ticks = (more) => options(more).axes.map(({ values }) => values(null, [0.001, null, 1000]));
  assert.deepEqual(ticks({ logX: true }), [["10⁻³", "", "10³"], ["0.001", "", "1000"]]);
  assert.deepEqual(ticks({ logY: true }), [["0.001", "", "1000"], ["10⁻³", "", "10³"]]);
});

test("only what is positive has a logarithm; a gap does not matter", () => {
  assert.equal(isPositive([1, null, 0.1]), true);
  assert.equal(isPositive([1, 0]), false);
  assert.equal(isPositive([-1]), false);
});

test("for each curve two ends of its band, then itself; then the lines", () => {
  const { series } = options({ series: [one("a"), one("b", { colour: 5, dash: 1 })], lines: [{ label: "LML", y: 3 }] });
  assert.deepEqual(series.map(({ label }) => label), ["m", undefined, undefined, "a", undefined, undefined, "b", "LML"]);
  assert.deepEqual([series[3], series[6], series[7]].map(({ stroke }) => stroke), ["--series-1", "--series-6", "--muted"]);
  assert.deepEqual([series[3].dash, series[6].dash], [[], [8, 4]]);
  const plot = { data: [[1], [1.5], [0.5], [1.1]] };
  assert.equal(series[3].value(plot, 1.1, 3, 0), "1.10 ± 0.20");
  assert.equal(series[3].value(plot, null, 3, null), "");
  assert.equal(series[3].value({ data: [[1], [null], [null], [1.1]] }, 1.1, 3, 0), "1.100");
});

test("the ninth curve has the first one's colour and another dash", () => {
  const nine = options({ series: Array.from({ length: 9 }, (_, i) => one(`${i}`)) }).series;
  assert.equal(nine[27].stroke, nine[3].stroke);
  assert.notDeepEqual(nine[27].dash, nine[3].dash);
});

test("few points are marked, and dots are not joined", () => {
  const of = (more) => options({ series: [one("a", more)] }).series[3];
  const long = (length) => ({ x: Array.from({ length }, (_, i) => i) });
  assert.equal(of(long(32)).points.show, true);
  assert.equal(of(long(33)).points.show, false);
  const dots = of({ ...long(33), dots: true });
  assert.equal(dots.points.show, true);
  assert.equal(dots.paths(), null);
  assert.equal(of().paths, undefined);
});

test("faint curves have no band, no line in the legend and no words", () => {
  const series = [one("seed", { faint: true }), one("mean")];
  const [, upper, , seed, , , mean] = options({ series }).series;
  assert.equal(upper.paths(), null);
  assert.deepEqual([seed.class, seed.width, seed.stroke, seed.points.show], ["u-hidden", 1, "--series-147", false]);
  assert.deepEqual([mean.class, mean.width, mean.stroke, mean.points.show], [undefined, 1.5, "--series-2", true]);
  assert.equal(summaryOf("Loss", series), "Loss. mean: 2 points, from 1 to 2");
});

test("two bad runs of five do not flatten the others", () => {
  const far = (...levels) => farCurves(levels.map((level) => ({ value: level === null ? [null] : [level, level + 1, null] })));
  assert.deepEqual(far(1, 2, 3, 90, -90), [false, false, false, true, true]);
  assert.deepEqual(far(1, 2, 3, 9, 10.9), [false, false, false, false, false]);
  assert.deepEqual(far(1, 900), [false, false]);
  assert.deepEqual(far(1, 2, 90, 91), [false, false, false, false]);  // model and baseline of two runs
  assert.deepEqual(far(1, null, 1, 1, 900), [false, false, false, false, true]);
  globalThis.window = { uPlot: { rangeNum: (...all) => all, rangeLog: (...all) => all } };
  const series = [one("a", { value: [1, null] }), one("b", { value: [90, 91] }), one("c", { value: [-2, 3] })];
  const range = (more) => options({ series, ...more }).scales.y.range?.(null, -5, 99);
  assert.deepEqual(range({ far: [false, true, false] }), [-2, 3, 0.1, true]);
  assert.deepEqual(range({ far: [false, true, false], logY: true }), [-2, 3, 10, false]);
  assert.equal(range({ far: [false, false, false] }), undefined);
  assert.equal(range(), undefined);
  assert.deepEqual(range({ toZero: true }), [-5, 99, 0.05, true]);
  assert.equal(range({ toZero: true, logY: true }), undefined);
});

test("a band is hidden and shown with its curve", () => {
  const [hook] = options({ lines: [{ label: "0", y: 0 }] }).hooks.setSeries;
  const changed = [];
  const plot = { setSeries: (at, { show }) => changed.push([at, show]) };
  hook(plot, 3, { show: false });
  hook(plot, 4, { show: false }); // a line has no band
  hook(plot, 1, { show: false });
  hook(plot, 3, { focus: true });
  assert.deepEqual(changed, [[1, false], [2, false]]);
});

test("a band reaches two errors to either side, and is not there where an error is not", () => {
  assert.deepEqual(endsOf({ value: [1, null, 3], std_err: [0.5, 1, null] }), [[2, null, null], [0, null, null]]);
  assert.equal(bandSeries("#abc", false)[0].paths(), null);
  assert.equal(bandSeries("#abc", true)[0].fill, "#abc2e");
});

function zoomed(min, max, distr = 1, xs = [0, 100]) {
  const scales = { x: { min, max, distr } };
  return { data: [xs], scales, setScale: (name, to) => (scales.x = { ...to, distr }), now: () => [scales.x.min, scales.x.max] };
}

test("a section moves and grows, within the data", () => {
  const after = (plot, times, by) => {
    move(plot, times, by);
    return plot.now().map((value) => Math.round(1000 * value) / 1000);
  };
  assert.deepEqual(after(zoomed(0, 100), 0.5, 0), [25, 75]);
  assert.deepEqual(after(zoomed(40, 60), 2, 0), [30, 70]);
  assert.deepEqual(after(zoomed(40, 60), 1, 0.25), [45, 65]);
  assert.deepEqual(after(zoomed(0, 20), 1, -0.25), [0, 20]);
  assert.deepEqual(after(zoomed(85, 100), 1, 0.25), [85, 100]);
  assert.deepEqual(after(zoomed(10, 90), 2, 0), [0, 100]);
  assert.deepEqual(after(zoomed(1, 10_000, 3, [1, 10_000]), 0.5, 0), [10, 1000]);
});

test("who cannot see a chart is told its ends", () => {
  assert.equal(summaryOf("Loss", [{ label: "a", value: [null, 2, 1, null] }]), "Loss. a: 2 points, from 2 to 1");
});

const at = { x: (value) => 10 * value, y: (value) => -value };

test("in the file a missing value is a gap, and a point between gaps a dot", () => {
  assert.equal(pathOf([1, 2, 3, 4], [1, null, 3, 4], at), "M10.00 -1.00h0M30.00 -3.00h0L40.00 -4.00");
  assert.equal(pathOf([1, 2], [1, 2], at, true), "M10.00 -1.00h0M20.00 -2.00h0");
  assert.deepEqual(bandsOf([1, 2, 3, 4], [[2, 3, null, 5], [0, 1, null, 3]], at), ["M10.00 -2.00L20.00 -3.00L20.00 -1.00L10.00 0.00Z"]);
});

test("parallel axes: numbers by value, wide ranges by logarithm, the rest in order", () => {
  const places = (values, of = values) => of.map(axisOf("k", values).at);
  assert.deepEqual(places([1, 2, 5]), [0, 0.25, 1]);
  assert.deepEqual(places([1, 10, 100]), [0, 0.5, 1]);
  assert.deepEqual(places([1, 25, 49]), [0, 0.5, 1]);
  assert.deepEqual(places([1, 25, 50])[1], Math.log(25) / Math.log(50));
  assert.deepEqual(places([7]), [0.5]);
  assert.deepEqual(places(["a", "b"]), [0.25, 0.75]);
  assert.deepEqual(axisOf("k", [1, 2, 3, 4, 5, 6, 7, 8, 9]).ticks, [1, 9]);
  assert.deepEqual(axisOf("k", [1, 2, 3, 4, 5, 6, 7, 8]).ticks.length, 8);
});

const curve = (more = {}) => ({ x: [0, 1, 2], value: [0, null, 4], colour: 3, ...more });

test("a small picture has the curves that are not faint, and the levels, on one scale", () => {
  const { paths, levels } = thumbnailOf([curve(), curve({ faint: true }), curve({ x: [], value: [] })], [{ y: 8 }]);
  assert.deepEqual(paths, [{ d: "M2.00 30.00h0M118.00 16.00h0", colour: 3 }]);
  assert.deepEqual(levels, ["M0 2.00H120"]);
});

test("a flat curve is in the middle", () => {
  const { paths } = thumbnailOf([curve({ x: [1], value: [5] })], []);
  assert.deepEqual(paths, [{ d: "M60.00 16.00h0", colour: 3 }]);
});

test("the y axis is as wide as its longest number needs", () => {
  assert.equal(widthOf(["0", "−1"]), 64);
  assert.equal(widthOf(["−1234.567", "0"]), 22 + 7 * 9);
  assert.equal(widthOf(null), 64);
});

test("no tick of a parallel axis stands over another, and the ends stay", () => {
  const ticks = (values) => apart(axisOf("k", values));
  assert.deepEqual(ticks([1, 2, 3, 40]), [1, 40]);
  assert.deepEqual(ticks([1, 20, 40]), [1, 20, 40]);
});
