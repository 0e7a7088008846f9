// Uploading a file: chosen or dropped. The service reads it at once, and the page shows what it has read; a table can be
// read again with other options.

import { html, useRef, useState } from "./vendor/preact-htm.js";
import { get, post, withQuery } from "./api.js";
import { dateTime } from "./format.js";
import { Problem, Scroll, withCode } from "./parts.js";

export const NUMBERS = [".csv", ".tsv", ".parquet", ".npy", ".npz"];
export const TEXTS = [".txt", ".jsonl"];

const PREVIEW_BYTES = 65_536;
const PREVIEW_ROWS = 5;
const PREVIEW_COLUMNS = 20;
const SEPARATORS = { csv: ",", tsv: "tab" };

const endingOf = (name) => name.split(".").at(-1).toLowerCase();
const isTable = ({ name }) => ["csv", "tsv", "parquet"].includes(endingOf(name));

/** The name of a file without its ending. */
export const stemOf = (name) => name.replace(/\.[^.]*$/, "");

/** An error without the flags of the command line in its message: the page has fields for them. */
const withoutFlags = (error) => Object.assign(error, { message: error.message.replace(/ \(--[^)]*\)/g, "") });

/** Why a file is not of these kinds, and what helps; null if it is. */
export function whyNot(name, kinds) {
  const ending = `.${endingOf(name)}`;
  if (kinds.includes(ending)) return null;
  if (TEXTS.includes(ending)) return `${name} has texts: choose “A checkpoint and texts” above.`;
  if (kinds === TEXTS && NUMBERS.includes(ending)) return `${name} is a table: save the column with the texts as .txt, one text in a line.`;
  if (/^\.xlsx?$|^\.ods$/.test(ending)) return `${name} is a spreadsheet: save it as .csv first.`;
  return `${name} cannot be read here: give one of ${kinds.join(" ")}.`;
}

/** `upload` is the one that is used now, `earlier` are others; `onUpload` gets the next one. */
export function Upload({ kinds, upload, earlier, onUpload }) {
  const [state, setState] = useState({});
  const [over, setOver] = useState(false);
  const { busy, error, file, text } = state;

  async function send(file, options = {}) {
    setState((last) => ({ ...last, busy: file.name, error: null }));
    try {
      onUpload(await post(withQuery("/v1/datasets", { name: file.name, ...options }), file));
      setState((last) => ({ ...last, busy: null }));
    } catch (refused) {
      onUpload(null);
      setState((last) => ({ ...last, busy: null, error: withoutFlags(refused) }));
    }
  }
  async function choose(file) {
    if (!file) return;
    const wrong = whyNot(file.name, kinds);
    onUpload(null);
    if (wrong !== null) return setState({ error: new Error(wrong) });
    const text = endingOf(file.name) in SEPARATORS ? await file.slice(0, PREVIEW_BYTES).text() : null;
    setState({ file, text });
    send(file, guessedOptions(file.name, text));
  }
  function onDrop(event) {
    event.preventDefault();
    setOver(false);
    choose(event.dataTransfer.files[0]);
  }
  const reuse = (id) => id && get(`/v1/datasets/${id}`).then((found) => { setState({}); onUpload(found); }, (refused) => setState({ error: refused }));
  return html`<div class="stack">
    <div class=${over ? "drop over" : "drop"} onDrop=${onDrop} onDragLeave=${() => setOver(false)}
      onDragOver=${(event) => { event.preventDefault(); setOver(true); }}>
      <label for="file">Drop a file here, or choose one</label>
      <input id="file" type="file" accept=${kinds.join()} onChange=${(event) => choose(event.target.files[0])} />
      <p class="small muted">${kinds.join(" ")}</p>
    </div>
    ${earlier.length > 0 && html`<div class="field">
      <label for="earlier">or one that you uploaded before</label>
      <select id="earlier" onChange=${(event) => reuse(event.target.value)}>
        <option value="">–</option>
        ${earlier.map((one) => html`<option value=${one.id} selected=${one.id === upload?.id}>${one.name}, ${dateTime(one.created_at)}</option>`)}
      </select>
    </div>`}
    ${busy && html`<p role="status">Reading ${busy}…</p>`}
    <${Problem} error=${error} />
    ${upload && html`<div role="status" class="wrap stack">
      <p><strong>${upload.name}</strong>: ${upload.summary}.</p>
      ${Object.entries(upload.left_out).map(([name, why]) => html`<p class="small muted">${name} was left out: ${withCode(why)}</p>`)}
      ${upload.warnings.map((warning) => html`<p class="notice small">${withCode(warning)}</p>`)}
    </div>`}
    ${file && isTable(file) && html`<${Reading} key=${file.name + file.size} file=${file} text=${text} upload=${upload} busy=${Boolean(busy)}
      isWrong=${Boolean(error)} begun=${guessedOptions(file.name, text)} onRead=${(options) => send(file, options)} />`}
  </div>`;
}

