// Curves with error bands, by uPlot. A missing value is a gap.

import { html, useEffect, useMemo, useRef, useState } from "./vendor/preact-htm.js";
import { bandSeries, endsOf } from "./bands.js";
import { save, svgOf } from "./drawing.js";
import { number, tick, withError } from "./format.js";

const COLOURS = 8;
const DASHES = [[], [8, 4], [2, 3], [10, 3, 2, 3]];
const BORDERS = ["solid", "dashed", "dotted", "double"]; // of the markers in a legend, as DASHES
const HEIGHT = 320;
const FEW_POINTS = 32;
const MAX_BANDS = 24; // of more curves they would hide each other
const FAINT = "47"; // opacity of the seeds below their mean
const FLAT = 3;
const FAR = 8; // widths of the other curves from which a curve is far away
const MOVES = [
  ["‹", "To the left", 1, -0.25],
  ["−", "Zoom out", 2, 0],
  ["+", "Zoom in", 0.5, 0],
  ["›", "To the right", 1, 0.25],
];

const token = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** The colour of the series of a number: told apart by the colour-blind, the same on every page. */
export const colourOf = (index) => token(`--series-${(index % COLOURS) + 1}`);

/** Lines of uPlot: for each series the two ends of its band and its value, on one common x. */
export function dataOf(series, lines) {
  const tables = series.map((one) => [one.x, ...endsOf(one), one.value]);
  const data = tables.length ? window.uPlot.join(tables) : [[]];
  return [...data, ...lines.map((line) => data[0].map(() => line.y))];
}

/** A colour and a dash by the place of a series, unless it says them. */
const lookOf = ({ colour, dash }, index) => {
  const kind = (dash ?? Math.floor(index / COLOURS)) % DASHES.length;
  return { stroke: colourOf(colour ?? index), dash: DASHES[kind], border: BORDERS[kind] };
};
const levelLook = ({ colour }) => ({ stroke: colour === undefined ? token("--muted") : colourOf(colour), dash: [6, 4], border: "dashed" });

const hasBands = (series) => series.filter(({ faint }) => !faint).length <= MAX_BANDS;

function seriesOf({ series, lines, xLabel }) {
  const curves = series.flatMap((one, index) => {
    const { label, x, dots = false, area = false, faint = false } = one;
    const look = lookOf(one, index);
    const error = (plot, at, i) => (plot.data[at - 2][i] === null ? null : (plot.data[at - 2][i] - plot.data[at][i]) / 2);
    const value = (plot, v, at, i) => (i === null ? "" : withError(plot.data[at][i], error(plot, at, i)));
    const points = { show: dots || (x.length <= FEW_POINTS && !faint), size: 5 };
    const paths = dots ? { paths: () => null } : {};
    const fill = area ? { fill: `${look.stroke}1f`, fillTo: 0 } : {};
    const weight = faint ? { class: "u-hidden", stroke: `${look.stroke}${FAINT}`, width: 1 } : { width: 1.5 };
    return [...bandSeries(look.stroke, hasBands(series) && !dots && !faint), { label, ...look, ...paths, ...fill, ...weight, value, points }];
  });
  const levels = lines.map((line) => ({
    label: line.label,
    ...levelLook(line),
    width: 1.5,
    points: { show: false },
    value: () => number(line.y, 6),
  }));
  return [{ label: xLabel, value: (plot, v) => number(v, 6) }, ...curves, ...levels];
}

const WHOLE_STEPS = Array.from({ length: 9 }, (_, power) => [1, 2, 5].map((one) => one * 10 ** power)).flat();
const hasWholeX = (series) => series.length > 0 && series.every(({ x }) => x.every(Number.isInteger));

const median = (values) => [...values].sort((a, b) => a - b)[Math.floor((values.length - 1) / 2)];

/** Whether each of some curves is one of a few so far from the others that they would flatten these. */
export function farCurves(series) {
  const known = series.map(({ value }) => value.filter((one) => one !== null));
  const levels = known.map((values) => (values.length ? median(values) : null));
  const some = levels.filter((one) => one !== null);
  if (some.length < 3) return series.map(() => false);
  const middle = median(some);
  const spread = median(some.map((one) => Math.abs(one - middle)));
  const width = median(known.filter((values) => values.length).map((values) => Math.max(...values) - Math.min(...values)));
  const far = levels.map((one) => one !== null && Math.abs(one - middle) > FAR * Math.max(spread, width));
  return 2 * far.filter(Boolean).length < some.length ? far : series.map(() => false);
}

/** A scale of y that reaches 0, where areas are shaded down or up to it, or that leaves out curves far away. */
function rangeOf({ series, logY, toZero = false, yMax = 0, far = [] }) {
  if (far.includes(true)) {
    const near = series.filter((_, i) => !far[i]).flatMap(({ value }) => value.filter((one) => one !== null));
    const [least, most] = near.reduce(([low, high], one) => [Math.min(low, one), Math.max(high, one)], [Infinity, -Infinity]);
    return { range: () => (logY ? window.uPlot.rangeLog(least, most, 10, false) : window.uPlot.rangeNum(least, most, 0.1, true)) };
  }
  if (logY || !(toZero || series.some(({ area }) => area))) return {};
  return { range: (plot, min, max) => window.uPlot.rangeNum(Math.min(0, min), Math.max(yMax, max), 0.05, true) };
}

