// The list of experiments. What it shows is in its address: filters, order, page.

import { html, useEffect, useState } from "../vendor/preact-htm.js";
import { get, withQuery } from "../api.js";
import { Counts } from "../counts.js";
import { Filters, RESULT, chosenColumns, isField, resultNames } from "../filters.js";
import { cut, labelText, leaves, pointTitle, plain, titleOf, withError } from "../format.js";
import { useLive } from "../live.js";
import { aboutMean } from "../means.js";
import { fieldName, metricName } from "../names.js";
import { Empty, Loading, Problem, Progress, Scroll, Status, Tags, When, useQuery, withCode } from "../parts.js";
import { BestPoint, ofPoint, resultsOf, shortLabel } from "../result.js";
import { SavedViews } from "../saved.js";
import { Selection } from "../selection.js";
import { SortHeader } from "../sorting.js";

const PAGE = 50;
const ASKED = ["q", "status", "family", "tag", "whose", "filter", "order_by", "cursor"];

/** The final means of a metric: one line for each set of labels, such as model and baseline. */
function Metric({ experiment, name }) {
  const means = experiment.summary.filter((one) => one.name === name);
  if (!means.length) return html`<td class="number muted wide">–</td>`;
  return html`<td class="number wide">${means.map((mean) => html`<div key=${mean.title} title=${aboutMean(mean)}>
    ${withError(mean.value, mean.std_err)}
    ${mean.tokens && mean.value !== null && html` <span class="muted small">per ${mean.tokens} tokens</span>`}
    ${mean.count > 1 && mean.value !== null && html` <span class="muted small">×${mean.count}</span>`}
    ${labelText(mean.labels) && html` <span class="muted small">${labelText(mean.labels)}</span>`}
  </div>`)}</td>`;
}

/** The result of an experiment by its own name, such as "LML −61.340", and below it the second, such as the MPT score. */
function Result({ experiment, sweep }) {
  const deciding = ofPoint(experiment, sweep?.best);
  if (deciding) {
    const figure = html`<${Figure} mean=${deciding} />`;
    return html`<td class="result-cell wide">${sweep.best.experiment_id === experiment.id ? html`<strong>${figure}</strong>` : figure}</td>`;
  }
  const [main, second] = resultsOf(experiment.summary);
  if (!main) return html`<td class="result-cell wide"></td>`;
  return html`<td class="result-cell wide"><${Figure} mean=${main} />${second && html`<div class="muted small"><${Figure} mean=${second} /></div>`}</td>`;
}

function Figure({ mean }) {
  const tokens = mean.tokens && mean.value !== null ? ` per ${mean.tokens} tokens` : "";
  return html`<span title=${[mean.label, aboutMean(mean)].filter(Boolean).join(": ")}><span class="muted small">${shortLabel(mean)}</span> <span class="number">${withError(mean.value, mean.std_err)}</span>${tokens}</span>`;
}

/** The first of the chosen results or metrics that an experiment has, below its status, for screens without room for columns. */
function FirstMetric({ experiment, sweep, columns }) {
  const isChosen = ({ name, label }) => columns.metrics.includes(name) || (columns.result && label !== null);
  const mean = ofPoint(experiment, sweep?.best) ?? experiment.summary.find(isChosen);
  const isBest = sweep?.best?.experiment_id === experiment.id;
  return mean ? html`<div class=${`small only-small${isBest ? " strong" : ""}`}><${Figure} mean=${mean} /></div>` : null;
}

const FIELD_CHARACTERS = 30;
const FAILURE_CHARACTERS = 90;
const MAX_POINTS = 50; // of an open sweep

/** The value of a field of the spec; a dash if the spec has no such field. */
function Field({ experiment, path }) {
  const found = leaves(experiment.spec ?? {}, "spec").find(([name]) => name === path);
  const text = found ? plain(found[1]) : "–";
  return html`<td class="mono wide" title=${text}>${cut(text, FIELD_CHARACTERS)}</td>`;
}

