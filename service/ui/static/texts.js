// The scores of each text of a run. The service sorts the table, and the page has some rows of it at a time.

import { html, useState } from "./vendor/preact-htm.js";
import { answerTo, get, withQuery } from "./api.js";
import { DASH, cut, number, plain, withError } from "./format.js";
import { useLive } from "./live.js";
import { MutationMap } from "./mutation_map.js";
import { Loading, Problem, Scroll } from "./parts.js";
import { SortHeader } from "./sorting.js";
import { Coloured, Legend, Tokens } from "./tokens.js";

const PAGE = 20;
const CSV_PAGE = 10_000;
const MAX_SHOWN = 120; // characters of a text in a row; an open row has all
const MAX_COLOURED = 3000; // tokens of a page whose rows are coloured
const PER_TOKEN = "_per_token";
const COUNTS = ["tokens", "unknown"]; // columns that a phone has no room for

/** Columns of numbers that a row shows, by the spec's `evaluate.texts` and the names of the table's columns. */
export function columnsOf({ scores, group_size: size, group_column: groups, label_column: label, wild_type: wildType }, names = []) {
  const hasGroups = Boolean(size ?? groups);
  const counts = ["tokens", ...(names.includes("unknown") ? ["unknown"] : [])]; // tables of earlier versions lack it
  const perToken = wildType || scores[0] === "conditional" ? [] : [`${scores[0]}${PER_TOKEN}`]; // which do not score all tokens
  return { hasGroups, numbers: [...scores, ...perToken, ...(hasGroups ? ["difference"] : []), ...(label ? ["label"] : []), ...counts] };
}

/** The other columns, which an open row shows, as names and texts. */
export function factsOf(row, numbers) {
  const shown = ["row", "text", "group", ...numbers, ...numbers.map((name) => `${name}_std_err`)];
  return Object.entries(row)
    .filter(([name, value]) => !shown.includes(name) && value !== null)
    .map(([name, value]) => [name, typeof value === "number" ? number(value, 6) : plain(value)]);
}

/** A row with the score per token, which the table has no column for. */
export function withPerToken(row, numbers) {
  const added = numbers.filter((name) => name.endsWith(PER_TOKEN)).map((name) => {
    const score = row[name.slice(0, -PER_TOKEN.length)] ?? null;
    return [name, score !== null && row.tokens > 0 ? score / row.tokens : null];
  });
  return { ...row, ...Object.fromEntries(added) };
}

/** How the API's `order` sorts by a column: "asc", "desc" or null. */
export function directionOf(order, name) {
  if (order === name) return "asc";
  return order === `-${name}` ? "desc" : null;
}

/** All pages of a table as one CSV, with the header of the first. */
async function wholeCsv(path, { order, group }) {
  const parts = [];
  let offset = 0;
  while (offset !== null) {
    const answer = await answerTo("GET", withQuery(path, { order, group, offset, limit: CSV_PAGE, format: "csv" }));
    const text = await answer.text();
    parts.push(parts.length ? text.slice(text.indexOf("\n") + 1) : text);
    offset = JSON.parse(answer.headers.get("MPT-Next-Offset"));
  }
  return new Blob(parts, { type: "text/csv" });
}

function save(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href));
}

/** A page holds some megabytes at most, so one link cannot download a long table. */
function Csv({ path, view, name }) {
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState(null);
  async function download() {
    setBusy(true);
    await wholeCsv(path, view).then((blob) => [save(blob, name), setError(null)], setError);
    setBusy(false);
  }
  return html`<button type="button" class="quiet" disabled=${busy} onClick=${download}>CSV</button><${Problem} error=${error} />`;
}

function GroupFilter({ group, onGroup }) {
  const [name, setName] = useState(group ?? "");
  function show(event) {
    event.preventDefault();
    onGroup(name || null);
  }
  return html`<form class="row bar" aria-label="Filter of groups" onSubmit=${show}>
    <label for="group">Group</label>
    <input id="group" class="short" maxlength="1000" value=${name} onInput=${(event) => setName(event.target.value)} />
    <button type="submit">Show</button>
    ${group !== null && html`<button type="button" onClick=${() => onGroup(null)}>All groups</button>`}
  </form>`;
}

