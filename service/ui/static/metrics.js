// The numbers of a whole run: a row for each name, a column for each set of labels.

import { html } from "./vendor/preact-htm.js";
import { labelText, meanOf, number, withError } from "./format.js";

export function MetricTable({ metrics }) {
  const names = [...new Set(metrics.map((one) => one.name))];
  const columns = [...new Map(metrics.map((one) => [JSON.stringify(one.labels), one.labels])).entries()];
  const at = new Map(metrics.map((one) => [`${one.name} ${JSON.stringify(one.labels)}`, one]));
  const hasMean = columns.length > 1;
  return html`<table>
    <thead><tr>
      <th scope="col">Metric</th>
      ${hasMean && html`<th scope="col" class="number">mean</th>`}
      ${columns.map(([key, labels]) => html`<th key=${key} scope="col" class="number">${labelText(labels) || "value"}</th>`)}
    </tr></thead>
    <tbody>
      ${names.map((name) => html`<tr key=${name}>
        <th scope="row">${name}</th>
        ${hasMean && html`<td class="number">${number(meanOf(metrics, name)?.value, 6)}</td>`}
        ${columns.map(([key]) => html`<${Cell} key=${key} metric=${at.get(`${name} ${key}`)} />`)}
      </tr>`)}
    </tbody>
  </table>`;
}

function Cell({ metric }) {
  if (!metric) return html`<td></td>`;
  if (metric.value === null) return html`<td class="number muted" title=${metric.reason}>missing</td>`;
  return html`<td class="number" title=${metric.reason}>${withError(metric.value, metric.std_err)}</td>`;
}
