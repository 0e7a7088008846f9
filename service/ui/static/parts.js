// The pieces that pages are made of.

import { html, useEffect, useRef, useState } from "./vendor/preact-htm.js";
import { ago, dateTime, duration, secondsLeft } from "./format.js";

export function Status({ of }) {
  return html`<span class="status ${of}">${of}</span>`;
}

/** When it was, as long ago. */
export function When({ at }) {
  if (!at) return "–";
  return html`<time datetime=${at} title=${dateTime(at, "medium")}>${ago(at)}</time>`;
}

/** How far a run is, and how long it has to go. */
export function Progress({ experiment, label }) {
  const { progress } = experiment;
  if (!progress?.total || experiment.terminal) return null;
  const { stage } = progress;
  const left = secondsLeft(experiment);
  const percent = Math.floor((100 * progress.done) / progress.total);
  return html`<div>
    <progress value=${progress.done} max=${progress.total} aria-label=${label ?? "progress"} />
    <div class="small muted">
      ${percent} %${left !== null && html`, about ${duration(left)} left`}
      ${stage && html`<br />${stage.name}: ${stage.done} of ${stage.total} ${stage.unit}`}
    </div>
  </div>`;
}

/** A text with its parts between backticks as code. */
export const withCode = (text) => text.split("`").map((part, i) => (i % 2 ? html`<code>${part}</code>` : part));

/** What the service refused, or what else went wrong, where the reader is told. */
export function Problem({ error }) {
  if (!error) return null;
  const rest = error.errors?.length > 1 ? error.errors : [];
  const said = rest.length ? "The service refused this:" : error.message || "The service does not answer.";
  return html`<div class="notice error" role="alert">
    ${withCode(said)}
    ${rest.length > 0 && html`<ul>
      ${rest.map((one) => html`<li><code>${one.pointer}</code>: ${withCode(one.detail)}</li>`)}
    </ul>`}
  </div>`;
}

const ABSENT = {
  403: ["You may not see this", "Ask its owner to share it, or an admin for a key that may."],
  404: ["There is nothing here for you", "It was deleted, its owner does not share it with you, or the address is mistyped."],
};

/** What stands in place of a page that there is nothing to show of. */
export function Missing({ error }) {
  const [title, why] = ABSENT[error.status] ?? ["This did not work"];
  return html`<div class="card empty">
    <h1>${title}</h1>
    ${why && html`<p>${why}</p>`}
    <p class=${why ? "small" : ""}>${withCode(error.message)}</p>
    <a class="button" href="/">To the experiments</a>
  </div>`;
}

export function Loading() {
  return html`<div class="skeleton" role="status"><span class="unseen">Loading…</span></div>`;
}

export function Empty({ title, children }) {
  return html`<div class="empty"><h2>${title}</h2>${children}</div>`;
}

/** A table that scrolls by itself where it is wider than the page. */
export function Scroll({ label, children }) {
  return html`<div class="scroll" role="region" aria-label=${label} tabindex="0">${children}</div>`;
}

/** A table. Each column is `[heading, class, cell]`, where `cell` returns the content for a row; the first heads the row. */
export function Table({ label, columns, rows, keyOf = (row) => row.id }) {
  const cells = (row) => columns.map(([, name, cell], i) => (i ? html`<td class=${name}>${cell(row)}</td>` : html`<th scope="row" class=${name}>${cell(row)}</th>`));
  return html`<${Scroll} label=${label}><table>
    <thead><tr>${columns.map(([heading, name]) => html`<th scope="col" class=${name}>${heading}</th>`)}</tr></thead>
    <tbody>${rows.map((row) => html`<tr key=${keyOf(row)}>${cells(row)}</tr>`)}</tbody>
  </table><//>`;
}

export function Tags({ of }) {
  return of.map((tag) => html`<span class="tag">${tag}</span> `);
}

export function Copy({ text, children }) {
  const [done, setDone] = useState(false);
  async function copy() {
    await toClipboard(text());
    setDone(true);
    setTimeout(() => setDone(false), 1500);
  }
  return html`<button type="button" onClick=${copy} aria-live="polite">
    ${done ? "Copied" : children}
  </button>`;
}

/** Browsers give pages a clipboard over TLS and on this machine only; else what is selected is copied. */
async function toClipboard(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = document.createElement("textarea");
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

/**
 * Tabs, each `[key, title]`; `children(key)` is the content of the open one. One stop of the Tab key: the arrow keys move
 * between tabs. The address keeps the open tab.
 */
export function Tabs({ label, tabs, children }) {
  const [query, change] = useQuery();
  const bar = useRef(null);
  const open = Math.max(0, tabs.findIndex(([key]) => key === query.get("tab")));
  const show = (i) => change({ tab: i ? tabs[i][0] : null }, { isStep: false });
  function onKeyDown(event) {
    const target = { ArrowLeft: open - 1, ArrowRight: open + 1, Home: 0, End: tabs.length - 1 }[event.key];
    if (!tabs[target]) return;
    event.preventDefault();
    show(target);
    bar.current.children[target].focus();
  }
  return html`<div>
    <div class="tabs" role="tablist" aria-label=${label} ref=${bar} onKeyDown=${onKeyDown}>
      ${tabs.map(([key, title], i) => html`<button key=${key} id=${`tab-${key}`} type="button" role="tab" aria-selected=${i === open} aria-controls="tab-panel"
        tabindex=${i === open ? 0 : -1} onClick=${() => show(i)}>${title}</button>`)}
    </div>
    <div id="tab-panel" role="tabpanel" class="stack" aria-labelledby=${`tab-${tabs[open][0]}`}>${children(tabs[open][0])}</div>
  </div>`;
}

/**
 * A question before something that cannot be undone. `onAnswer` gets true or false. If it `deletes`, Enter keeps what is there;
 * else Enter does what was asked for.
 */
export function Confirm({ title, action, deletes = false, children, onAnswer }) {
  const dialog = useRef(null);
  const first = useRef(null);
  useEffect(() => {
    dialog.current.showModal();
    first.current.focus();
  }, []);
  return html`<dialog ref=${dialog} aria-labelledby="question" onCancel=${() => onAnswer(false)}>
    <h2 id="question">${title}</h2>
    ${children}
    <div class="row">
      <button class="danger" type="button" ref=${deletes ? null : first} onClick=${() => onAnswer(true)}>${action}</button>
      <button type="button" ref=${deletes ? first : null} onClick=${() => onAnswer(false)}>Keep</button>
    </div>
  </dialog>`;
}

/** The query of the address: `[values, change]`, where a change is a new step of the history unless `isStep` is false. */
export function useQuery() {
  const [query, setQuery] = useState(() => new URLSearchParams(location.search));
  useEffect(() => {
    const onPop = () => setQuery(new URLSearchParams(location.search));
    addEventListener("popstate", onPop);
    return () => removeEventListener("popstate", onPop);
  }, []);
  function change(values, { isStep = true } = {}) {
    const next = new URLSearchParams(location.search);
    for (const [name, value] of Object.entries(values)) {
      next.delete(name);
      for (const one of [value].flat()) if (one) next.append(name, one);
    }
    const text = next.toString();
    const address = text ? `?${text}` : location.pathname;
    if (isStep) history.pushState(null, "", address);
    else history.replaceState(null, "", address);
    setQuery(next);
  }
  return [query, change];
}