/** `place` is the query of the page that has only this row. */
function ByToken({ path, place, text, scores, hasLegend }) {
  const url = withQuery(path, { ...place, limit: 1, columns: "by_token" });
  const { data, error } = useLive(() => get(url), [url], () => true);
  const tokens = data?.items[0].by_token;
  const known = tokens?.length ? scores.filter((score) => score in tokens[0]) : [];
  const [chosen, setChosen] = useState(null);
  const score = chosen ?? known[0];
  if (error) return html`<${Problem} error=${error} />`;
  if (!data) return html`<${Loading} />`;
  if (!score) return html`<p class="whole">${text}</p>`;
  return html`
    ${known.length > 1 && html`<div class="chips" role="group" aria-label="Colour by">
      ${known.map((one) => html`<label key=${one}><input type="radio" name=${url} checked=${one === score} onChange=${() => setChosen(one)} />${one}</label>`)}
    </div>`}
    <${Tokens} key=${score} text=${text} tokens=${tokens} score=${score} hasLegend=${hasLegend} />`;
}

/** A column in few words, because the texts need the room: "pll", "per token". */
const headingOf = (name) => (name.endsWith(PER_TOKEN) ? "per token" : name.replaceAll("_", " "));

/** Whether an open row shows more of a text than its row: its tokens, the rest of it, or facts beside its length. */
const hasMore = (row, spec, facts) => spec.per_token || [...(row.text ?? "")].length > MAX_SHOWN || facts.some(([name]) => !["words", "characters"].includes(name));

/** A number of a row with its error, or a score per token to two decimals. */
const written = (row, name) => (name.endsWith(PER_TOKEN) && row[name] !== null ? row[name].toFixed(2).replace("-", "−") : withError(row[name], row[`${name}_std_err`]));

function Row({ row, tokens, columns, spec, path, place, onGroup }) {
  const [open, setOpen] = useState(false);
  const id = `text-${row.row}`;
  const facts = factsOf(row, columns.numbers);
  const { numbers, hasGroups } = columns;
  return html`
    <tr>
      <td class="number muted wide">${row.row}</td>
      <th scope="row">${hasMore(row, spec, facts)
        ? html`<button type="button" class="opener" aria-expanded=${open} aria-controls=${open ? id : null} onClick=${() => setOpen(!open)}>
          <span class="muted" aria-hidden="true">${open ? "▾" : "▸"}</span><${Beginning} row=${row} tokens=${tokens} scores=${spec.scores} />
        </button>`
        : html`<${Beginning} row=${row} tokens=${tokens} scores=${spec.scores} />`}</th>
      ${numbers.map((name) => html`<td key=${name} class=${COUNTS.includes(name) ? "number wide" : "number"} title=${row[name] === null ? row.reason : null}>${written(row, name)}</td>`)}
      ${hasGroups && html`<td>${row.group === null ? DASH : html`<button type="button" class="opener link" title="Show this group" onClick=${() => onGroup(row.group)}>${row.group}</button>`}</td>`}
    </tr>
    ${open && html`<tr class="opened" id=${id}><td colspan=${numbers.length + (hasGroups ? 3 : 2)}><div class="stack">
      ${spec.per_token ? html`<${ByToken} path=${path} place=${place} text=${row.text} scores=${spec.scores} hasLegend=${!tokens} />` : html`<p class="whole">${row.text}</p>`}
      <dl class="facts small">${facts.map(([name, value]) => html`<dt>${name}</dt><dd>${value}</dd>`)}</dl>
    </div></td></tr>`}`;
}

/** The beginning of a text, its tokens coloured by the first score that they have. */
function Beginning({ row, tokens, scores }) {
  if (!row.text) return html`<span><em class="muted">no text</em></span>`;
  const score = tokens?.length && scores.find((one) => one in tokens[0]);
  const shown = score ? html`<${Coloured} text=${row.text} tokens=${tokens} score=${score} count=${MAX_SHOWN} />` : cut(row.text, MAX_SHOWN);
  return html`<span class=${/\s/.test(row.text) ? "" : "mono wrap"}>${shown}</span>`;
}

