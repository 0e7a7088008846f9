// A checkpoint and texts, which it scores. `mpt score FILE --checkpoint NAME` and `mpt submit --text FILE` submit the same.

import { html, useState } from "./vendor/preact-htm.js";
import { withCode } from "./parts.js";
import { TEXTS, Upload, stemOf } from "./upload.js";

export const begunWith = (checkpoints) => ({ checkpoint: checkpoints[0] ?? "", lines: "", upload: null, column: "text", result: "each" });

const RESULTS = {
  each: ["A score for each text", "Its pseudo-log-likelihood, and each of its tokens coloured by how unlikely it is."],
  curve: ["One curve of all texts", "The MPT curve by masking rate, and the area below it."],
};

/** What these choices submit: `{path, body, checked, count}`. Null where something lacks. */
export function requestOf({ checkpoint, lines, upload, column, result }) {
  const texts = lines.split("\n").filter((line) => line.trim());
  if (!checkpoint.trim() || !(upload || texts.length)) return null;
  const isTable = upload?.name.toLowerCase().endsWith(".jsonl");
  const source = upload ? { dataset: upload.id, ...(isTable && column.trim() !== "text" ? { column: column.trim() } : {}) } : { lines: texts };
  const spec = {
    model: { family: "masked_lm", checkpoint: checkpoint.trim() },
    data: { source: "text", ...source },
    ...(result === "each" ? { evaluate: { texts: { scores: ["pll"] } } } : {}),
  };
  return { path: "/v1/experiments", body: { spec }, checked: { spec }, count: 1 };
}

const OTHER = "";

export function OwnTexts({ values, checkpoints, earlier, error, onChange }) {
  const { checkpoint, lines, upload, column, result } = values;
  const [isOther, setOther] = useState(!checkpoints.includes(checkpoint));
  const set = (name) => (event) => onChange({ [name]: event.target.value });
  function choose({ target: { value } }) {
    setOther(value === OTHER);
    onChange({ checkpoint: value });
  }
  return html`<section class="card stack" aria-label="A checkpoint and texts">
    <div class="entries">
      ${checkpoints.length > 0 && html`<div class="field">
        <label for="checkpoint">Checkpoint</label>
        <select id="checkpoint" onChange=${choose}>
          ${checkpoints.map((name) => html`<option selected=${!isOther && name === checkpoint}>${name}</option>`)}
          <option value=${OTHER} selected=${isOther}>another one…</option>
        </select>
      </div>`}
      ${isOther && html`<div class="field">
        <label for="checkpoint-name">${checkpoints.length ? "Its name" : "Checkpoint"}</label>
        <input id="checkpoint-name" value=${checkpoint} placeholder="bert-base-uncased" spellcheck="false" autocomplete="off" onInput=${set("checkpoint")} />
        <span class="muted small">A folder in <code>MPT_MODELS_DIR</code>, or a masked language model of the hub.</span>
      </div>`}
      <div class="field" role="group" aria-labelledby="result-label">
        <span id="result-label" class="label">Result</span>
        <div class="chips">
          ${Object.entries(RESULTS).map(([name, [title]]) => html`<label>
            <input type="radio" name="result" value=${name} checked=${name === result} onChange=${set("result")} />${title}</label>`)}
        </div>
        <span class="muted small">${RESULTS[result][1]}</span>
      </div>
    </div>
    ${!upload && html`<div class="field">
      <label for="lines">Texts, one in each line</label>
      <textarea id="lines" rows="6" value=${lines} placeholder="The cat sat on the mat." onInput=${set("lines")}></textarea>
    </div>`}
    ${upload && html`<div><button type="button" class="quiet" onClick=${() => onChange({ upload: null })}>Type the texts instead</button></div>`}
    ${!lines.trim() && html`<${Upload} kinds=${TEXTS} upload=${upload} earlier=${earlier}
      onUpload=${(next) => onChange({ upload: next }, next && stemOf(next.name))} />`}
    ${upload?.name.toLowerCase().endsWith(".jsonl") && html`<div class="field">
      <label for="column">Field of the texts</label>
      <input id="column" class="short" value=${column} onInput=${set("column")} />
    </div>`}
    ${error?.errors?.length > 0 && html`<ul class="bad-text small" role="alert">${error.errors.map(({ detail }) => html`<li>${withCode(detail)}</li>`)}</ul>`}
  </section>`;
}
