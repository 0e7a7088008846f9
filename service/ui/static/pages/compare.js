// Several experiments: their curves on one chart, where their specs differ, and their metrics.

import { html, useMemo, useState } from "../vendor/preact-htm.js";
import { Refused, get, post, withQuery } from "../api.js";
import { Chart, colourOf } from "../chart.js";
import { bestOf, coloursBy, differenceOf, differenceOfTexts, differentData, fieldText, idsIn, metricsOf, rowsOf, shortNames } from "../compared.js";
import { chartsOfMany, curvesOfMany, levelsOf } from "../curves.js";
import { cut, differenceText, labelText, withError } from "../format.js";
import { useLive } from "../live.js";
import { aboutMean } from "../means.js";
import { fieldSymbol, metricName } from "../names.js";
import { Empty, Loading, Missing, Scroll, Status } from "../parts.js";
import { overText } from "../result.js";
import { SortHeader, useSorting } from "../sorting.js";

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

const MAX_FIRST = 3; // fields that stand before the metrics, on a phone below the name

function Name({ row, paths, colour }) {
  const values = paths.filter((path) => row.fields.has(path)).map((path) => `${fieldSymbol(path)} = ${fieldText(row.fields.get(path))}`);
  return html`<span class="swatch" ref=${(node) => node && (node.style.background = colourOf(colour))}></span>
    <a class="name" href=${`/experiments/${row.experiment.id}`}>${row.title}</a>
    ${values.map((value) => html`<div key=${value} class="small muted only-small" title=${value}>${cut(value, FIELD_CHARACTERS)}</div>`)}`;
}

function ColourBy({ paths, value, set }) {
  return html`<div class="field short"><label for="colour">Colour by</label>
    <select id="colour" onChange=${(event) => set(event.target.value)}>
      <option value="" selected=${value === ""}>run</option>
      ${paths.map((path) => html`<option key=${path} value=${path} selected=${value === path}>${path}</option>`)}
    </select></div>`;
}

/** A chart for each name of a series: an experiment's curves have its colour. */
function Charts({ experiments, rows, curves, colours }) {
  const charts = useMemo(() => chartsOfMany(experiments, curves, colours), [curves, colours.join()]);
  return charts.map(({ key, about: [title, xLabel, yLabel], name, series }) => {
    const lines = experiments.flatMap((one, index) =>
      levelsOf(name, one.summary, `LML of ${rows[index].title}`).map((line) => ({ ...line, colour: colours[index] })),
    );
    const note = series.some(({ faint }) => faint) && "Means over seeds; the seeds are faint.";
    return html`<${Chart} key=${key} title=${title} note=${note} mayHide series=${series} lines=${lines} xLabel=${xLabel} yLabel=${yLabel} />`;
  });
}

const isResult = ({ label }) => label !== null;
const differs = (rows, { key }) => new Set(rows.map(({ means }) => means.get(key)?.value)).size > 1;

function MetricCell({ mean, summary, difference, isBest }) {
  if (!mean) return html`<td></td>`;
  const value = withError(mean.value, mean.std_err);
  return html`<td class="number" title=${aboutMean(mean)}>
    ${isBest ? html`<strong>${value}</strong>` : value}${mean.tokens && html` <span class="muted small">per ${mean.tokens} tokens</span>`}${mean.count > 1 && html` <span class="muted small">×${mean.count}</span>`}
    ${overText(mean, summary) && html`<div class="small muted">${overText(mean, summary)}</div>`}
    ${difference && html`<div class="small muted">${differenceText(difference, value)}</div>`}
  </td>`;
}

const FIELD_CHARACTERS = 40;

function FieldCell({ row, path, wide }) {
  const text = fieldText(row.fields.get(path));
  return html`<td class=${wide ? "mono wide" : "mono"} title=${text}>${cut(text, FIELD_CHARACTERS)}</td>`;
}

/** What a run is sorted by: its name, its status, a field of its spec, or a metric. */
function sortedBy(row, [kind, name]) {
  if (kind === "metric") return row.means.get(name)?.value;
  if (kind === "status") return row.experiment.status;
  return kind === "name" ? row.title : row.fields.get(name);
}

const MAX_PATHS = 4; // of a sentence

const listed = (paths) => [...paths.slice(0, MAX_PATHS), ...(paths.length > MAX_PATHS ? [`${paths.length - MAX_PATHS} more fields`] : [])].join(", ");

