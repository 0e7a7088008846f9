// A form for a spec, made of the service's own JSON Schema. It holds nothing: a change gives another
// spec, and what is wrong the service says.

import { createContext, html, useContext, useMemo, useRef, useState } from "./vendor/preact-htm.js";
import { withFamily } from "./examples.js";
import { plain } from "./format.js";
import { withCode } from "./parts.js";
import { fitted, isGroup, same, tagOf, withField } from "./schema.js";

const Errors = createContext([]);
const idOf = (pointer) => pointer.slice(1).replaceAll("/", ".");
const isWithin = (pointer, outer) => pointer === outer || pointer.startsWith(`${outer}/`);

export function SpecForm({ parts, spec, examples, errors, onChange }) {
  const of = ({ model }) => parts[model?.family] ?? Object.values(parts)[0];
  const part = of(spec);
  const isSameFamily = (next) => next.model?.family === spec.model?.family;
  const change = (next) => onChange(isSameFamily(next) ? next : withFamily(of(next), next, spec, examples));
  return html`<${Errors.Provider} value=${errors}>
    <${Fields} part=${part} value=${spec} pointer="/spec" onChange=${change} />
  <//>`;
}

/** The fields of an object: first those that have to be there, or are; the others can be opened. */
function Fields({ part, value, pointer, onChange }) {
  const errors = useContext(Errors);
  const names = Object.keys(part.fields).filter((name) => isOpen(part.fields[name]));
  const isFirst = (name) => isGroup(part.fields[name]) || part.fields[name].required || isSet(part.fields[name], value[name]);
  const first = useMemo(() => names.filter(isFirst), [part]); // they stay where they are while one types
  const others = names.filter((name) => !first.includes(name));
  const isWrong = (name) => errors.some((one) => isWithin(one.pointer, `${pointer}/${name}`));
  const opened = useRef(false); // an error opens them, and they stay open once it is mended
  opened.current ||= others.some(isWrong);
  const field = (name) => html`<${Field} key=${name} name=${name} part=${part.fields[name]} value=${value[name]}
    pointer=${`${pointer}/${name}`} onChange=${(next) => onChange(withField(value, name, next))} />`;
  return html`<div class="entries">
    ${first.map(field)}
    ${others.length > 0 && html`<details open=${opened.current}>
      <summary class="muted small">${others.join(", ")}</summary>
      <div class="entries inset">${others.map(field)}</div>
    </details>`}
  </div>`;
}

const isSet = (part, value) => value !== undefined && !same(value, part.default);

/** Whether there is anything to choose. */
export function isOpen(part) {
  if (part.kind === "object" && !part.nullable) return Object.values(part.fields).some(isOpen);
  return part.kind !== "const" && !(part.kind === "choices" && part.values.length === 1 && !part.required);
}

const Field = (props) => html`<${isGroup(props.part) ? Group : Entry} ...${props} />`;

/** A part with fields of its own. One that may be null is there or not. */
function Group({ name, part, value, pointer, onChange }) {
  const isThere = !part.nullable || (value ?? null) !== null;
  const shown = value ?? fitted(part, part.default ?? {});
  const set = (next) => onChange(part.required || part.nullable || !same(next, {}) ? next : undefined);
  return html`<fieldset class="part">
    <legend>${part.nullable
      ? html`<label class="row"><input type="checkbox" checked=${isThere}
          onChange=${(event) => onChange(event.target.checked ? shown : undefined)} />${name}</label>`
      : name}</legend>
    <${Hint} pointer=${pointer} about=${part.about} exact />
    ${isThere && (part.kind === "union"
      ? html`<${Member} name=${name} part=${part} value=${shown} pointer=${pointer} onChange=${set} />`
      : html`<${Fields} part=${part} value=${shown} pointer=${pointer} onChange=${set} />`)}
  </fieldset>`;
}

/** One of several objects, which its tag chooses. What the next one has no room for goes. */
function Member({ part, value, pointer, onChange }) {
  const tag = tagOf(part, value);
  const choose = (event) => onChange(fitted(part, { ...value, [part.tag]: event.target.value }));
  const id = idOf(`${pointer}/${part.tag}`);
  return html`
    <div class="field">
      <label for=${id}>${part.tag}</label>
      <select id=${id} onChange=${choose}>
        ${Object.keys(part.members).map((one) => html`<option value=${one} selected=${one === tag}>${one}</option>`)}
      </select>
      <${Hint} pointer=${`${pointer}/${part.tag}`} />
    </div>
    <${Fields} key=${tag} part=${part.members[tag]} value=${value} pointer=${pointer} onChange=${onChange} />`;
}

