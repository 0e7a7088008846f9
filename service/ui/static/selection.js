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

/** A bar below the list, as long as some are selected. */
export function Selection({ selected, clear, may, onDone }) {
  const [deleting, setDeleting] = useState(false);
  const [said, setSaid] = useState(null);
  const experiments = [...selected.values()];
  const ids = experiments.map((one) => one.id);

  async function each(done, work) {
    setSaid(`${count(ids.length)}…`);
    const refused = await withEach(ids, work);
    const kept = refused.length ? `; ${refused.length} refused: ${refused[0]}` : "";
    setSaid(`${count(ids.length - refused.length)} ${done}${kept}`);
    clear();
    onDone();
  }
  function onAnswer(yes) {
    setDeleting(false);
    if (yes) each("deleted", (id) => call("DELETE", pathOf(id)));
  }
  const cancel = () => each("cancelled", (id) => post(`${pathOf(id)}:cancel`));
  const onTag = (tag, on) => each(on ? `tagged ${tag}` : `without ${tag}`, (id) => retag(id, tag, on));

  return html`
    <p role="status" class=${said ? "notice" : ""}>${said}</p>
    ${ids.length > 0 && html`<div class="selection row" role="group" aria-label="Selected experiments">
      <strong>${ids.length} selected</strong>
      <a class="button primary" href=${`/compare?ids=${ids.join(",")}`}>Compare</a>
      ${may("submit") && html`<${Tagging} experiments=${experiments} onTag=${onTag} />`}
      ${may("cancel") && html`
        <button type="button" onClick=${cancel}>Cancel</button>
        <button type="button" class="danger" onClick=${() => setDeleting(true)}>Delete</button>`}
      <button type="button" class="quiet" onClick=${clear}>Select none</button>
    </div>`}
    ${deleting && html`<${Confirm} title=${`Delete ${count(ids.length)}?`} action="Delete" onAnswer=${onAnswer}>
      <ul>${experiments.slice(0, 8).map((one) => html`<li class="wrap">${titleOf(one)}</li>`)}</ul>
      ${experiments.length > 8 && html`<p>and ${experiments.length - 8} more</p>`}
    <//>`}`;
}
