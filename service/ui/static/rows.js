// The least usual rows of a run that scored data with the model of another: the head of rows.csv, in order of the p-value.

import { html } from "./vendor/preact-htm.js";
import { answerTo } from "./api.js";
import { number } from "./format.js";
import { useLive } from "./live.js";
import { Problem, Scroll } from "./parts.js";

const SHOWN = 20;
const MAX_BYTES = 50_000_000; // of a file that a page reads
const FAMILIES = ["ppca", "factor_analysis"];
const MEASURES = ["seed", "values", "log_likelihood", "p_value", "unusual_columns"]; // the columns between `row` and these are ids

/** The records of a CSV file, each a list of texts. */
export function recordsOf(text) {
  const records = [];
  const cell = /("(?:[^"]|"")*"|[^,\r\n]*)(,|\r?\n|$)/y; // a cell and what ends it
  let record = [];
  while (cell.lastIndex < text.length) {
    const [, content, end] = cell.exec(text);
    record.push(content.startsWith('"') ? content.slice(1, -1).replaceAll('""', '"') : content);
    if (end === "," && cell.lastIndex < text.length) continue;
    if (end === ",") record.push("");
    records.push(record);
    record = [];
  }
  return records;
}

/** The names of the id columns of rows.csv, and its least usual rows as objects, the least usual first. */
export function leastUsual(text, count = SHOWN) {
  const [names, ...records] = recordsOf(text);
  const ids = names.slice(1).filter((name) => !MEASURES.includes(name));
  const [p, likelihood] = ["p_value", "log_likelihood"].map((name) => names.indexOf(name));
  records.sort((a, b) => a[p] - b[p] || a[likelihood] - b[likelihood]);
  const rows = records.slice(0, count).map((record) => Object.fromEntries(names.map((name, i) => [name, record[i]])));
  return { ids, rows, total: records.length };
}

/** Whether a run leaves rows.csv. */
export function hasRows({ status, spec: { model, data, train } }) {
  return status === "succeeded" && FAMILIES.includes(model.family) && model.init === "experiment" && data.source === "upload" && !train;
}

async function read(url) {
  const answer = await answerTo("GET", url);
  if (Number(answer.headers.get("Content-Length")) <= MAX_BYTES) return leastUsual(await answer.text());
  await answer.body.cancel();
  return { tooLong: true };
}

function Table({ id, seeds }) {
  const url = `/v1/experiments/${id}/artifacts/rows.csv`;
  const { data, error } = useLive(() => read(url), [url], () => true);
  if (error) return html`<${Problem} error=${error} />`;
  if (!data) return null;
  const hasSeeds = seeds.length > 1;
  return html`<section class="card flush" aria-labelledby="rows">
    <div class="row spread bar"><h2 id="rows">Least usual rows</h2><a class="button quiet" href=${url} download=${`${id}-rows.csv`}>CSV</a></div>
    <p class="bar muted small">p-value: the share of the model's own rows that are at least as unlikely. Unusual columns: how many standard deviations a value is from what the others of its row predict, where the p-value is below 0.05 (<a href="/help/spec#parts">more</a>).</p>
    ${data.tooLong ? html`<p class="bar">The table is too long for this page: <code>mpt rows ${id}</code> shows its least usual rows.</p>` : html`<${Scroll} label="Table of the least usual rows"><table>
      <thead><tr>
        <th scope="col" class="number">Row</th>
        ${data.ids.map((name) => html`<th scope="col">${name}</th>`)}
        ${hasSeeds && html`<th scope="col" class="number">Seed</th>`}
        <th scope="col" class="number">Values</th><th scope="col" class="number">Log-likelihood</th><th scope="col" class="number">p-value</th>
        <th scope="col">Unusual columns</th>
      </tr></thead>
      <tbody>${data.rows.map((row) => html`<tr key=${`${row.row} ${row.seed}`}>
        <td class="number">${row.row}</td>
        ${data.ids.map((name) => html`<td class="wrap">${row[name]}</td>`)}
        ${hasSeeds && html`<td class="number">${row.seed}</td>`}
        <td class="number">${row.values}</td>
        <td class="number">${number(Number(row.log_likelihood), 6)}</td>
        <td class="number">${number(Number(row.p_value), 2)}</td>
        <td class="wrap">${row.unusual_columns}</td>
      </tr>`)}</tbody>
    </table><//>
    <p class="bar foot muted small">${data.rows.length} of ${data.total} lines</p>`}
  </section>`;
}

/** Nothing, unless the run scored the rows of an upload with the model of another run. */
export function UnusualRows({ experiment }) {
  return hasRows(experiment) ? html`<${Table} id=${experiment.id} seeds=${experiment.spec.seeds} />` : null;
}