/** Why a run failed: the beginning of a long message; a click shows the whole. */
function Failure({ message }) {
  const [open, setOpen] = useState(false);
  const short = cut(message, FAILURE_CHARACTERS);
  return html`<div class="small bad-text brief">${short === message ? withCode(message) : html`
    <button type="button" class="opener" aria-expanded=${open} title=${message} onClick=${() => setOpen(!open)}>${withCode(open ? message : short)}</button>`}</div>`;
}

function Check({ experiment, title, selected, select }) {
  return html`<td class="check"><input type="checkbox" checked=${selected.has(experiment.id)} aria-label=${`Select ${title}`}
    onChange=${(event) => select(experiment, event.target.checked)} /></td>`;
}

/** The row of an experiment or, with its `sweep`, of a point of an open one. */
function Row({ experiment, sweep, columns, ...selection }) {
  const { id, status, queue, failure } = experiment;
  const title = titleOf(experiment);
  return html`<tr class=${sweep ? "point" : ""}>
    <${Check} experiment=${experiment} title=${title} ...${selection} />
    <th scope="row">
      <a class=${experiment.name ? "name" : "name muted"} href=${`/experiments/${id}`}>${sweep ? pointTitle(experiment, sweep) : title}</a>
      ${experiment.tags.length > 0 && html`<div class="small"><${Tags} of=${experiment.tags} /></div>`}
    </th>
    <td>
      <${Status} of=${status} />
      <${FirstMetric} experiment=${experiment} sweep=${sweep} columns=${columns} />
      ${status === "running" && html`<${Progress} experiment=${experiment} label=${`Progress of ${title}`} />`}
      ${queue && html`<div class="small muted brief">${queue.reason}</div>`}
      ${failure && html`<${Failure} message=${failure.message} />`}
    </td>
    ${columns.family && html`<td class="wide">${experiment.family}</td>`}
    ${columns.fields.map((path) => html`<${Field} key=${path} experiment=${experiment} path=${path} />`)}
    ${columns.result && html`<${Result} experiment=${experiment} sweep=${sweep} />`}
    ${columns.metrics.map((name) => html`<${Metric} key=${name} experiment=${experiment} name=${name} />`)}
    ${columns.owner && html`<td class="wide">${experiment.owner}</td>`}
    <td class="wide"><${When} at=${experiment.created_at} /></td>
  </tr>`;
}

/** The points of a sweep that match, in their order; read again when `turn` changes. */
function usePoints(sweep, path, isOpen, turn) {
  const read = async () => (isOpen ? get(path(sweep.id)) : null);
  const { data } = useLive(read, [path(sweep.id), isOpen, turn], (points) => !points || points.items.every((one) => one.terminal));
  return isOpen ? data?.items : null;
}

/** A sweep is one line with its best result, which opens to the points that were run for it. */
function SweepRows({ sweep, isOpenable, at, columns, pointsPath, turn, selected, select }) {
  const [open, setOpen] = useState(false);
  const points = usePoints(sweep, pointsPath, open, turn);
  const title = titleOf(sweep);
  const before = columns.fields.length + Number(columns.family);
  const hasAll = points?.length > 0 && points.every((one) => selected.has(one.id));
  const selectAll = (event) => points.forEach((one) => select(one, event.target.checked));
  return html`<tr>
    <td class="check">
      ${isOpenable && html`<button type="button" class="opener muted" aria-label=${`Points of ${title}`} aria-expanded=${open} onClick=${() => setOpen(!open)}>${open ? "▾" : "▸"}</button>`}
      ${points && html`<input type="checkbox" checked=${hasAll} aria-label=${`Select the points of ${title}`} onChange=${selectAll} />`}
    </td>
    <th scope="row">
      <a class=${sweep.name ? "name" : "name muted"} href=${`/sweeps/${sweep.id}`}>${title}</a>
      <div class="small"><span class="muted">${sweep.points === 1 ? "1 point" : `${sweep.points} points`} · ${sweep.fields.map(fieldName).join(", ")}</span> <${Tags} of=${sweep.tags} /></div>
    </th>
    <td><${Status} of=${sweep.status} />${sweep.best && columns.result && html`<div class="small only-small"><${BestPoint} of=${sweep.best} /></div>`}
      ${sweep.status !== "succeeded" && html`<${Counts} sweep=${sweep} />`}</td>
    ${before > 0 && html`<td class="wide" colspan=${before}></td>`}
    ${columns.result && html`<td class="result-cell wide">${sweep.best && html`<${BestPoint} of=${sweep.best} />`}</td>`}
    ${columns.metrics.length > 0 && html`<td class="wide" colspan=${columns.metrics.length}></td>`}
    ${columns.owner && html`<td class="wide">${sweep.owner}</td>`}
    <td class="wide"><${When} at=${at} /></td>
  </tr>
  ${points?.map((one) => html`<${Row} key=${one.id} experiment=${one} sweep=${sweep} columns=${columns} selected=${selected} select=${select} />`)}
  ${points?.length === MAX_POINTS && html`<tr class="point"><td /><td colspan="12" class="small">The first ${MAX_POINTS}: <a href=${`/sweeps/${sweep.id}`}>all points</a></td></tr>`}`;
}