/** A page of rows and, if its texts are short enough, their tokens. */
async function read(path, wanted, spec, url) {
  const page = await get(url);
  const numbers = columnsOf(spec, page.columns).numbers;
  const count = page.items.reduce((total, row) => total + (row.tokens ?? 0), 0);
  const isColoured = spec.per_token && count <= MAX_COLOURED;
  const coloured = isColoured ? await get(withQuery(path, { ...wanted, limit: PAGE, columns: "by_token" })) : null;
  const items = page.items.map((row, i) => ({ row: withPerToken(row, numbers), tokens: coloured?.items[i]?.by_token }));
  return { ...page, items, wanted, url };
}

function Pages({ data, view, setView }) {
  const { offsets } = view;
  const first = data.wanted.offset;
  return html`<div class="row spread bar foot">
    <span class="muted small" role="status">${data.items.length ? `Texts ${first + 1} to ${first + data.items.length} of ${data.total}` : "No text is in this group"}</span>
    <nav class="row" aria-label="Pages of texts">
      ${offsets.length > 1 && html`<button type="button" onClick=${() => setView({ ...view, offsets: offsets.slice(0, -1) })}>Previous texts</button>`}
      ${data.next_offset !== null && html`<button type="button" onClick=${() => setView({ ...view, offsets: [...offsets, data.next_offset] })}>Next texts</button>`}
    </nav>
  </div>`;
}

function Table({ id, spec }) {
  const start = { order: columnsOf(spec).hasGroups ? "row" : spec.scores[0], group: null, offsets: [0] };
  const [view, setView] = useState(start);
  const path = `/v1/experiments/${id}/texts`;
  const wanted = { order: view.order, group: view.group, offset: view.offsets.at(-1) };
  const url = withQuery(path, { ...wanted, limit: PAGE });
  const { data, error } = useLive(() => read(path, wanted, spec, url), [url], () => true);
  const columns = columnsOf(spec, data?.columns);
  const onGroup = (group) => setView({ ...start, group });
  const headerOf = (name) => ({ order: directionOf(view.order, name), onSort: (next) => setView({ ...view, order: next === "asc" ? name : `-${name}`, offsets: [0] }) });
  return html`<section class="card flush texts" aria-labelledby="texts">
    <div class="row spread bar"><h2 id="texts">Texts</h2><${Csv} path=${path} view=${view} name=${`${id}-texts.csv`} /></div>
    <p class="bar muted small">${spec.scores.length > 1 ? "Scores are" : "The score is"} summed over the ${spec.wild_type ? "changes of a mutation" : "tokens of a text"}, in nats (<a href="/help/texts">more</a>).${columns.hasGroups && ` The difference is that of ${spec.scores[0]} to the first text of the group.`}</p>
    ${spec.wild_type && html`<${MutationMap} path=${path} score=${spec.scores[0]} />`}
    ${columns.hasGroups && html`<${GroupFilter} key=${view.group} group=${view.group} onGroup=${onGroup} />`}
    <${Problem} error=${error} />
    ${!data && !error && html`<${Loading} />`}
    ${data?.items.some(({ tokens }) => tokens) && html`<div class="bar"><${Legend} /></div>`}
    ${data && html`<${Scroll} label="Table of texts"><table>
      <thead><tr>
        <${SortHeader} ...${headerOf("row")} number wide first="asc">Row<//>
        <th scope="col">Text</th>
        ${columns.numbers.map((name) => html`<${SortHeader} key=${name} ...${headerOf(name)} number wide=${COUNTS.includes(name)}><span title=${name}>${headingOf(name)}</span><//>`)}
        ${columns.hasGroups && html`<th scope="col">Group</th>`}
      </tr></thead>
      <tbody>${data.items.map(({ row, tokens }, i) => html`<${Row} key=${`${data.url} ${row.row}`} row=${row} tokens=${tokens} columns=${columns} spec=${spec}
        path=${path} place=${{ ...data.wanted, offset: data.wanted.offset + i }} onGroup=${onGroup} />`)}</tbody>
    </table><//>
    <${Pages} data=${data} view=${view} setView=${setView} />`}
  </section>`;
}

/** Nothing, unless the spec asks for scores of texts and the run has ended well: it writes the table at its end. */
export function Texts({ experiment }) {
  const spec = experiment.spec.evaluate?.texts;
  return spec && experiment.status === "succeeded" ? html`<${Table} id=${experiment.id} spec=${spec} />` : null;
}