/** What the service says is wrong with a field, or else what it is about. */
function Hint({ pointer, about, exact = false }) {
  const errors = useContext(Errors);
  const wrong = errors.filter((one) => (exact ? one.pointer === pointer : isWithin(one.pointer, pointer)));
  if (!wrong.length && !about) return null;
  return html`<span id=${`${idOf(pointer)}.hint`} class=${wrong.length ? "bad-text small" : "muted small"}>
    ${withCode(wrong.length ? wrong.map((one) => one.detail).join("; ") : about)}
  </span>`;
}

function Entry({ name, part, value, pointer, onChange }) {
  const errors = useContext(Errors);
  const id = idOf(pointer);
  const control = {
    id,
    "aria-describedby": `${id}.hint`,
    "aria-invalid": errors.some((one) => isWithin(one.pointer, pointer)),
  };
  const Control = { choice: Choice, choices: Choices, flag: Flag }[part.kind] ?? Typed;
  const label = html`${name}${part.required && html`<span class="muted"> · required</span>`}`;
  return html`<div class="field">
    ${part.kind === "choices" ? html`<span id=${`${id}.label`} class="label">${label}</span>` : html`<label for=${id}>${label}</label>`}
    <${Control} part=${part} value=${value} control=${control} onChange=${onChange} />
    <${Hint} pointer=${pointer} about=${part.about} />
  </div>`;
}

function Choice({ part, value, control, onChange }) {
  const [none, ...values] = part.required ? [null, ...part.values] : [part.default, ...part.values.filter((one) => one !== part.default)];
  return html`<select ...${control} onChange=${(event) => onChange(event.target.value || undefined)}>
    <option value="" selected=${value === undefined}>${none === null ? "–" : none}</option>
    ${values.map((one) => html`<option value=${one} selected=${one === value}>${one}</option>`)}
  </select>`;
}

function Choices({ part, value, control, onChange }) {
  const chosen = [value ?? part.default ?? []].flat();
  function toggle(one, on) {
    const next = part.values.filter((other) => (other === one ? on : chosen.includes(other)));
    onChange(next.length ? next : undefined);
  }
  const { id, ...described } = control;
  return html`<div ...${described} class="chips" role="group" aria-labelledby=${`${id}.label`} aria-invalid=${null}>
    ${part.values.map((one) => html`<label>
      <input type="checkbox" checked=${chosen.includes(one)} onChange=${(event) => toggle(one, event.target.checked)} />${one}
    </label>`)}
  </div>`;
}

function Flag({ part, value, control, onChange }) {
  const set = (event) => onChange(event.target.checked === part.default ? undefined : event.target.checked);
  return html`<input ...${control} type="checkbox" checked=${value ?? part.default} onChange=${set} />`;
}

/** A number, a text, or a list of such; what is empty is left to the default. */
function Typed({ part, value, control, onChange }) {
  const [draft, setDraft] = useState(null);
  const shown = draft !== null && same(read(part, draft), value) ? draft : written(part, value);
  function onInput(event) {
    setDraft(event.target.value);
    onChange(read(part, event.target.value));
  }
  const hasLines = part.kind === "list" && !part.numeric;
  return html`<${hasLines ? "textarea" : "input"} ...${control} value=${shown} onInput=${onInput} spellcheck="false"
    autocomplete="off" rows=${hasLines ? 3 : null} inputmode=${part.numeric ? "decimal" : null}
    placeholder=${written(part, part.default) || (part.nullable ? "null" : "")} />`;
}

/** As it is typed: lists of numbers with commas between, lists of texts one a line. */
export function written({ kind, numeric }, value) {
  if (value === undefined || value === null) return "";
  return kind === "list" ? [value].flat().join(numeric ? ", " : "\n") : plain(value);
}

/** What was typed; what is no number stays a text, which the service refuses in its own words. */
export function read({ kind, numeric }, text) {
  if (!text.trim()) return undefined;
  const one = (word) => (numeric && Number.isFinite(Number(word)) ? Number(word) : word);
  if (kind !== "list") return one(text.trim());
  return text.split(numeric ? /[\s,]+/ : "\n").filter(Boolean).map(one);
}
