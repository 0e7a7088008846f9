// A spec as a form and as JSON, which show the same, from a preset, an earlier experiment or an example.

import { html, useMemo, useRef } from "./vendor/preact-htm.js";
import { FieldErrors } from "./checking.js";
import { SpecForm } from "./form.js";

export const textOf = (spec) => JSON.stringify(spec, null, 2);

/** The spec that a text is; null where it is no JSON object. */
function specOf(text) {
  try {
    const spec = JSON.parse(text);
    return spec !== null && typeof spec === "object" && !Array.isArray(spec) ? spec : null;
  } catch {
    return null;
  }
}

function PresetChoice({ presets, onChoose }) {
  return html`<div class="field">
    <label for="preset">Begin with</label>
    <select id="preset" onChange=${(event) => event.target.value && onChoose(...event.target.value.split(" "))}>
      <option value="">a preset of the paper…</option>
      ${presets.flatMap((preset) => preset.specs.map((_, part) => html`<option value=${`${preset.name} ${part}`}>
        ${preset.title}${preset.specs.length > 1 && `, ${part + 1} of ${preset.specs.length}`}
      </option>`))}
    </select>
  </div>`;
}

export function SpecEditor({ text, presets, parts, examples, error, onChange }) {
  const area = useRef(null);
  const spec = useMemo(() => specOf(text), [text]);
  const isWrong = error instanceof SyntaxError || error?.errors?.some((one) => one.pointer.startsWith("/spec"));
  function choose(name, part) {
    const preset = presets.find((one) => one.name === name);
    onChange(textOf(preset.specs[part]), preset.title);
  }
  return html`<div class="editor">
    <section class="card stack" aria-label="Fields">
      <${PresetChoice} presets=${presets} onChoose=${choose} />
      ${spec === null && html`<p class="muted">The fields come back once the JSON is right.</p>`}
      ${spec !== null && html`<${SpecForm} parts=${parts} spec=${spec} examples=${examples} errors=${error?.errors ?? []}
        onChange=${(next) => onChange(textOf(next))} />`}
    </section>
    <div class="card field sticky">
      <label for="spec">Spec, as JSON</label>
      <textarea id="spec" ref=${area} rows="24" spellcheck="false" value=${text} aria-invalid=${Boolean(isWrong)}
        aria-describedby=${isWrong ? "spec-errors" : null} onInput=${(event) => onChange(event.target.value)}></textarea>
      <${FieldErrors} error=${error} text=${text} area=${area} />
    </div>
  </div>`;
}