function Rows({ items, sweeps, columns, selected, select, order, onOrder, pointsPath, turn }) {
  const [by, way = "asc"] = order.split(" ");
  const headerOf = (field) => ({ order: field === by ? way : null, onSort: (next) => onOrder(`${field} ${next}`) });
  const experiments = items.filter((one) => !sweeps.has(one.sweep));
  const all = experiments.length > 0 && experiments.every((one) => selected.has(one.id));
  const selectAll = (event) => experiments.forEach((one) => select(one, event.target.checked));
  return html`<${Scroll} label="Experiments">
    <table class="experiments">
      <thead><tr>
        <th class="check">
          <input type="checkbox" checked=${all} onChange=${selectAll} aria-label="Select all of this page" />
        </th>
        <${SortHeader} ...${headerOf("name")}>Name<//>
        <th scope="col">Status</th>
        ${columns.family && html`<th scope="col" class="wide">Family</th>`}
        ${columns.fields.map((path) => html`<th key=${path} scope="col" class="wide" title=${path}>${path.split(".").pop()}</th>`)}
        ${columns.result && html`<th scope="col" class="number wide">Result</th>`}
        ${columns.metrics.map((name) => html`<${SortHeader} key=${name} ...${headerOf(`metrics.${name}`)} number wide><span title=${name}>${metricName(name)}</span><//>`)}
        ${columns.owner && html`<th scope="col" class="wide">Owner</th>`}
        <${SortHeader} ...${headerOf("created")} first="desc" wide>Created<//>
      </tr></thead>
      <tbody>
        ${items.map((one) => sweeps.has(one.sweep)
          ? html`<${SweepRows} key=${one.sweep} sweep=${sweeps.get(one.sweep)} isOpenable=${"status" in one} at=${one.created_at} columns=${columns} pointsPath=${pointsPath} turn=${turn} selected=${selected} select=${select} />`
          : html`<${Row} key=${one.id} experiment=${one} columns=${columns} selected=${selected} select=${select} />`)}
      </tbody>
    </table>
  <//>`;
}

function Nothing({ filtered, may }) {
  if (filtered) {
    return html`<${Empty} title="No experiment matches">
      <a class="button" href="/">Show all of mine</a>
    <//>`;
  }
  return html`<${Empty} title="No experiments yet">
    ${may("submit") && html`<p>Begin with your own data, with texts, or with a table of the paper.</p>
      <a class="button primary" href="/new">New experiment</a>`}
  <//>`;
}

/** The experiments that are chosen, by their ids; those of other pages too. */
function useSelection() {
  const [selected, setSelected] = useState(new Map());
  function select(experiment, on) {
    setSelected((last) => {
      const next = new Map(last);
      if (on) next.set(experiment.id, experiment);
      else next.delete(experiment.id);
      return next;
    });
  }
  return [selected, select, () => setSelected(new Map())];
}

