// The numbers of a whole run: a row for each name and its labels, a column for each seed.

import { html } from "./vendor/preact-htm.js";
import { withError } from "./format.js";
import { aboutMean, meanTitle, overSeeds } from "./means.js";

const MAX_SEEDS = 24;

export function MetricTable({ metrics }) {
  const means = overSeeds(metrics);
  const all = [...new Set(metrics.map((one) => one.labels.seed))];
  const seeds = all.slice(0, MAX_SEEDS);
  const hasMean = means.some((one) => one.count > 1);
  return html`<table>
    <thead><tr>
      <th scope="col">Metric</th>
      ${hasMean && html`<th scope="col" class="number">mean over seeds</th>`}
      ${seeds.map((seed) => html`<th key=${seed} scope="col" class="number">${seed === undefined ? "value" : `seed ${seed}`}</th>`)}
    </tr></thead>
    <tbody>
      ${means.map((mean) => html`<tr key=${mean.key}>
        <th scope="row">${meanTitle(mean)}</th>
        ${hasMean && html`<${Cell} metric=${mean} title=${aboutMean(mean)} />`}
        ${seeds.map((seed) => html`<${Cell} key=${seed} metric=${mean.all.find((one) => one.labels.seed === seed)} />`)}
      </tr>`)}
    </tbody>
  </table>
  ${all.length > seeds.length && html`<p class="bar muted small">The first ${seeds.length} of ${all.length} seeds; the download has all.</p>`}`;
}

function Cell({ metric, title = metric?.reason }) {
  if (!metric) return html`<td></td>`;
  if (metric.value === null) return html`<td class="number muted" title=${title}>missing</td>`;
  return html`<td class="number" title=${title}>${withError(metric.value, metric.std_err)}</td>`;
}
