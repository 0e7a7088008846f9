// The filters of the list of experiments.

import { html, useRef, useState } from "./vendor/preact-htm.js";
import { get } from "./api.js";
import { leaves } from "./format.js";
import { metricName } from "./names.js";
import { useProjects } from "./projects.js";
import { resultsOf } from "./result.js";

const ORDERS = [
  ["", "Newest first"],
  ["created asc", "Oldest first"],
  ["finished desc", "Last finished first"],
  ["name asc", "By name"],
];
const WORDS = [
  "status = failed",
  "metrics.lml > -61",
  "metrics.mpt < -60 and status = succeeded",
  "spec.model.latent_dim in (1, 2)",
  'tag = "draft"',
  "not pinned = true",
  "created > 2026-01-31",
];
const COLUMNS = "columns";
const PAUSE_MS = 250; // after which a search begins while one types

const MAX_COLUMNS = 12;
const MAX_RESULTS = 4;
const OFFERED = ["result", "lml", "mpt", "lml_heldout", "mpt_heldout", "area", "pll", "spec.model.latent_dim", "spec.seeds"];

/** The column of each experiment's own results, whatever their names are. */
export const RESULT = "result";

/** What has a column, as it was last chosen in this browser: the result, metrics, and fields of the spec by their paths. */
export function chosenColumns() {
  return JSON.parse(localStorage.getItem(COLUMNS) ?? "null") ?? [RESULT];
}

/** The metrics by which a page can be ordered: the first two results of each of its experiments, the most frequent first. */
export function resultNames(items) {
  const counts = new Map();
  for (const { summary } of items) {
    const names = [...new Set(resultsOf(summary).map(({ name }) => name))].slice(0, 2);
    names.forEach((name) => counts.set(name, (counts.get(name) ?? 0) + 1));
  }
  const found = [...counts].sort(([, a], [, b]) => b - a).map(([name]) => name).slice(0, MAX_RESULTS);
  return found.length ? found : ["lml", "mpt"];
}

export const isField = (name) => name.startsWith("spec.");

/** A box for each column; what is typed is offered from the metrics and fields of an experiment of the list. */
function Columns({ chosen, set, example }) {
  const [offered, setOffered] = useState(OFFERED);
  function keep(names) {
    const some = [...new Set(names)].slice(0, MAX_COLUMNS);
    localStorage.setItem(COLUMNS, JSON.stringify(some));
    set(some);
  }
  async function offer() {
    if (!example || offered !== OFFERED) return;
    const { spec, metrics } = await get(`/v1/experiments/${example}`);
    setOffered([RESULT, ...new Set(metrics.map(({ name }) => name)), ...leaves(spec).map(([path]) => `spec.${path}`)]);
  }
  function add(event) {
    const names = event.target.value.split(/[\s,]+/).filter(Boolean);
    if (names.length) keep([...chosen, ...names]);
    event.target.value = "";
  }
  function onKey(event) {
    if (event.key !== "Enter") return;
    event.preventDefault(); // which would search
    add(event);
  }
  return html`<fieldset>
    <legend>Columns</legend>
    <div class="chips">
      ${chosen.map((name) => html`<label key=${name}>
        <input type="checkbox" checked onChange=${() => keep(chosen.filter((one) => one !== name))} />
        <span class="mono">${name}</span>
      </label>`)}
      <input id="columns" class="mono" list="columns-offered" aria-label="Add a column" placeholder="Add a metric, or spec.model.latent_dim"
        autocomplete="off" spellcheck="false" onFocus=${offer} onChange=${add} onKeyDown=${onKey} />
      <datalist id="columns-offered">${offered.filter((one) => !chosen.includes(one)).map((one) => html`<option value=${one} />`)}</datalist>
    </div>
  </fieldset>`;
}

/** What is wrong with the filter, with a mark below the column that the service names. */
function FilterError({ text, error }) {
  const said = error?.at("/query/filter");
  if (!said) return null;
  const column = Number(/column (\d+)/.exec(said)?.[1]);
  return html`<div id="filter-error" class="bad-text small" role="alert">
    ${column > 0 && html`<pre>${`${text}\n${" ".repeat(column - 1)}^`}</pre>`}${said}
  </div>`;
}

