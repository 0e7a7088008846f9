// The list of experiments. What it shows is in its address: filters, order, page.

import { html, useEffect, useState } from "../vendor/preact-htm.js";
import { get, withQuery } from "../api.js";
import { Filters, chosenColumns, isField, resultColumns } from "../filters.js";
import { cut, labelText, leaves, plain, titleOf, withError } from "../format.js";
import { useLive } from "../live.js";
import { aboutMean } from "../means.js";
import { Empty, Loading, Problem, Progress, Scroll, Status, Tags, When, useQuery } from "../parts.js";
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
    ${mean.tokens && mean.value !== null && html` <span class="muted small">× ${mean.tokens} tokens</span>`}
    ${mean.count > 1 && mean.value !== null && html` <span class="muted small">×${mean.count}</span>`}
    ${labelText(mean.labels) && html` <span class="muted small">${labelText(mean.labels)}</span>`}
  </div>`)}</td>`;
}

/** The first metric that an experiment has, below its status, for screens without room for columns. */
function FirstMetric({ experiment, names }) {
  const mean = names.map((name) => experiment.summary.find((one) => one.name === name)).find(Boolean);
  if (!mean) return null;
  const tokens = mean.tokens && mean.value !== null ? ` × ${mean.tokens} tokens` : "";
  return html`<div class="small only-small">${mean.name} ${withError(mean.value, mean.std_err)}${tokens}</div>`;
}

const FIELD_CHARACTERS = 30;

/** The value of a field of the spec; a dash if the spec has no such field. */
function Field({ experiment, path }) {
  const found = leaves(experiment.spec ?? {}, "spec").find(([name]) => name === path);
  const text = found ? plain(found[1]) : "–";
  return html`<td class="mono wide" title=${text}>${cut(text, FIELD_CHARACTERS)}</td>`;
}

function Row({ experiment, columns, selected, onSelect }) {
  const { id, status, queue, failure } = experiment;
  const title = titleOf(experiment);
  return html`<tr>
    <td class="check">
      <input type="checkbox" checked=${selected} aria-label=${`Select ${title}`}
        onChange=${(event) => onSelect(experiment, event.target.checked)} />
    </td>
    <th scope="row">
      <a class=${experiment.name ? "name" : "name muted"} href=${`/experiments/${id}`}>${title}</a>
      <div class="small"><${Tags} of=${experiment.tags} /></div>
    </th>
    <td>
      <${Status} of=${status} />
      ${columns.metrics.length > 0 && html`<${FirstMetric} experiment=${experiment} names=${columns.metrics} />`}
      ${status === "running" && html`<${Progress} experiment=${experiment} label=${`Progress of ${title}`} />`}
      ${queue && html`<div class="small muted">${queue.reason}</div>`}
      ${failure && html`<div class="small bad-text wrap">${failure.message.slice(0, 120)}</div>`}
    </td>
    ${columns.family && html`<td class="wide">${experiment.family}</td>`}
    ${columns.fields.map((path) => html`<${Field} key=${path} experiment=${experiment} path=${path} />`)}
    ${columns.metrics.map((name) => html`<${Metric} key=${name} experiment=${experiment} name=${name} />`)}
    ${columns.owner && html`<td class="wide">${experiment.owner}</td>`}
    <td class="wide"><${When} at=${experiment.created_at} /></td>
  </tr>`;
}

function Rows({ items, columns, selected, select, order, onOrder }) {
  const [by, way = "asc"] = order.split(" ");
  const headerOf = (field) => ({ order: field === by ? way : null, onSort: (next) => onOrder(`${field} ${next}`) });
  const all = items.every((one) => selected.has(one.id));
  const selectAll = (event) => items.forEach((one) => select(one, event.target.checked));
  return html`<${Scroll} label="Experiments">
    <table>
      <thead><tr>
        <th class="check">
          <input type="checkbox" checked=${all} onChange=${selectAll} aria-label="Select all of this page" />
        </th>
        <${SortHeader} ...${headerOf("name")}>Name<//>
        <th scope="col">Status</th>
        ${columns.family && html`<th scope="col" class="wide">Family</th>`}
        ${columns.fields.map((path) => html`<th key=${path} scope="col" class="wide" title=${path}>${path.split(".").pop()}</th>`)}
        ${columns.metrics.map((name) => html`<${SortHeader} key=${name} ...${headerOf(`metrics.${name}`)} number wide>${name}<//>`)}
        ${columns.owner && html`<th scope="col" class="wide">Owner</th>`}
        <${SortHeader} ...${headerOf("created")} first="desc" wide>Created<//>
      </tr></thead>
      <tbody>
        ${items.map((one) => html`<${Row} key=${one.id} experiment=${one} columns=${columns}
          selected=${selected.has(one.id)} onSelect=${select} />`)}
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
    ${may("submit") && html`<p>Begin with one of the paper's, or with a spec of your own.</p>
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

export default function Experiments({ me, may }) {
  const [query, change] = useQuery();
  const [chosen, setChosen] = useState(chosenColumns);
  const [selected, select, clear] = useSelection();
  const asked = Object.fromEntries(ASKED.map((name) => [name, query.getAll(name)]));
  const fields = (chosen ?? []).filter(isField);
  const asksMetrics = (chosen ?? []).filter((name) => !isField(name));
  const path = withQuery("/v1/experiments", { ...asked, summary: true, metrics: asksMetrics, limit: PAGE, fields: fields.length ? "full" : null });
  const { data, error, refresh } = useLive(() => get(path), [path]);
  const items = data?.items;
  const metrics = chosen ? asksMetrics : resultColumns(items ?? []);
  const hasFamilies = new Set(data?.items.map(({ family }) => family)).size > 1;
  const columns = { metrics, fields, family: hasFamilies, owner: (query.get("whose") ?? "mine") !== "mine" };
  const filtered = ASKED.some((name) => query.has(name));
  useEffect(() => scrollTo(0, 0), [query.get("cursor")]);

  return html`<div class="stack">
    <h1>Experiments</h1>
    <${SavedViews} query=${query} />
    <${Filters} key=${query.toString()} query=${query} change=${change} error=${error} me=${me}
      chosen=${chosen ?? metrics} setChosen=${setChosen} example=${data?.items[0]?.id} />
    ${error && !error.at("/query/filter") && html`<${Problem} error=${error} />`}
    ${!data && !error && html`<${Loading} />`}
    ${data && html`<div class="card flush">
      ${items.length
        ? html`<${Rows} items=${items} columns=${columns} selected=${selected} select=${select}
            order=${query.get("order_by") ?? "created desc"} onOrder=${(order) => change({ order_by: order, cursor: null })} />`
        : html`<${Nothing} filtered=${filtered} may=${may} />`}
    </div>`}
    ${data && html`<nav class="row" aria-label="Pages">
      ${query.has("cursor") && html`<button type="button" onClick=${() => change({ cursor: null })}>First page</button>`}
      ${data.next_cursor && html`<button type="button" onClick=${() => change({ cursor: data.next_cursor })}>Next page</button>`}
    </nav>`}
    <${Selection} selected=${selected} clear=${clear} onDone=${refresh} />
  </div>`;
}
