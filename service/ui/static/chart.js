// Curves with error bands, by uPlot. A missing value is a gap.

import { html, useEffect, useRef, useState } from "./vendor/preact-htm.js";
import { number, withError } from "./format.js";

const COLOURS = 8;
const DASHES = [[], [8, 4], [2, 3], [10, 3, 2, 3]];
const HEIGHT = 320;
const FEW_POINTS = 32;

const token = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** The colour of the series of a number: told apart by the colour-blind, the same on every page. */
export const colourOf = (index) => token(`--series-${(index % COLOURS) + 1}`);

/** Lines of uPlot: for each series its value and the two ends of its band, on one common x. */
function dataOf(series, lines) {
  const tables = series.map(({ x, value, std_err: errors }) => {
    const end = (sign) => value.map((v, i) => (v === null || errors[i] === null ? null : v + sign * 2 * errors[i]));
    return [x, value, end(1), end(-1)];
  });
  const data = tables.length ? window.uPlot.join(tables) : [[]];
  return [...data, ...lines.map((line) => data[0].map(() => line.y))];
}

function seriesOf({ series, lines, xLabel }) {
  const curves = series.flatMap(({ label, colour, dash, x }, index) => {
    const stroke = colourOf(colour ?? index);
    const value = (plot, v, at, i) =>
      i === null ? "" : withError(plot.data[at][i], plot.data[at + 1][i] === null ? null : (plot.data[at + 1][i] - plot.data[at][i]) / 2);
    const dashes = DASHES[(dash ?? Math.floor(index / COLOURS)) % DASHES.length];
    const end = { stroke: "transparent", points: { show: false }, class: "u-hidden" };
    const points = { show: x.length <= FEW_POINTS, size: 5 };
    return [{ label, stroke, dash: dashes, width: 1.5, value, points }, end, end];
  });
  const levels = lines.map(({ label, colour }) => ({
    label,
    stroke: colour === undefined ? token("--muted") : colourOf(colour),
    dash: [6, 4],
    width: 1.5,
    points: { show: false },
    value: (plot, v) => number(v, 6),
  }));
  return [{ label: xLabel, value: (plot, v) => number(v, 6) }, ...curves, ...levels];
}

function optionsOf(shown, width) {
  const { series, xLabel, yLabel, logX, logY } = shown;
  const axis = {
    stroke: token("--muted"),
    grid: { stroke: token("--line"), width: 1 },
    ticks: { stroke: token("--line") },
    font: `12px ${token("--font")}`,
    labelFont: `12px ${token("--font")}`,
    labelSize: 20,
  };
  const bands = series.map(({ colour }, i) => ({
    series: [3 * i + 2, 3 * i + 3],
    fill: `${colourOf(colour ?? i)}2e`,
  }));
  return {
    width,
    height: HEIGHT,
    series: seriesOf(shown),
    bands,
    scales: { x: { time: false, distr: logX ? 3 : 1 }, y: { distr: logY ? 3 : 1 } },
    axes: [
      { ...axis, label: xLabel, size: 34 },
      { ...axis, label: yLabel, size: 64, values: (plot, ticks) => ticks.map((v) => (v === null ? "" : number(v, 6))) },
    ],
    cursor: { drag: { x: true, y: true, uni: 24 }, focus: { prox: 24 } },
    focus: { alpha: 0.35 },
    legend: { live: true },
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
  const { series, lines, logX, logY } = props;
  const shape = JSON.stringify([series.map((one) => [one.label, one.colour]), lines, logX, logY]);
  useEffect(() => {
    const width = () => Math.max(240, place.current.clientWidth);
    const make = () => {
      plot.current?.destroy();
      plot.current = new window.uPlot(optionsOf(props, width()), dataOf(series, lines), place.current);
    };
    make();
    const observer = new ResizeObserver(() => plot.current.setSize({ width: width(), height: HEIGHT }));
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
  return [place, () => plot.current.setData(plot.current.data, true)];
}

const isPositive = (values) => values.every((value) => value === null || value > 0);

/** What the chart says to those who do not see it. */
function summaryOf(title, series) {
  const ends = series.slice(0, 12).map(({ label, value }) => {
    const known = value.filter((one) => one !== null);
    return `${label}: ${known.length} points, from ${number(known[0])} to ${number(known[known.length - 1])}`;
  });
  return `${title}. ${ends.join("; ")}`;
}

/**
 * `series` are `{label, colour?, dash?, x, value, std_err}`, `lines` `{label, y, colour?}`. The bands
 * are two standard errors wide on either side.
 */
export function Chart({ title, series, lines = [], xLabel, yLabel, children }) {
  const [logX, setLogX] = useState(false);
  const [logY, setLogY] = useState(false);
  const mayLogX = series.every((one) => isPositive(one.x));
  const mayLogY = series.every((one) => isPositive(one.value)) && isPositive(lines.map((one) => one.y));
  const shown = { series, lines, xLabel, yLabel, logX: logX && mayLogX, logY: logY && mayLogY };
  const [place, showAll] = usePlot(shown);
  const toggle = (name, on, set, may) => html`<label class="row small">
    <input type="checkbox" checked=${on && may} disabled=${!may} onChange=${(event) => set(event.target.checked)} />
    log ${name}
  </label>`;
  return html`<section class="card chart">
    <div class="row spread">
      <h2>${title}</h2>
      <div class="row">
        ${toggle("x", logX, setLogX, mayLogX)}
        ${toggle("y", logY, setLogY, mayLogY)}
        <button type="button" class="quiet" onClick=${showAll} title="Drag in the chart to zoom in">Whole</button>
        ${children}
      </div>
    </div>
    <div ref=${place} role="img" aria-label=${summaryOf(title, series)}></div>
  </section>`;
}
