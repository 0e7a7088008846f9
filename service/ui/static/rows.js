// The rows of a run that scored data with the model of another: rows.csv, in order of the p-value.

import { html, useState } from "./vendor/preact-htm.js";
import { answerTo } from "./api.js";
import { number, withError } from "./format.js";
import { useLive } from "./live.js";
import { Problem, Scroll } from "./parts.js";
import { SortHeader, useSorting } from "./sorting.js";

const SHOWN = 20;
const UNUSUAL = 0.05; // the p-value below which a run names columns
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

/** The names of the columns of rows.csv, those of its ids, and its rows as lists, the least usual first. */
export function byUnusualness(text) {
  const [names, ...records] = recordsOf(text);
  const ids = names.slice(1).filter((name) => !MEASURES.includes(name));
  const [p, likelihood] = ["p_value", "log_likelihood"].map((name) => names.indexOf(name));
  records.sort((a, b) => a[p] - b[p] || a[likelihood] - b[likelihood]);
  return { names, ids, records };
}

/** Whether a run leaves rows.csv. */
export function hasRows({ status, spec: { model, data, train } }) {
  return status === "succeeded" && FAMILIES.includes(model.family) && model.init === "experiment" && data.source === "upload" && !train;
}

async function read(url) {
  const answer = await answerTo("GET", url);
  if (Number(answer.headers.get("Content-Length")) <= MAX_BYTES) return byUnusualness(await answer.text());
  await answer.body.cancel();
  return { tooLong: true };
}

const FIRST = { name: "p_value", order: "asc" };
const WITH_MINUS = [/(^|\s)-(?=[\d.])/g, "$1−"];

function Rows({ names, ids, records, hasSeeds }) {
  const [start, setStart] = useState(0);
  const cell = (record, name) => record[names.indexOf(name)];
  const hasMissing = new Set(records.map((record) => cell(record, "values"))).size > 1;
  const value = (record, name) => (ids.includes(name) ? cell(record, name) : Number(cell(record, name)));
  const [sorted, headerOf] = useSorting(records, value, FIRST);
  const header = (name, title, more = {}) => {
    const { order, onSort } = headerOf(name);
    return html`<${SortHeader} key=${name} order=${order} first="asc" onSort=${(next) => [onSort(next), setStart(0)]} ...${more}>${title}<//>`;
  };
  const shown = sorted.slice(start, start + SHOWN);
  return html`<${Scroll} label="Table of rows"><table>
      <thead><tr>
        ${header("row", "Row", { number: true })}
        ${ids.map((name) => header(name, name))}
        ${hasSeeds && header("seed", "Seed", { number: true })}
        ${header("p_value", "p-value", { number: true })}
        <th scope="col">Unusual columns</th>
        ${header("log_likelihood", "Log-likelihood", { number: true, wide: true })}
        ${hasMissing && header("values", "Values", { number: true, wide: true })}
      </tr></thead>
      <tbody>${shown.map((record) => html`<tr key=${`${cell(record, "row")} ${cell(record, "seed")}`}>
        <td class="number">${cell(record, "row")}</td>
        ${ids.map((name) => html`<td class="wrap">${cell(record, name)}</td>`)}
        ${hasSeeds && html`<td class="number">${cell(record, "seed")}</td>`}
        <td class="number">${number(value(record, "p_value"), 2)}</td>
        <td class="wrap">${(cell(record, "unusual_columns") ?? "").replace(...WITH_MINUS)}</td>
        <td class="number wide">${withError(value(record, "log_likelihood"))}</td>
        ${hasMissing && html`<td class="number wide">${cell(record, "values")}</td>`}
      </tr>`)}</tbody>
    </table><//>
    <div class="row spread bar foot">
      <span class="muted small" role="status">Rows ${start + 1} to ${start + shown.length} of ${records.length}</span>
      <nav class="row" aria-label="Pages of rows">
        ${start > 0 && html`<button type="button" onClick=${() => setStart(start - SHOWN)}>Previous rows</button>`}
        ${start + SHOWN < records.length && html`<button type="button" onClick=${() => setStart(start + SHOWN)}>Next rows</button>`}
      </nav>
    </div>`;
}

function Table({ id, seeds }) {
  const url = `/v1/experiments/${id}/artifacts/rows.csv`;
  const { data, error } = useLive(() => read(url), [url], () => true);
  if (error) return html`<${Problem} error=${error} />`;
  if (!data) return null;
  const unusual = data.records?.filter((record) => record[data.names.indexOf("p_value")] < UNUSUAL).length;
  return html`<section class="card flush" aria-labelledby="rows">
    <div class="row spread bar"><h2 id="rows">Rows</h2><a class="button quiet" href=${url} download=${`${id}-rows.csv`}>CSV</a></div>
    ${data.records && html`<p class="bar"><strong>${unusual} of ${data.records.length}</strong> have a p-value below ${UNUSUAL}; by chance it would be about ${Math.round(UNUSUAL * data.records.length)}.</p>`}
    <p class="bar muted small">The least usual first. p-value: the share of the model's own rows that are at least as unlikely. Unusual columns: how many standard deviations a value is from what the others of its row predict, where the p-value is below ${UNUSUAL} (<a href="/help/spec#parts">more</a>).</p>
    ${data.tooLong
      ? html`<p class="bar">The table is too long for this page: <code>mpt rows ${id}</code> shows its least usual rows.</p>`
      : html`<${Rows} ...${data} hasSeeds=${seeds.length > 1} />`}
  </section>`;
}

/** Nothing, unless the run scored the rows of an upload with the model of another run. */
export function UnusualRows({ experiment }) {
  return hasRows(experiment) ? html`<${Table} id=${experiment.id} seeds=${experiment.spec.seeds} />` : null;
}