/** A row for each run: its metrics, then where its spec differs from the others', or all of it. */
function Runs({ rows, paths, colours, texts, all, setAll }) {
  const every = metricsOf(rows);
  const metrics = all ? every : every.filter((metric) => isResult(metric) || differs(rows, metric));
  const columns = new Map(
    [["name"], ["status"], ...metrics.map(({ key }) => ["metric", key]), ...paths.map((path) => ["field", path])].map((one) => [one.join(" "), one]),
  );
  const [shown, headerOf] = useSorting(rows, (row, column) => sortedBy(row, columns.get(column)));
  const hasStatus = rows.some(({ experiment }) => experiment.status !== "succeeded");
  const names = shortNames(paths);
  const isFew = !all && paths.length <= MAX_FIRST;
  const fieldHeaders = paths.map((path, i) => html`<${SortHeader} key=${path} ...${headerOf(`field ${path}`)} wide=${isFew}><span title=${path}>${names[i]}</span><//>`);
  const fieldCells = (row) => paths.map((path) => html`<${FieldCell} key=${path} row=${row} path=${path} wide=${isFew} />`);
  const best = new Map(metrics.map((metric) => [metric.key, bestOf(rows, metric)]));
  const hasHeldOut = metrics.some(({ name }) => name === "lml_heldout");
  const isAnyBest = [...best.values()].some((one) => one.size > 0);
  const hasSeeds = rows.some(({ means }) => [...means.values()].some(({ count }) => count > 1));
  const [first] = rows;
  const byText = (row, { name }) => texts.has(row.experiment.id) && texts.has(first.experiment.id) && differenceOfTexts(texts.get(row.experiment.id), texts.get(first.experiment.id), name);
  const paired = [hasSeeds && "paired by seed", hasHeldOut && "paired by row for the held-out LML", texts.size > 0 && "paired by text for their scores"].filter(Boolean);
  const different = differentData(rows.map(({ experiment }) => experiment));
  return html`<section class="card flush">
    <div class="bar row spread"><h2>Runs</h2>
      <label class="row"><input type="checkbox" role="switch" checked=${!all} onChange=${(event) => setAll(!event.target.checked)} />Only what differs</label></div>
    <p class="bar muted small">${hasSeeds ? "Values are means over seeds ± standard error (×5: five seeds)." : "Numbers after ± are standard errors."}
      ${!different.length && ` Small numbers are ${[`differences from ${first.title}`, ...paired].join(", ")}.`}${
      isAnyBest && ` Bold is the best${hasHeldOut ? " on held-out rows" : ""}, and what is within two standard errors of it.`}</p>
    ${different.length > 0 && html`<p class="bar small"><strong>The data differ</strong> (${listed(different)}): their metrics do not tell which model is better.</p>`}
    <${Scroll} label="Runs"><table class="runs">
      <thead><tr>
        <${SortHeader} ...${headerOf("name")}>Run<//>
        ${hasStatus && html`<${SortHeader} ...${headerOf("status")}>Status<//>`}
        ${isFew && fieldHeaders}
        ${metrics.map(({ key, name, labels }) => html`<${SortHeader} key=${key} ...${headerOf(`metric ${key}`)} number><span title=${name}>${[metricName(name), labelText(labels)].filter(Boolean).join(", ")}</span><//>`)}
        ${!isFew && fieldHeaders}
      </tr></thead>
      <tbody>${shown.map((row) => html`<tr key=${row.experiment.id}>
        <th scope="row"><${Name} row=${row} paths=${isFew ? paths : []} colour=${colours[row.index]} /></th>
        ${hasStatus && html`<td><${Status} of=${row.experiment.status} /></td>`}
        ${isFew && fieldCells(row)}
        ${metrics.map(({ key }) => html`<${MetricCell} key=${key} mean=${row.means.get(key)} summary=${row.experiment.summary} difference=${different.length || row === first ? null : byText(row, row.means.get(key) ?? {}) || differenceOf(row, first, key)} isBest=${best.get(key).has(row)} />`)}
        ${!isFew && fieldCells(row)}
      </tr>`)}</tbody>
    </table><//>
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
  return html`<${Shown} ...${data} />`;
}

const MAX_TEXTS = 10_000;
const MAX_WITH_TEXTS = 5; // runs: their tables have some megabytes each

/** The scores of the texts of runs by their ids, if a few runs have them and no table is longer than a page. */
async function textsOf(experiments) {
  const scored = experiments.filter(({ spec, status }) => spec.evaluate?.texts && status === "succeeded");
  if (scored.length < 2 || scored.length > MAX_WITH_TEXTS) return new Map();
  const pages = await Promise.all(scored.map(({ id }) => get(withQuery(`/v1/experiments/${id}/texts`, { limit: MAX_TEXTS }))));
  return new Map(scored.map(({ id }, i) => [id, pages[i]]).filter(([, page]) => page.next_offset === null).map(([id, page]) => [id, page.items]));
}

/** What ids stand for: file names of data sets, titles of experiments; ids of what one may not read stay. */
async function namesOf(ids) {
  const named = ids.map(async ({ kind, id }) => {
    try {
      const found = await get(`/v1/${kind}s/${id}`);
      return [id, kind === "dataset" ? found.name : found.title];
    } catch (error) {
      if (error instanceof Refused) return [id, id];
      throw error;
    }
  });
  const found = await Promise.all(named);
  const isAlone = (name) => found.filter(([, other]) => other === name).length === 1;
  return new Map(found.map(([id, name]) => [id, isAlone(name) ? name : `${name} · ${id.slice(-6)}`]));
}

function Shown({ experiments, curves }) {
  const [by, setBy] = useState("");
  const [all, setAll] = useState(false);
  const ids = idsIn(experiments);
  const { data: names } = useLive(() => namesOf(ids), [ids.map(({ id }) => id).join()], () => true);
  const { data: texts } = useLive(() => textsOf(experiments), [experiments.map(({ id, status }) => `${id} ${status}`).join()], () => true);
  const rows = useMemo(() => rowsOf(experiments, { curves, names: names ?? undefined }), [experiments, curves, names]);
  const shown = useMemo(() => (all ? rowsOf(experiments, { all, curves, names: names ?? undefined }) : rows), [rows, all]);
  const paths = [...rows[0].fields.keys()];
  const colours = coloursBy(rows, by);
  return html`<div class="stack">
    <div class="row spread end">
      <h1>Compare ${experiments.length} experiments</h1>
      ${paths.length > 0 && curves.some(({ series }) => series.length) && html`<${ColourBy} paths=${paths} value=${by} set=${setBy} />`}
    </div>
    <${Runs} rows=${shown} paths=${[...shown[0].fields.keys()]} colours=${colours} texts=${texts ?? new Map()} all=${all} setAll=${setAll} />
    <${Charts} experiments=${experiments} rows=${rows} curves=${curves} colours=${colours} />
  </div>`;
}
