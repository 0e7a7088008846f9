// Parallel coordinates: an axis for each swept field and one for a metric, a line for each point of
// a sweep. Of libraries that draw them the smallest are several times all our own scripts.

import { html, useEffect, useRef, useState } from "./vendor/preact-htm.js";
import { cut, number, plain } from "./format.js";
import { fieldName, metricName } from "./names.js";

const HEIGHT = 300;
const TOP = 34;
const BOTTOM = HEIGHT - 12;
const SIDE = 72;
const MIN_GAP = 130;
const FEW_TICKS = 8;
const LOG_FROM = 50; // times the least value is the greatest, on a logarithmic axis
const MAX_LINES = 1000;
const LINE_PX = 15; // height of a tick's number
const CHARACTER_PX = 10; // of an axis' name, between two axes

/** Where values stand on an axis, from 0 below to 1 above, and what is written there. */
export function axisOf(name, values) {
  const distinct = [...new Set(values.map((one) => (typeof one === "number" ? one : plain(one))))];
  if (!distinct.every((one) => typeof one === "number")) {
    const at = (value) => (distinct.indexOf(typeof value === "number" ? value : plain(value)) + 0.5) / distinct.length;
    return { name, at, ticks: distinct };
  }
  const [least, most] = [Math.min(...distinct), Math.max(...distinct)];
  const bent = least > 0 && most / least >= LOG_FROM ? Math.log : (value) => value;
  const span = bent(most) - bent(least);
  const at = (value) => (span ? (bent(value) - bent(least)) / span : 0.5);
  return { name, at, ticks: distinct.length <= FEW_TICKS ? distinct : [least, most] };
}

function useWidth() {
  const place = useRef(null);
  const [width, setWidth] = useState(0);
  useEffect(() => {
    const observer = new ResizeObserver(([entry]) => setWidth(entry.contentRect.width));
    observer.observe(place.current);
    return () => observer.disconnect();
  }, []);
  return [place, width];
}

/** The ticks of an axis without those that would stand over another; the ends stay. */
export function apart({ ticks, at }) {
  const places = [...ticks].sort((a, b) => at(a) - at(b));
  const isClose = (a, b) => Math.abs(y(at(a)) - y(at(b))) < LINE_PX;
  const kept = [];
  for (const one of [places[0], places[places.length - 1], ...places.slice(1, -1)]) {
    if (!kept.some((other) => isClose(one, other))) kept.push(one);
  }
  return ticks.filter((one) => kept.includes(one));
}

const written = (value) => (typeof value === "number" ? number(value) : value);
const y = (share) => BOTTOM - share * (BOTTOM - TOP);

const nameOf = (name) => (name.includes(".") ? fieldName(name) : metricName(name));

function Axis({ axis, x, isFirst, isLast, gap }) {
  const beside = isFirst ? { x: x - 6, "text-anchor": "end" } : { x: x + 6 };
  const named = isFirst ? { x: 0, "text-anchor": "start" } : isLast ? { x: x + SIDE, "text-anchor": "end" } : { x, "text-anchor": "middle" };
  return html`<g>
    <path d=${`M${x} ${TOP}V${BOTTOM}`} class="axis" />
    <text ...${named} y="14" class="axis-name">${cut(nameOf(axis.name), Math.floor(gap / CHARACTER_PX))}<title>${nameOf(axis.name)}</title></text>
    ${apart(axis).map((one) => html`<text ...${beside} y=${y(axis.at(one)) + (isFirst ? 4 : -5)}>${written(one)}</text>`)}
  </g>`;
}

export function Parallel({ rows: all, fields, metric }) {
  const [place, width] = useWidth();
  const rows = all.filter((row) => (row.metrics[metric]?.value ?? null) !== null && fields.every((field) => field in row.fields)).slice(0, MAX_LINES);
  const valueOf = (row, name) => (name === metric ? row.metrics[metric].value : row.fields[name]);
  const axes = [...fields, metric].map((name) => axisOf(name, rows.map((row) => valueOf(row, name))));
  const last = axes[axes.length - 1];
  const whole = Math.max(width, 2 * SIDE + MIN_GAP * fields.length);
  const x = (i) => SIDE + (i * (whole - 2 * SIDE)) / fields.length;
  const line = (row) => axes.map((axis, i) => `${i ? "L" : "M"}${x(i)} ${y(axis.at(valueOf(row, axis.name))).toFixed(1)}`).join("");
  const colour = (row) => `color-mix(in oklab, var(--series-2) ${Math.round(100 * last.at(row.metrics[metric].value))}%, var(--series-1))`;
  const words = (row) => `${row.point === undefined ? `${row.points} points` : `point ${row.point}`}: ${axes.map(({ name }) => `${nameOf(name)} ${written(valueOf(row, name))}`).join(", ")}`;
  return html`<section class="card">
    <h2>${metricName(metric)} by all fields</h2>
    <p class="muted small">${rows.length} of ${all.length} points have it. From blue, the lowest, to orange, the highest; the table below has each.</p>
    <div class="scroll" ref=${place} role="region" aria-label="Parallel coordinates" tabindex="0">
      <svg class="parallel" role="img" aria-label=${`${metricName(metric)} of ${rows.length} points by ${fields.map(fieldName).join(", ")}`} width=${whole} height=${HEIGHT}>
        ${rows.map((row, i) => html`<path key=${i} class="line" d=${line(row)} stroke=${colour(row)}><title>${words(row)}</title></path>`)}
        ${rows.length > 0 && axes.map((axis, i) => html`<${Axis} axis=${axis} x=${x(i)} isFirst=${i === 0} isLast=${i === axes.length - 1} gap=${x(1) - x(0)} />`)}
      </svg>
    </div>
  </section>`;
}
