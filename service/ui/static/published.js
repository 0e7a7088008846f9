// What the paper published beside what runs found: figure by figure, and in the runs' own charts.

import { html, useEffect, useMemo, useState } from "./vendor/preact-htm.js";
import { post } from "./api.js";
import { Chart, colourOf } from "./chart.js";
import { chartsOf, chartsOfMany, curvesOfMany } from "./curves.js";
import { THUMB, thumbnailOf } from "./drawing.js";
import { beside, number } from "./format.js";
import { useLive } from "./live.js";
import { Loading, Problem, Table } from "./parts.js";

const WIDTH = 132;
const HEIGHT = 18;
const EDGE = 6;
const UNBOUNDED = 3; // how far a side without a bound goes on, in distances of the two figures

/** Which series a published figure is a level of, by its name in the preset. */
const LEVELS = {
  limit: ["convergence", "published limit"],
  bias: ["convergence", "published bias"],
  true_lml: ["lml", "published LML of the true parameters"],
  maximum_lml: ["lml", "published maximum of the LML"],
  flat_at: ["score_by_rate", "published, random weights"],
};

/** The published figure as a tick, ours as a dot, and from where to where ours agrees as a bar. */
function Strip({ of: { published, measured, low, high, agrees } }) {
  if (measured === null) return null;
  const known = [published, measured, low, high].filter((one) => one !== null);
  const reach = Math.max(Math.abs(published - measured), (high ?? published) - (low ?? published), 1e-9) / UNBOUNDED;
  const from = low === null ? Math.min(...known) - reach : Math.min(...known);
  const to = high === null ? Math.max(...known) + reach : Math.max(...known);
  const x = (value) => EDGE + ((value - from) / (to - from)) * (WIDTH - 2 * EDGE);
  return html`<svg class="strip" width=${WIDTH} height=${HEIGHT} aria-hidden="true">
    <rect class="range" x=${x(low ?? from)} y="5" width=${x(high ?? to) - x(low ?? from)} height="8" rx="2" />
    <path class="published" d=${`M${x(published)} 1V${HEIGHT - 1}`} />
    <circle class=${agrees ? "good" : "bad"} cx=${x(measured)} cy=${HEIGHT / 2} r="4" />
  </svg>`;
}

export function Comparisons({ verdict, title }) {
  if (!verdict.comparisons.length) return null;
  const bounds = ({ low, high }) => `${low === null ? "" : number(low, 5)} … ${high === null ? "" : number(high, 5)}`;
  const columns = [
    ["Quantity", "", (one) => one.what],
    ["Published", "number", (one) => number(one.published, 5)],
    ["Measured", "number", (one) => (one.agrees ? beside(one) : html`<span class="bad-text">${beside(one)} <span class="small">${one.outcome}</span></span>`)],
    ["Side by side", "wide", (one) => html`<${Strip} of=${one} />`],
    ["Agrees within", "number wide", (one) => html`<span class="muted" title=${`power ${number(100 * one.power, 3)} %`}>${bounds(one)}</span>`],
  ];
  return html`<${Table} label=${`Published and measured, ${title}`} columns=${columns} rows=${verdict.comparisons} keyOf=${(one) => one.what} />`;
}

/** The runs of a preset with its specs, which have the same order. */
const withSpecs = ({ specs }, runs) => runs.map((one, i) => one && { ...one, spec: specs[i] });

/** The runs' curves, with what was published of them as levels; read once they are asked for. */
export function Curves({ preset, runs }) {
  const [isOpen, setOpen] = useState(false);
  const made = withSpecs(preset, runs).filter(Boolean);
  if (!made.length) return null;
  return html`<details onToggle=${(event) => setOpen(event.target.open)}>
    <summary>Curves, with what was published</summary>
    ${isOpen && html`<${Drawn} preset=${preset} runs=${made} />`}
  </details>`;
}

function Drawn({ preset, runs }) {
  const read = useMemo(() => curvesOfMany(runs.map((one) => one.id)), [runs.map((one) => one.id).join()]);
  const { data, error } = useLive(read, [read], (curves) => curves.every((one) => !one.partial));
  const charts = useMemo(() => data && (runs.length === 1 ? chartsOf(data[0].series, data[0].partial, runs[0].spec) : chartsOfMany(runs, data)), [data]);
  if (error) return html`<${Problem} error=${error} />`;
  if (!charts) return html`<${Loading} />`;
  const ordered = withLevelsFirst(preset, charts);
  if (!ordered.length) return html`<p class="muted">There are no curves yet.</p>`;
  return ordered.map(({ key, about: [title, xLabel, yLabel], name, series }) =>
    html`<${Chart} key=${key} title=${title} series=${series} lines=${linesOf(preset, name)} xLabel=${xLabel} yLabel=${yLabel} />`,
  );
}

function withLevelsFirst(preset, charts) {
  const hasLevel = ({ name }) => linesOf(preset, name).length > 0;
  return [...charts.filter(hasLevel), ...charts.filter((one) => !hasLevel(one))];
}

/** A small picture of the runs' first chart, once all have succeeded. */
export function Thumbnail({ preset, runs }) {
  const [chart, setChart] = useState(null);
  const isDone = runs.every((one) => one?.status === "succeeded");
  const ids = isDone ? runs.map((one) => one.id) : [];
  useEffect(() => {
    if (!isDone) return;
    const read = post("/v1/curves:batchGet", { ids, max_points: 1000 });
    read.then(({ items }) => setChart(withLevelsFirst(preset, chartsOfMany(withSpecs(preset, runs), items))[0] ?? null), () => setChart(null));
  }, [ids.join()]);
  if (!chart) return null;
  const { paths, levels } = thumbnailOf(chart.series, linesOf(preset, chart.name));
  return html`<svg class="thumb" width=${THUMB.width} height=${THUMB.height} role="img" aria-label=${chart.about[0]}>
    ${levels.map((d) => html`<path d=${d} class="level" />`)}
    ${paths.map(({ d, colour }) => html`<path d=${d} stroke=${colourOf(colour)} />`)}
  </svg>`;
}

/** The levels that were published of a series. */
function linesOf({ published }, name) {
  return Object.entries(LEVELS).flatMap(([figure, [series, label]]) =>
    series === name && figure in published ? published[figure].map((y) => ({ label, y })) : [],
  );
}