/** How far the cursor is from a series. Bands and seeds, which the legend leaves out, are never in focus. */
export const distanceOf = (plot, at, i, there, here) => (plot.series[at].class === "u-hidden" ? Infinity : there - here);

/** Whether a scale from 0 would leave the curves less than a third of the height. */
export function isFlat(series) {
  const known = series.flatMap(({ value }) => value.filter((one) => one !== null));
  const [least, most] = known.reduce(([low, high], one) => [Math.min(low, one), Math.max(high, one)], [Infinity, -Infinity]);
  return Math.max(Math.abs(least), Math.abs(most)) > FLAT * (most - least);
}

const Y_AXIS_PX = 64;
const TICK_PX = 22; // a tick's line and the gaps beside it
const CHARACTER_PX = 7;

/** The width of the y axis: enough for its longest number, which would reach the axis label otherwise. */
export const widthOf = (values) => Math.max(Y_AXIS_PX, TICK_PX + CHARACTER_PX * Math.max(0, ...(values ?? []).map((one) => `${one ?? ""}`.length)));

export function optionsOf(shown, width) {
  const { series, xLabel, yLabel, logX, logY } = shown;
  const axis = {
    stroke: token("--muted"),
    grid: { stroke: token("--line"), width: 1 },
    ticks: { stroke: token("--line") },
    font: `12px ${token("--font")}`,
    labelFont: `12px ${token("--font")}`,
    labelSize: 20,
  };
  const valuesOf = (isLog) => ({ values: (plot, ticks) => ticks.map((v) => (v === null ? "" : tick(v, isLog))) });
  const isCurve = (at) => at > 0 && at % 3 === 0 && at <= 3 * series.length;
  /** A band is hidden with its curve. */
  const onShow = (plot, at, { show }) => {
    if (show !== undefined && isCurve(at)) [at - 2, at - 1].forEach((end) => plot.setSeries(end, { show }));
  };
  return {
    width,
    height: HEIGHT,
    series: seriesOf(shown),
    hooks: { setSeries: [onShow] },
    scales: { x: { time: false, distr: logX ? 3 : 1 }, y: { distr: logY ? 3 : 1, ...rangeOf(shown) } },
    axes: [
      { ...axis, ...valuesOf(logX), label: xLabel, size: 34, ...(hasWholeX(series) ? { incrs: WHOLE_STEPS } : {}) },
      { ...axis, ...valuesOf(logY), label: yLabel, size: (plot, values) => widthOf(values) },
    ],
    cursor: { drag: { x: true, y: true, uni: 24 }, focus: { prox: 24, dist: distanceOf } },
    focus: { alpha: 0.35 },
    legend: { live: true, markers: { dash: (plot, at) => plot.series[at].border ?? "solid" } },
  };
}

/** New points in a chart that is there. Who has zoomed in stays there. */
function update(plot, data) {
  const xs = plot.data[0];
  const { min, max } = plot.scales.x;
  const zoomed = xs.length > 1 && (min > xs[0] || max < xs[xs.length - 1]);
  plot.setData(data, !zoomed);
}

function usePlot(props) {
  const place = useRef(null);
  const plot = useRef(null);
  const { series, lines, logX, logY, far } = props;
  const shape = JSON.stringify([series.map((one) => [one.label, one.colour, one.dash, one.area]), lines, logX, logY, far]);
  useEffect(() => {
    const width = () => Math.max(240, place.current.clientWidth);
    const make = () => {
      plot.current?.destroy();
      plot.current = new window.uPlot(optionsOf(props, width()), dataOf(series, lines), place.current);
      const legend = place.current.querySelector(".u-legend");
      if (legend.scrollHeight > legend.clientHeight) legend.tabIndex = 0; // it scrolls by the keyboard too
    };
    make();
    const observer = new ResizeObserver(() => {
      if (width() !== plot.current.width) plot.current.setSize({ width: width(), height: HEIGHT });
    });
    observer.observe(place.current);
    const scheme = matchMedia("(prefers-color-scheme: dark)");
    scheme.addEventListener("change", make);
    return () => {
      observer.disconnect();
      scheme.removeEventListener("change", make);
      plot.current.destroy();
      plot.current = null;
    };
  }, [shape]);
  useEffect(() => {
    if (plot.current) update(plot.current, dataOf(series, lines));
  }, [series]);
  return [place, plot];
}

/** Another section of x: so many times as wide, moved by a part of its width. */
export function move(plot, times, by) {
  const isLog = plot.scales.x.distr === 3;
  const bent = (value) => (isLog ? Math.log(value) : value);
  const straight = (value) => (isLog ? Math.exp(value) : value);
  const xs = plot.data[0];
  const [first, last, low, high] = [xs[0], xs[xs.length - 1], plot.scales.x.min, plot.scales.x.max].map(bent);
  const width = Math.min(last - first, times * (high - low));
  const start = Math.max(first, Math.min((low + high - width) / 2 + by * width, last - width));
  plot.setScale("x", { min: straight(start), max: straight(start + width) });
}

