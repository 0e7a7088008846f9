// Uploading a data set: chosen or dropped; a table with a preview and the options to read it.

import { html, useState } from "./vendor/preact-htm.js";
import { post, withQuery } from "./api.js";
import { Problem, Scroll } from "./parts.js";

const KINDS = ".npy,.npz,.csv,.tsv,.parquet,.txt,.jsonl";
const PREVIEW_BYTES = 65_536;
const PREVIEW_ROWS = 5;
const PREVIEW_COLUMNS = 20;
const SEPARATORS = { csv: ",", tsv: "tab" };

const endingOf = (file) => file.name.split(".").at(-1).toLowerCase();
const isTable = (file) => ["csv", "tsv", "parquet"].includes(endingOf(file));

export function Upload({ onUploaded }) {
  const [state, setState] = useState({});
  const [over, setOver] = useState(false);

  async function send(file, options = {}) {
    setState((last) => ({ ...last, busy: file.name, upload: null, error: null }));
    try {
      const upload = await post(withQuery("/v1/datasets", { name: file.name, ...options }), file);
      setState((last) => ({ ...last, busy: null, upload }));
      onUploaded(upload);
    } catch (error) {
      setState((last) => ({ ...last, busy: null, error }));
    }
  }
  async function choose(file) {
    if (!file) return;
    const text = endingOf(file) in SEPARATORS ? await file.slice(0, PREVIEW_BYTES).text() : null;
    setState({ file, text });
    if (!isTable(file)) send(file);
  }
  function onDrop(event) {
    event.preventDefault();
    setOver(false);
    choose(event.dataTransfer.files[0]);
  }
  const { busy, upload, error, file, text } = state;
  return html`<section class="card stack">
    <h2>Your own data</h2>
    <div class=${over ? "drop over" : "drop"} onDrop=${onDrop} onDragLeave=${() => setOver(false)}
      onDragOver=${(event) => { event.preventDefault(); setOver(true); }}>
      <label for="file">Drop a file here, or choose one</label>
      <input id="file" type="file" accept=${KINDS} onChange=${(event) => choose(event.target.files[0])} />
      <p class="small muted">${KINDS.replaceAll(",", " ")}</p>
    </div>
    ${file && isTable(file) && html`<${Reading} key=${file.name + file.size} file=${file} text=${text} busy=${Boolean(busy)}
      onUpload=${(options) => send(file, options)} />`}
    ${busy && html`<p role="status">Uploading ${busy}…</p>`}
    ${upload && html`<div role="status" class="wrap stack">
      <p>${upload.name}: ${upload.summary}. The spec names it now.</p>
      ${Object.entries(upload.left_out).map(([name, why]) => html`<p class="small muted">${name} was left out: ${why}</p>`)}
      ${upload.warnings.map((warning) => html`<p class="notice small">${warning}</p>`)}
    </div>`}
    <${Problem} error=${error} />
  </section>`;
}

/** How a table is read: its first lines, and the options that change it. */
function Reading({ file, text, busy, onUpload }) {
  const [options, setOptions] = useState({});
  const [ids, setIds] = useState([]);
  const [typed, setTyped] = useState("");
  const set = (name) => (event) => setOptions((last) => ({ ...last, [name]: event.target.value }));
  const isText = text !== null;
  const separator = options.sep || SEPARATORS[endingOf(file)];
  const rows = isText ? firstRows(text, separator === "tab" ? "\t" : separator) : [];
  const names = options.header === "no" ? [] : (rows[0] ?? []).map((cell) => cell.trim()).filter(Boolean);
  const offered = [...new Set(names)].slice(0, PREVIEW_COLUMNS);
  const index = [...offered.filter((name) => ids.includes(name)), ...typed.split(",").map((name) => name.trim()).filter(Boolean)];
  const toggle = (name) => (event) => setIds((last) => (event.target.checked ? [...last, name] : last.filter((other) => other !== name)));
  return html`<form class="stack" onSubmit=${(event) => { event.preventDefault(); onUpload({ ...options, index }); }}>
    ${isText && html`<${Scroll} label="First lines of the file">
      <table class="small"><tbody>
        ${rows.map((cells) => html`<tr>
          ${cells.slice(0, PREVIEW_COLUMNS).map((cell) => html`<td>${cell}</td>`)}
          ${cells.length > PREVIEW_COLUMNS && html`<td class="muted">and ${cells.length - PREVIEW_COLUMNS} more</td>`}
        </tr>`)}
      </tbody></table>
    <//>
    <${Select} name="header" label="First line" onChange=${set("header")}
      values=${{ "": "names or data, by its cells", yes: "names of the columns", no: "data" }} />
    <${Select} name="sep" label="Cells are separated by" onChange=${set("sep")}
      values=${{ "": separatorName(SEPARATORS[endingOf(file)]), ",": "commas", ";": "semicolons", tab: "tabs", "|": "|" }} />
    <${Select} name="decimal" label="Decimal separator" onChange=${set("decimal")} values=${{ "": "point: 1.5", ",": "comma: 1,5" }} />
    <${Select} name="thousands" label="Thousands are separated by" onChange=${set("thousands")}
      values=${{ "": "nothing", ",": "commas", ".": "points", " ": "spaces", "'": "'", _: "_" }} />`}
    ${offered.length > 0 && html`<div class="field">
      <span id="upload-ids" class="label">Columns of ids</span>
      <div class="chips" role="group" aria-labelledby="upload-ids">
        ${offered.map((name) => html`<label><input type="checkbox" checked=${ids.includes(name)} onChange=${toggle(name)} />${name}</label>`)}
      </div>
      <span class="small muted">They identify the rows and are no measurements.</span>
    </div>`}
    ${(!isText || names.length > PREVIEW_COLUMNS) && html`<div class="field">
      <label for="upload-index">${isText ? "More columns of ids" : "Columns of ids"}, with commas between</label>
      <input id="upload-index" value=${typed} onInput=${(event) => setTyped(event.target.value)} autocomplete="off" spellcheck="false" />
      <span class="small muted">They identify the rows and are no measurements.</span>
    </div>`}
    <label class="row"><input type="checkbox" onChange=${(event) => setOptions((last) => ({ ...last, drop_non_numeric: event.target.checked ? "yes" : "" }))} />
      Leave out columns that are not numbers</label>
    <button class="primary" disabled=${busy}>Upload ${file.name}</button>
  </form>`;
}

const separatorName = (separator) => ({ ",": "commas, as in .csv", tab: "tabs, as in .tsv" })[separator];

function Select({ name, label, values, onChange }) {
  return html`<div class="field">
    <label for=${`upload-${name}`}>${label}</label>
    <select id=${`upload-${name}`} onChange=${onChange}>
      ${Object.entries(values).map(([value, text]) => html`<option value=${value}>${text}</option>`)}
    </select>
  </div>`;
}

/** The cells of the first lines, as a preview: the service reads the file itself. */
function firstRows(text, separator) {
  const lines = text.replace(/^\uFEFF/, "").split(/\r\n|\n|\r/).filter((line) => line.trim());
  return lines.slice(0, PREVIEW_ROWS).map((line) => cellsOf(line, separator));
}

function cellsOf(line, separator) {
  const cells = [""];
  let quoted = false;
  for (const character of line) {
    if (character === '"') quoted = !quoted;
    else if (character === separator && !quoted) cells.push("");
    else cells[cells.length - 1] += character;
  }
  return cells;
}