/** A page of the list and, if it is folded, the sweeps on it by their ids. A sweep whose points had all been computed before has a line of its own. */
async function readPage(path, whose) {
  const { items, sweeps: ids, next_cursor } = await get(path);
  const sweeps = ids.length ? (await get(withQuery("/v1/sweeps", { whose, id: ids, limit: ids.length }))).items : [];
  const alone = sweeps.filter(({ id }) => !items.some(({ sweep }) => sweep === id));
  return { items: merged(items, alone.map(({ id, created_at }) => ({ id, sweep: id, created_at, summary: [] }))), sweeps: new Map(sweeps.map((one) => [one.id, one])), next_cursor };
}

/** The lines in their order, each sweep without runs before the first older line, or the first newer one of an ascending list. */
function merged(items, alone) {
  const sign = items.length > 1 && items[0].created_at < items.at(-1).created_at ? 1 : -1;
  return alone.length ? [...items, ...alone].sort((a, b) => sign * a.created_at.localeCompare(b.created_at)) : items;
}

const ofSweep = (filter, id) => [filter && `(${filter})`, `sweep = "${id}"`].filter(Boolean).join(" and ");

export default function Experiments({ me, may }) {
  const [query, change] = useQuery();
  const [chosen, setChosen] = useState(chosenColumns);
  const [selected, select, clear] = useSelection();
  const [turn, setTurn] = useState(0); // grows with each change of selected experiments
  const asked = Object.fromEntries(ASKED.map((name) => [name, query.getAll(name)]));
  const fields = chosen.filter(isField);
  const metrics = chosen.filter((name) => !isField(name) && name !== RESULT);
  const order = query.get("order_by") || "created desc";
  const folded = order.startsWith("created ");
  const listed = { ...asked, summary: true, metrics, fields: fields.length ? "full" : null };
  const path = withQuery("/v1/experiments", { ...listed, limit: PAGE, folded: folded || null });
  const { data, error, refresh } = useLive(() => readPage(path, query.get("whose")), [path]);
  const pointsPath = (sweep) => withQuery("/v1/experiments", { ...listed, filter: ofSweep(query.get("filter"), sweep), order_by: "created asc", cursor: null, limit: MAX_POINTS });
  const items = data?.items;
  const hasFamilies = new Set(data?.items.map(({ family }) => family).filter(Boolean)).size > 1;
  const columns = { result: chosen.includes(RESULT), metrics, fields, family: hasFamilies, owner: (query.get("whose") ?? "mine") !== "mine" };
  const filtered = ASKED.some((name) => query.has(name));
  useEffect(() => scrollTo(0, 0), [query.get("cursor")]);

  return html`<div class="stack">
    <h1>Experiments</h1>
    <${SavedViews} query=${query} />
    <${Filters} key=${withQuery("", { ...asked, q: null, cursor: null })} query=${query} change=${change} error=${error} me=${me}
      chosen=${chosen} setChosen=${setChosen} metrics=${[...new Set([...metrics, ...resultNames(items ?? [])])]} example=${items?.find(({ status }) => status)?.id} />
    ${error && !error.at("/query/filter") && html`<${Problem} error=${error} />`}
    ${!data && !error && html`<${Loading} />`}
    ${data && html`<div class="card flush">
      ${items.length
        ? html`<${Rows} items=${items} sweeps=${data.sweeps} pointsPath=${pointsPath} turn=${turn} columns=${columns} selected=${selected} select=${select}
            order=${order} onOrder=${(order) => change({ order_by: order, cursor: null })} />`
        : html`<${Nothing} filtered=${filtered} may=${may} />`}
    </div>`}
    ${data && html`<nav class="row" aria-label="Pages">
      ${query.has("cursor") && html`<button type="button" onClick=${() => change({ cursor: null })}>First page</button>`}
      ${data.next_cursor && html`<button type="button" onClick=${() => change({ cursor: data.next_cursor })}>Next page</button>`}
    </nav>`}
    <${Selection} selected=${selected} clear=${clear} onDone=${() => [refresh(), setTurn((last) => last + 1)]} />
  </div>`;
}