/** What of a chart is seen, for a file. */
function drawingOf(title, { series, lines, xLabel, yLabel }, plot) {
  const { min, max } = plot.scales.x;
  const curves = series.map((one, i) => ({ ...one, ...lookOf(one, i), ends: one.dots || one.faint ? null : endsOf(one), at: 3 * i + 3 }));
  const levels = lines.map((line, i) => ({ ...line, ...levelLook(line), x: [min, max], value: [line.y, line.y], ends: null, at: 3 * series.length + 1 + i }));
  const seen = [...curves, ...levels].filter(({ at }) => plot.series[at].show);
  return { title, xLabel, yLabel, token, curves: seen.map(({ stroke, ...one }) => ({ ...one, colour: stroke })) };
}

/** Whether a curve has points without a band beside others with one. */
export const hasGaps = ({ value, std_err: errors, dots, faint }) =>
  !dots && !faint && errors.some((one) => one !== null) && value.some((one, i) => one !== null && errors[i] === null);

export const isPositive = (values) => values.every((value) => value === null || value > 0);

/** What the chart says to those who do not see it. */
export function summaryOf(title, series) {
  const ends = series.filter(({ faint }) => !faint).slice(0, 12).map(({ label, value }) => {
    const known = value.filter((one) => one !== null);
    return `${label}: ${known.length} points, from ${number(known[0])} to ${number(known[known.length - 1])}`;
  });
  return `${title}. ${ends.join("; ")}`;
}

/**
 * `series` are `{label, colour?, dash?, dots?, faint?, x, value, std_err}`, with `dots` in place of a curve, and `faint` for what the
 * legend leaves out; `lines` are `{label, y, colour?}`. The bands are two standard errors wide on either side. With
 * `mayHide` a few curves that are far from the others are outside at first; with `toZero` the scale of y reaches 0, and `yMax`.
 */
export function Chart({ title, note, series: given, lines = [], xLabel, yLabel, mayHide = false, toZero = false, yMax, children }) {
  const [fromZero, setFromZero] = useState(null);
  const hasArea = given.some(({ area }) => area);
  const isShaded = hasArea && (fromZero ?? !isFlat(given));
  const series = useMemo(() => (isShaded ? given : given.map((one) => ({ ...one, area: false }))), [given, isShaded]);
  const [logX, setLogX] = useState(false);
  const [logY, setLogY] = useState(false);
  const mayLogX = series.every((one) => isPositive(one.x));
  const mayLogY = series.every((one) => isPositive(one.value)) && isPositive(lines.map((one) => one.y));
  const [isWhole, setWhole] = useState(false);
  const far = useMemo(() => (mayHide && !isWhole ? farCurves(series) : []), [series, mayHide, isWhole]);
  const outside = series.filter((one, i) => far[i] && !one.faint);
  const shown = { series, lines, xLabel, yLabel, logX: logX && mayLogX, logY: logY && mayLogY, toZero, yMax, far };
  const [place, plot] = usePlot(shown);
  const hidden = outside.length > 0 && `Far outside, not shown: ${outside.map(({ label }) => label).join("; ")}. “Whole” shows all.`;
  const gaps = hasBands(series) && series.some(hasGaps) && "Where there is no band, the error is not known.";
  const notes = [(isShaded || !hasArea) && note, gaps, hidden].filter(Boolean).join(" ");
  function showAll() {
    setWhole(true);
    plot.current.setData(plot.current.data, true);
  }
  const download = () => save(`${title}.svg`, "image/svg+xml", svgOf(plot.current, drawingOf(title, shown, plot.current)));
  const toggle = (name, on, set) => html`<label class="row small">
    <input type="checkbox" checked=${on} onChange=${(event) => set(event.target.checked)} />
    ${name}
  </label>`;
  return html`<section class="card chart">
    <div class="row spread">
      <h2>${title}</h2>
      <div class="row">
        ${hasArea && toggle("from 0", isShaded, setFromZero)}
        ${mayLogX && toggle("log x", logX, setLogX)}
        ${mayLogY && toggle("log y", logY, setLogY)}
        <span class="row tight" role="group" aria-label="Section">
          ${MOVES.map(([sign, name, times, by]) => html`<button type="button" class="quiet" aria-label=${name} title=${name} onClick=${() => move(plot.current, times, by)}>${sign}</button>`)}
          <button type="button" class="quiet" onClick=${showAll} title="Drag in the chart to zoom in">Whole</button>
        </span>
        <button type="button" class="quiet" onClick=${download}>SVG</button>
        ${children}
      </div>
    </div>
    ${notes && html`<p class="muted small">${notes}</p>`}
    <div ref=${place} role="img" aria-label=${summaryOf(title, series)}></div>
  </section>`;
}
