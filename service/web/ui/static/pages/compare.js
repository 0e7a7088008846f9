// Several experiments: their curves on one chart, their metrics, and where their specs differ.

import { html, useMemo } from "../vendor/preact-htm.js";
import { post } from "../api.js";
import { Chart, colourOf } from "../chart.js";
import { chartsOfMany, curvesOfMany, levelsOf } from "../curves.js";
import { leaves, plain, titleOf, withError } from "../format.js";
import { useLive } from "../live.js";
import { aboutMean, meanTitle, overSeeds, paired } from "../means.js";
import { Empty, Loading, Missing, Scroll, Status } from "../parts.js";

const TOGETHER = 50;

/** What has ended is read once. */
function reader(ids) {
  const known = new Map();
  const readCurves = curvesOfMany(ids);
  async function readExperiments() {
    const open = ids.filter((id) => !known.get(id)?.terminal);
    for (let first = 0; first < open.length; first += TOGETHER) {
      const { items } = await post("/v1/experiments:batchGet", { ids: open.slice(first, first + TOGETHER) });
      items.forEach((one) => known.set(one.id, one));
    }
    return ids.map((id) => known.get(id));
  }
  return async () => {
    const [experiments, curves] = await Promise.all([readExperiments(), readCurves()]);
    return { experiments, curves };
  };
}

const hasEnded = ({ experiments, curves }) =>
  experiments.every((one) => one.terminal) && curves.every((one) => !one.partial);

function Name({ experiment, index }) {
  return html`<span class="swatch" ref=${(node) => node && (node.style.background = colourOf(index))}></span>
    <a class="name" href=${`/experiments/${experiment.id}`}>${titleOf(experiment)}</a>`;
}

/** A chart for each name of a series: an experiment's curves have its colour. */
function Charts({ experiments, curves }) {
  const charts = useMemo(() => chartsOfMany(experiments, curves), [curves]);
  return charts.map(({ key, about: [title, xLabel, yLabel], name, series }) => {
    const lines = experiments.flatMap((one, index) =>
      levelsOf(name, one.metrics, `LML of ${titleOf(one)}`).map((line) => ({ ...line, colour: index })),
    );
    return html`<${Chart} key=${key} title=${title} series=${series} lines=${lines} xLabel=${xLabel} yLabel=${yLabel} />`;
  });
}

function Heads({ experiments }) {
  return experiments.map((one, index) => html`<th key=${one.id} scope="col">
    <${Name} experiment=${one} index=${index} /><br /><${Status} of=${one.status} />
  </th>`);
}

function MetricCell({ mean, first }) {
  if (!mean) return html`<td></td>`;
  const difference = first && first !== mean ? paired(mean, first) : null;
  return html`<td title=${aboutMean(mean)}>
    ${withError(mean.value, mean.std_err)}${mean.count > 1 && html` <span class="muted small">×${mean.count}</span>`}
    ${difference && html`<div class="small muted">${difference.value > 0 && "+"}${withError(difference.value, difference.std_err)}</div>`}
  </td>`;
}

function Metrics({ experiments }) {
  const found = experiments.map((one) => new Map(overSeeds(one.metrics).map((mean) => [mean.key, mean])));
  const titles = new Map(found.flatMap((means) => [...means].map(([key, mean]) => [key, meanTitle(mean)])));
  if (!titles.size) return null;
  return html`<section class="card flush">
    <h2>Metrics</h2>
    <p class="bar muted small">Means over seeds. The error covers all that differs between seeds; of one seed, its masks or
      samples. Below, the difference from the first experiment by pairs of equal seeds, with its error over the pairs.</p>
    <${Scroll} label="Metrics"><table>
      <thead><tr><th scope="col">Metric</th><${Heads} experiments=${experiments} /></tr></thead>
      <tbody>${[...titles].map(([key, title]) => html`<tr key=${key}>
        <th scope="row">${title}</th>
        ${found.map((means, i) => html`<${MetricCell} key=${experiments[i].id} mean=${means.get(key)} first=${found[0].get(key)} />`)}
      </tr>`)}</tbody>
    </table><//>
  </section>`;
}

/** The fields that are not the same in all specs. */
function differing(experiments) {
  const specs = experiments.map((one) => new Map(leaves(one.spec).map(([path, value]) => [path, plain(value)])));
  const paths = [...new Set(specs.flatMap((spec) => [...spec.keys()]))];
  return paths
    .map((path) => [path, specs.map((spec) => spec.get(path) ?? "–")])
    .filter(([, values]) => new Set(values).size > 1);
}

function Specs({ experiments }) {
  const rows = useMemo(() => differing(experiments), [experiments.map((one) => one.id).join()]);
  return html`<section class="card flush">
    <h2>Where the specs differ</h2>
    ${rows.length === 0 && html`<p class="empty">They are the same.</p>`}
    ${rows.length > 0 && html`<${Scroll} label="Where the specs differ"><table>
      <thead><tr><th scope="col">Field</th><${Heads} experiments=${experiments} /></tr></thead>
      <tbody>${rows.map(([path, values]) => html`<tr key=${path}>
        <th scope="row" class="mono">${path}</th>${values.map((value) => html`<td class="mono wrap">${value}</td>`)}
      </tr>`)}</tbody>
    </table><//>`}
  </section>`;
}

export default function Compare() {
  const ids = [...new Set((new URLSearchParams(location.search).get("ids") ?? "").split(",").filter(Boolean))];
  if (!ids.length) {
    return html`<${Empty} title="Nothing to compare"><p>Select experiments in the list, then compare them.</p>
      <a class="button" href="/">To the experiments</a><//>`;
  }
  return html`<${Compared} ids=${ids} />`;
}

function Compared({ ids }) {
  const read = useMemo(() => reader(ids), [ids.join()]);
  const { data, error } = useLive(read, [read], hasEnded);
  if (error) return html`<${Missing} error=${error} />`;
  if (!data) return html`<${Loading} />`;
  return html`<div class="stack">
    <h1>${data.experiments.length} experiments</h1>
    <${Charts} ...${data} />
    <${Metrics} experiments=${data.experiments} />
    <${Specs} experiments=${data.experiments} />
  </div>`;
}
