// One sweep: a metric against a swept field, and a row for each point.

import { html, useState } from "../vendor/preact-htm.js";
import { call, get, post } from "../api.js";
import { Chart } from "../chart.js";
import { Counts } from "../counts.js";
import { dateTime, plain, titleOf, withError } from "../format.js";
import { useLive } from "../live.js";
import { fieldName, isDerived, metricName } from "../names.js";
import { Parallel } from "../parallel.js";
import { Confirm, Loading, Missing, Problem, Scroll, Status, Tags } from "../parts.js";
import { unitOf } from "../result.js";
import { SortHeader, useSorting } from "../sorting.js";
import { canHaveMoreMasks } from "../spec.js";
import { SEEDS, axesOf, bestRow, chartOf, errorOf, rowsOf } from "../swept.js";

const SHOWN = 500;

function Pick({ id, label, values, value, set, nameOf }) {
  return html`<div class="field"><label for=${id}>${label}</label>
    <select id=${id} onChange=${(event) => set(event.target.value)}>
      ${values.map((one) => html`<option value=${one} selected=${one === value}>${nameOf(one)}</option>`)}
    </select></div>`;
}

/** The form of a point with four times the masks, which halve its error. */
const withMoreMasks = (row) => `/new?from=${row.experiment_id}&masks=4`;

/** Adds points beyond the best value, where it is the first or last. */
function Extend({ sweep, grid, onDone }) {
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState(false);
  const values = grid["model.latent_dim"];
  const count = Object.values(grid).reduce((total, one) => total * one.length, 1);
  const range = values.length > 1 ? `${values[0]} to ${values.at(-1)}` : values[0];
  async function extend() {
    setBusy(true);
    await post(`/v1/sweeps/${sweep.id}/points`, { grid }).then(() => setError(null), setError);
    setBusy(false);
    onDone();
  }
  return html`<div><button type="button" class="primary" disabled=${busy} onClick=${extend}>Extend the range: K = ${range}</button>
    <span class="small muted"> adds ${count === 1 ? "1 run" : `${count} runs`}</span><${Problem} error=${error} /></div>`;
}

/** The result of a sweep, with the sentences that `mpt table` prints; the best is bold in its table. */
function Best({ sweep, table, best, onDone }) {
  if (best === null && !table.notes.length) return null;
  const cell = best?.row.metrics[best.metric];
  return html`<section class="stack" aria-label="Result">
    ${best && html`<div class="result"><div class="figure">
      <div class="muted small">Best ${best.label}</div>
      <div class="amount">${withError(cell.value, cell.std_err)} <span class="muted small">${unitOf({ name: best.metric, unit: "nats" }, [])}</span></div>
      <div class="small">at ${best.at}</div>
    </div>
    ${best.smallestAt && html`<div class="figure">
      <div class="muted small">Smallest model as good</div>
      <div class="amount">${best.smallestAt}</div>
    </div>`}</div>`}
    <ul class="list">${table.notes.map((note) => html`<li key=${note} class="small wrap">${note}</li>`)}</ul>
    ${table.extension && sweep.can.length > 0 && html`<${Extend} sweep=${sweep} grid=${table.extension} onDone=${onDone} />`}
  </section>`;
}

function Against({ table }) {
  const fields = axesOf(table);
  const [field, setField] = useState(fields[0]);
  const [metric, setMetric] = useState(null);
  const shown = metric ?? table.chief_metric;
  if (!field || !shown) return null;
  const { series, lines } = chartOf(table, field, shown);
  const others = table.fields.filter((one) => one !== SEEDS);
  const rows = rowsOf(table);
  const isPaired = field !== SEEDS && errorOf(table, shown) !== shown;
  const note = isPaired && "Bands are two standard errors of the difference from the best point with the same held-out rows.";
  return html`
    <div class="row">
      <${Pick} id="metric" label="Metric" values=${table.metrics} value=${shown} set=${setMetric} nameOf=${metricName} />
      <${Pick} id="against" label="Against" values=${fields} value=${field} set=${setField} nameOf=${fieldName} />
    </div>
    <${Chart} key=${`${field} ${shown}`} title=${`${metricName(shown)} by ${fieldName(field)}`} note=${note} xLabel=${fieldName(field)} yLabel=${metricName(shown, { hasUnit: true })} series=${series} lines=${lines} />
    ${others.length > 2 && html`<${Parallel} rows=${rows} fields=${others} metric=${shown} />`}`;
}