/** The first lines of a table. Once the service has read it, its names and the columns that are used stand out. */
function FirstRows({ rows, upload }) {
  const hasNames = upload?.header ?? false;
  const isUsed = (name) => !hasNames || !upload.columns || upload.columns.includes(name.trim());
  const used = (rows[0] ?? []).map(isUsed);
  const areNumbers = (rows.at(-1) ?? []).map((cell) => /^\s*[-+]?[\d.,]*\d/.test(cell));
  return html`<${Scroll} label="First lines of the file">
    <table class="small"><tbody>
      ${rows.map((cells, row) => html`<tr>
        ${cells.slice(0, PREVIEW_COLUMNS).map((cell, column) => html`<td class=${[used[column] ?? true ? "" : "muted", areNumbers[column] ? "number" : ""].join(" ")}>
          ${hasNames && row === 0 ? html`<strong>${cell}</strong>` : cell.replace(/^\s*-(?=[\d.,])/, "−")}</td>`)}
        ${cells.length > PREVIEW_COLUMNS && html`<td class="muted">and ${cells.length - PREVIEW_COLUMNS} more</td>`}
      </tr>`)}
    </tbody></table>
  <//>`;
}

/** How a table is read: its first lines, and the options that change it. They open where the service cannot read it so. */
function Reading({ file, text, upload, busy, isWrong, begun, onRead }) {
  const [options, setOptions] = useState(begun);
  const [chosen, setChosen] = useState(null);
  const [typed, setTyped] = useState("");
  const opened = useRef(false); // an error opens them, until the table could be read
  opened.current = isWrong || (opened.current && busy);
  const set = (name) => (event) => setOptions((last) => ({ ...last, [name]: event.target.value }));
  const isText = text !== null;
  const usual = SEPARATORS[endingOf(file.name)];
  const rows = isText ? firstRows(text, options.sep || usual) : [];
  const names = options.header === "no" ? [] : (rows[0] ?? []).map((cell) => cell.trim()).filter(Boolean);
  const offered = [...new Set(names)].slice(0, PREVIEW_COLUMNS);
  const ids = chosen ?? upload?.ids ?? [];
  const index = [...offered.filter((name) => ids.includes(name)), ...typed.split(",").map((name) => name.trim()).filter(Boolean)];
  const toggle = (name) => (event) => setChosen(event.target.checked ? [...ids, name] : ids.filter((other) => other !== name));
  return html`
    ${isText && html`<${FirstRows} rows=${rows} upload=${upload} />`}
    <details open=${opened.current}>
      <summary>Read it in another way</summary>
      <div class="stack inset part">
        ${isText && html`<div class="halves">
          <${Select} name="header" label="First line" value=${options.header} onChange=${set("header")}
            values=${{ "": "names or data, by its cells", yes: "names of the columns", no: "data" }} />
          <${Select} name="sep" label="Cells are separated by" value=${options.sep} onChange=${set("sep")}
            values=${{ "": separatorName(usual), ",": "commas", ";": "semicolons", tab: "tabs", "|": "|" }} />
          <${Select} name="decimal" label="Decimal separator" value=${options.decimal} onChange=${set("decimal")} values=${{ "": "point: 1.5", ",": "comma: 1,5" }} />
          <${Select} name="thousands" label="Thousands are separated by" value=${options.thousands} onChange=${set("thousands")}
            values=${{ "": "nothing", ",": "commas", ".": "points", " ": "spaces", "'": "'", _: "_" }} />
        </div>`}
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
        <button type="button" disabled=${busy} onClick=${() => onRead({ ...options, index })}>Read ${file.name} again</button>
      </div>
    </details>`;
}

const separatorName = (separator) => ({ ",": "commas, as in .csv", tab: "tabs, as in .tsv" })[separator];

function Select({ name, label, value = "", values, onChange }) {
  return html`<div class="field">
    <label for=${`upload-${name}`}>${label}</label>
    <select id=${`upload-${name}`} onChange=${onChange}>
      ${Object.entries(values).map(([one, text]) => html`<option value=${one} selected=${one === value}>${text}</option>`)}
    </select>
  </div>`;
}

/** The cells of the first lines, as a preview: the service reads the file itself. */
function firstRows(text, separator) {
  const lines = text.replace(/^\uFEFF/, "").split(/\r\n|\n|\r/).filter((line) => line.trim());
  return lines.slice(0, PREVIEW_ROWS).map((line) => cellsOf(line, separator === "tab" ? "\t" : separator));
}

/** How a text file of a table is probably read: with the separators of a spreadsheet program. */
export function guessedOptions(name, text) {
  if (text === null) return {};
  const usual = SEPARATORS[endingOf(name)];
  const sep = usual === "," && firstRows(text, ",")[0]?.length === 1 && [";", "tab", "|"].find((one) => firstRows(text, one)[0]?.length > 1);
  return sep ? { sep, ...decimalOf(firstRows(text, sep).flat().map((cell) => cell.trim())) } : {};
}

function decimalOf(cells) {
  const hasCommas = cells.some((cell) => /^[+-]?\d+,\d+$/.test(cell)) && !cells.some((cell) => /^[+-]?\d+\.\d+$/.test(cell));
  return hasCommas ? { decimal: "," } : {};
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
