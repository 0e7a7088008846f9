// What is done with several experiments at once.

import { html, useState } from "./vendor/preact-htm.js";
import { call, get, post, withEach } from "./api.js";
import { titleOf } from "./format.js";
import { Confirm } from "./parts.js";

const count = (number) => (number === 1 ? "1 experiment" : `${number} experiments`);

const pathOf = (id) => `/v1/experiments/${id}`;

/** Adds a tag to an experiment, or takes it away: of the tags that it has by now. */
async function retag(id, tag, on) {
  const { tags } = await get(pathOf(id));
  if (tags.includes(tag) !== on) {
    await call("PATCH", pathOf(id), { tags: on ? [...tags, tag] : tags.filter((one) => one !== tag) });
  }
}

function Tagging({ experiments, onTag }) {
  const [tag, setTag] = useState("");
  const known = [...new Set(experiments.flatMap((one) => one.tags))];
  return html`<div class="row" role="group" aria-label="Tags of the selected">
    <input class="short" aria-label="Tag" placeholder="a tag" maxlength="200" list="known-tags" value=${tag} onInput=${(event) => setTag(event.target.value)} />
    <datalist id="known-tags">${known.map((one) => html`<option value=${one} />`)}</datalist>
    <button type="button" disabled=${!tag.trim()} onClick=${() => onTag(tag.trim(), true)}>Add tag</button>
    <button type="button" disabled=${!known.includes(tag.trim())} onClick=${() => onTag(tag.trim(), false)}>Remove tag</button>
  </div>`;
}

const MAX_NAMES = 8;
const runs = (number) => (number === 1 ? "1 run" : `${number} runs`);

/** A question about several experiments, with their names. */
function Question({ title, action, deletes, experiments, onAnswer, children }) {
  return html`<${Confirm} title=${title} action=${action} deletes=${deletes} onAnswer=${onAnswer}>
    <ul>${experiments.slice(0, MAX_NAMES).map((one) => html`<li key=${one.id} class="wrap">${titleOf(one)}</li>`)}</ul>
    ${experiments.length > MAX_NAMES && html`<p>and ${experiments.length - MAX_NAMES} more</p>`}
    ${children}
  <//>`;
}

/** A bar below the list, as long as some are selected. */
export function Selection({ selected, clear, onDone }) {
  const [question, setQuestion] = useState(null);
  const [said, setSaid] = useState(null);
  const [deleted, setDeleted] = useState([]);
  const experiments = [...selected.values()];
  const ids = experiments.map((one) => one.id);
  const mayEach = (action) => experiments.filter(({ can }) => can.includes(action));
  const open = mayEach("cancel");

  /** Does the same with each, says how it went, and gives the ids of those that were not refused. */
  async function each(some, done, work) {
    setDeleted([]);
    setSaid(`${count(some.length)}…`);
    const kept = [];
    const refused = await withEach(some, (id) => work(id).then(() => kept.push(id)));
    setSaid(`${count(kept.length)} ${done}${refused.length ? `; ${refused.length} refused: ${refused[0]}` : ""}`);
    clear();
    onDone();
    return kept;
  }
  const cancel = () => each(open.map((one) => one.id), "cancelled", (id) => post(`${pathOf(id)}:cancel`));
  const remove = () => each(ids, "deleted", (id) => call("DELETE", pathOf(id))).then(setDeleted);
  const undo = () => each(deleted, "brought back", (id) => post(`${pathOf(id)}:undelete`));
  const onTag = (tag, on) => each(ids, on ? `tagged ${tag}` : `without ${tag}`, (id) => retag(id, tag, on));
  function answer(work) {
    return (yes) => {
      setQuestion(null);
      if (yes) work();
    };
  }

  return html`
    <div class=${said ? "notice row" : ""}>
      <span role="status">${said}</span>
      ${deleted.length > 0 && html`<button type="button" onClick=${undo}>Undo</button>`}
    </div>
    ${ids.length > 0 && html`<div class="selection row" role="group" aria-label="Selected experiments">
      <strong>${ids.length} selected</strong>
      <a class="button primary" href=${`/compare?ids=${ids.join(",")}`}>Compare</a>
      ${mayEach("change").length > 0 && html`<${Tagging} experiments=${experiments} onTag=${onTag} />`}
      ${open.length > 0 && html`<button type="button" onClick=${() => setQuestion("cancel")}>Cancel ${runs(open.length)}</button>`}
      ${mayEach("delete").length > 0 && html`<button type="button" class="danger" onClick=${() => setQuestion("delete")}>Delete</button>`}
      <button type="button" class="quiet" onClick=${clear}>Select none</button>
    </div>`}
    ${question === "cancel" && html`<${Question} title=${`Cancel ${runs(open.length)}?`} action=${`Cancel ${runs(open.length)}`}
      experiments=${open} onAnswer=${answer(cancel)}><p>What they have computed stays; they do not go on.</p><//>`}
    ${question === "delete" && html`<${Question} title=${`Delete ${count(ids.length)}?`} action="Delete" deletes
      experiments=${experiments} onAnswer=${answer(remove)} />`}`;
}