function MetricCells({ metrics, names, bold = null }) {
  const textOf = (name) => withError(metrics[name]?.value, metrics[name]?.std_err);
  return names.map((name) => html`<td key=${name} class="number">
    ${name === bold ? html`<strong>${textOf(name)}</strong>` : textOf(name)}${metrics[name]?.count > 1 && html` <span class="muted small">×${metrics[name].count}</span>`}
  </td>`);
}

const FieldCells = ({ values, fields }) =>
  fields.map((field) => html`<td key=${field}>${field in values ? plain(values[field]) : "–"}</td>`);

/** The points that differ in their seeds alone, taken together. */
function OverSeeds({ id, table, best }) {
  const [rows, headerOf] = useSorting(table.pooled, sortedBy);
  if (!table.pooled.length || !table.metrics.length) return null;
  const fields = table.fields.filter((one) => one !== SEEDS);
  return html`<section class="card flush">
    <div class="bar row spread"><h2>Means over seeds</h2><a class="button quiet" href=${`/v1/sweeps/${id}/table?format=csv&form=pooled`} download=${`${id}-means.csv`}>CSV</a></div>
    <p class="bar muted small">The error covers all that differs between seeds: training, masks, samples.</p>
    <${Scroll} label="Means over seeds"><table class="runs">
      <thead><tr>
        ${fields.map((field) => html`<${SortHeader} key=${field} ...${headerOf(field)}><span title=${field}>${fieldName(field)}</span><//>`)}
        <th scope="col" class="number">Points</th>
        ${table.metrics.map((metric) => html`<${SortHeader} key=${metric} ...${headerOf(metric)} number><span title=${metric}>${metricName(metric)}</span><//>`)}
      </tr></thead>
      <tbody>${rows.slice(0, SHOWN).map((row, i) => html`<tr key=${i}>
        <${FieldCells} values=${row.fields} fields=${fields} />
        <td class="number">${row.points}</td>
        <${MetricCells} metrics=${row.metrics} names=${table.metrics} bold=${row === best?.row && best.metric} />
      </tr>`)}</tbody>
    </table><//>
  </section>`;
}

/** What a row is sorted by: its number, a swept field, or a metric. */
const sortedBy = (row, name) => row.metrics[name]?.value ?? row.fields[name] ?? row[name];

function Points({ id, table, best, hasMasks }) {
  const [rows, headerOf] = useSorting(table.items, sortedBy);
  const hasStatus = table.items.some(({ status }) => status !== "succeeded");
  return html`<section class="card flush">
    <div class="bar row spread">
      <h2>Points</h2>
      <div class="row">
        <a class="button quiet" href=${`/v1/sweeps/${id}/table?format=csv`} download=${`${id}.csv`}>CSV</a>
        <a class="button quiet" href=${`/v1/sweeps/${id}/table?format=csv&form=long`} download=${`${id}-seeds.csv`}>CSV, a line for each seed</a>
      </div>
    </div>
    <${Scroll} label="Points"><table class="runs">
      <thead><tr>
        <${SortHeader} ...${headerOf("point")}>Point<//>
        ${hasStatus && html`<${SortHeader} ...${headerOf("status")}>Status<//>`}
        ${table.fields.map((field) => html`<${SortHeader} key=${field} ...${headerOf(field)}><span title=${field}>${fieldName(field)}</span><//>`)}
        ${table.metrics.map((metric) => html`<${SortHeader} key=${metric} ...${headerOf(metric)} number><span title=${metric}>${metricName(metric)}</span><//>`)}
        ${hasMasks && html`<th scope="col" class="number">Run again</th>`}
      </tr></thead>
      <tbody>${rows.slice(0, SHOWN).map((row) => html`<tr key=${row.point}>
        <th scope="row"><a href=${`/experiments/${row.experiment_id}`}>${row.point}</a></th>
        ${hasStatus && html`<td><${Status} of=${row.status} /></td>`}
        <${FieldCells} values=${row.fields} fields=${table.fields} />
        <${MetricCells} metrics=${row.metrics} names=${table.metrics} bold=${row === best?.row && best.metric} />
        ${hasMasks && html`<td class="number small"><a href=${withMoreMasks(row)} aria-label=${`Run point ${row.point} with more masks`}>more masks</a></td>`}
      </tr>`)}</tbody>
    </table><//>
    ${table.items.length > SHOWN && html`<p class="empty">The first ${SHOWN} of ${table.items.length}; the CSV has all.</p>`}
  </section>`;
}

// Maximum number of points that a request retries.
const RETRIED = 1000;

function SweepActions({ sweep, onDone }) {
  const [error, setError] = useState(null);
  const [question, setQuestion] = useState(null);
  if (!sweep.can.length) return null;
  const path = `/v1/sweeps/${sweep.id}`;
  const run = (work) => work().then(() => setError(null), setError).then(onDone);
  const failed = (sweep.counts.failed ?? 0) + (sweep.counts.cancelled ?? 0);
  const open = sweep.points - sweep.ended;
  const cancel = () => run(() => post(`${path}:cancel`));
  const remove = () => run(() => call("DELETE", path).then(() => location.assign("/sweeps")));
  function answer(work) {
    return (yes) => {
      setQuestion(null);
      if (yes) work();
    };
  }
  const runs = open === 1 ? "1 run" : `${open} runs`;
  return html`<div class="stack">
    <div class="row" role="group" aria-label="What to do with it">
      ${sweep.can.includes("cancel") && html`<button type="button" onClick=${() => setQuestion("cancel")}>Cancel ${runs}</button>`}
      ${sweep.can.includes("retry") && html`<button type="button" onClick=${() => run(() => post(`${path}:retry`))}>Retry ${Math.min(failed, RETRIED)}</button>`}
      ${sweep.can.includes("delete") && html`<button type="button" class="quiet danger" onClick=${() => setQuestion("delete")}>Delete</button>`}
    </div>
    <${Problem} error=${error} />
    ${question === "cancel" && html`<${Confirm} title=${`Cancel ${runs}?`} action=${`Cancel ${runs}`} onAnswer=${answer(cancel)}>
      <p>What they have computed stays; they do not go on.</p><//>`}
    ${question === "delete" && html`<${Confirm} title="Delete this sweep?" action="Delete" deletes onAnswer=${answer(remove)}><p>Its experiments go with it.</p><//>`}
  </div>`;
}

/** The metrics of a table, the one that decides and the distance from the best first. */
function chiefFirst({ metrics, chief_metric: chief }) {
  const first = [chief, `${chief}_behind_best`];
  const isFirst = (name) => first.includes(name);
  return [...metrics.filter(isFirst), ...metrics.filter((name) => !isFirst(name) && !isDerived(name))];
}

export default function Sweep({ may }) {
  const id = location.pathname.split("/")[2];
  const read = async () => {
    const [sweep, table] = await Promise.all([get(`/v1/sweeps/${id}`), get(`/v1/sweeps/${id}/table`)]);
    return { sweep, table: { ...table, metrics: chiefFirst(table) } };
  };
  const { data, error, refresh } = useLive(read, [id], ({ sweep }) => sweep.terminal);
  if (error) return html`<${Missing} error=${error} />`;
  if (!data) return html`<${Loading} />`;
  const { sweep, table } = data;
  const best = bestRow(table);
  const hasMasks = may("submit") && canHaveMoreMasks(sweep.spec);
  document.title = `${titleOf(sweep)} · MPT Lab`;
  return html`<div class="stack">
    <div class="row spread">
      <div class="grow"><h1>${titleOf(sweep)}</h1><div class="row"><${Status} of=${sweep.status} />${sweep.status !== "succeeded" && html`<${Counts} sweep=${sweep} />`}<${Tags} of=${sweep.tags} /></div></div>
      <${SweepActions} sweep=${sweep} onDone=${refresh} />
    </div>
    <${Best} sweep=${sweep} table=${table} best=${best} onDone=${refresh} />
    ${sweep.estimated_end && html`<p class="muted small">May end ${dateTime(sweep.estimated_end)}: ${sweep.estimate}.</p>`}
    <${Against} table=${table} />
    <${OverSeeds} id=${id} table=${table} best=${best} />
    <${Points} id=${id} table=${table} best=${best} hasMasks=${hasMasks} />
  </div>`;
}