function Choice({ name, label, values, query, change }) {
  const chosen = query.getAll(name);
  const toggle = (value, on) =>
    change({ [name]: on ? [...chosen, value] : chosen.filter((one) => one !== value), cursor: null });
  return html`<fieldset>
    <legend>${label}</legend>
    <div class="chips">
      ${values.map((value) => html`<label>
        <input type="checkbox" checked=${chosen.includes(value)} onChange=${(event) => toggle(value, event.target.checked)} />
        ${value}
      </label>`)}
    </div>
  </fieldset>`;
}

function Whose({ query, change, me }) {
  const options = [["", "Mine"], ["lab", "Shared with the lab"]];
  if (useProjects(me).length) options.splice(1, 0, ["project", "Shared with my projects"]);
  if (me.scopes.includes("admin")) options.push(["all", "Everyone's"]);
  return html`<div class="field">
    <label for="whose">Whose</label>
    <select id="whose" onChange=${(event) => change({ whose: event.target.value, cursor: null })}>
      ${options.map(([value, text]) => html`<option value=${value} selected=${(query.get("whose") ?? "") === value}>${text}</option>`)}
    </select>
  </div>`;
}

function Order({ query, change, metrics }) {
  const byMetric = metrics.flatMap((name) => [
    [`metrics.${name} desc`, `Highest ${metricName(name)}`],
    [`metrics.${name} asc`, `Lowest ${metricName(name)}`],
  ]);
  return html`<div class="field">
    <label for="order">Order</label>
    <select id="order" onChange=${(event) => change({ order_by: event.target.value, cursor: null })}>
      ${[...ORDERS, ...byMetric].map(([value, text]) => html`<option value=${value} selected=${(query.get("order_by") ?? "") === value}>${text}</option>`)}
    </select>
  </div>`;
}

export function Filters({ query, change, error, me, chosen, setChosen, metrics, example }) {
  const [text, setText] = useState(query.get("filter") ?? "");
  const timer = useRef(null);
  const wrong = error?.at("/query/filter");
  const { statuses, families } = document.body.dataset;
  function onSubmit(event) {
    event.preventDefault();
    const form = new FormData(event.target);
    clearTimeout(timer.current);
    change({ q: form.get("q").trim(), filter: form.get("filter").trim(), cursor: null });
  }
  function onSearch(event) {
    const q = event.target.value.trim();
    clearTimeout(timer.current);
    timer.current = setTimeout(() => change({ q, cursor: null }, { isStep: false }), PAUSE_MS);
  }
  return html`<form class="stack" role="search" onSubmit=${onSubmit}>
    <div class="row fields end">
      <div class="field grow">
        <label for="q">Search</label>
        <input id="q" name="q" type="search" placeholder="Words in name, note, tags, id" defaultValue=${query.get("q") ?? ""} onInput=${onSearch} />
      </div>
      <${Whose} query=${query} change=${change} me=${me} />
      <${Order} query=${query} change=${change} metrics=${metrics} />
      ${[...query.keys()].length > 0 && html`<a class="button" href="/">Reset</a>`}
    </div>
    <details open=${query.has("filter") || query.has("family") || query.has("status")}>
      <summary>Filters and columns</summary>
      <div class="stack inset">
        <${Choice} name="status" label="Status" values=${statuses.split(" ")} query=${query} change=${change} />
        <${Choice} name="family" label="Family" values=${families.split(" ")} query=${query} change=${change} />
        <div class="field">
          <label for="filter">Filter</label>
          <div class="row"><div class="grow"><input id="filter" name="filter" class="mono" list="filter-words" value=${text} spellcheck="false"
            placeholder="metrics.lml > -61 and spec.model.latent_dim in (1, 2)" autocomplete="off"
            aria-invalid=${Boolean(wrong)} aria-describedby=${wrong ? "filter-error" : null}
            onInput=${(event) => setText(event.target.value)} /></div><button>Apply</button></div>
          <datalist id="filter-words">${WORDS.map((word) => html`<option value=${word} />`)}</datalist>
          <${FilterError} text=${text} error=${error} />
        </div>
        <${Columns} chosen=${chosen} set=${setChosen} example=${example} />
      </div>
    </details>
  </form>`;
}
