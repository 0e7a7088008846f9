// A new experiment: from a preset, from an earlier one, by a form or as JSON; checked while one types.

import { html, useEffect, useMemo, useRef, useState } from "../vendor/preact-htm.js";
import { Away, get, post } from "../api.js";
import { Estimate, FieldErrors } from "../checking.js";
import { SpecForm } from "../form.js";
import { useLive } from "../live.js";
import { Loading, Problem } from "../parts.js";
import { useProjects } from "../projects.js";
import { partsOf } from "../schema.js";
import { withMoreMasks } from "../spec.js";
import { Upload } from "../upload.js";

const PAUSE_MS = 400;
const EXAMPLE = {
  model: { family: "ppca", latent_dim: 10, init: "maximum_likelihood" },
  data: { source: "digits" },
  evaluate: { masks: { schedule: "all", per_size: 100 } },
  seeds: [4, 44],
};

/** What the form holds as a submission; throws SyntaxError where the spec is no JSON. */
function submissionOf({ text, name, tags, shared, project }) {
  const spec = JSON.parse(text);
  const beside = name.trim() ? { name: name.trim() } : {};
  const list = tags.split(",").map((one) => one.trim()).filter(Boolean);
  return { spec, ...beside, tags: list, visibility: shared ? "lab" : null, project: project || null };
}

/** The spec that a text is; null where it is no JSON object. */
function specOf(text) {
  try {
    const spec = JSON.parse(text);
    return spec !== null && typeof spec === "object" && !Array.isArray(spec) ? spec : null;
  } catch {
    return null;
  }
}

/** What the service says of the form, asked when one has paused. */
function useCheck(form) {
  const [check, setCheck] = useState({});
  useEffect(() => {
    let current = true;
    const set = (found) => current && setCheck(found);
    const timer = setTimeout(async () => {
      try {
        set({ validation: await post("/v1/experiments:validate", submissionOf(form)) });
      } catch (error) {
        set({ error });
      }
    }, PAUSE_MS);
    return () => {
      current = false;
      clearTimeout(timer);
    };
  }, [form]);
  return check;
}

/** What the form begins with, by the address: ?preset=NAME&part=0, ?from=ID&masks=4, or an example. */
async function beginning(presets) {
  const query = new URLSearchParams(location.search);
  const preset = presets.find((one) => one.name === query.get("preset"));
  if (preset) return { spec: preset.specs[Number(query.get("part") ?? 0)] ?? preset.specs[0], name: preset.title };
  if (!query.has("from")) return { spec: EXAMPLE, name: "" };
  const experiment = await get(`/v1/experiments/${query.get("from")}`);
  const times = Number(query.get("masks") ?? 1);
  if (times > 1) return { spec: withMoreMasks(experiment.spec, times), name: `${experiment.title}, more masks`.slice(0, 200) };
  return { spec: experiment.spec, name: experiment.name ? `${experiment.name}, again`.slice(0, 200) : "" };
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

function ProjectChoice({ projects, onChoose, problem }) {
  return html`<div class="field">
    <label for="project">Project</label>
    <select id="project" aria-invalid=${Boolean(problem)} onChange=${(event) => onChoose(event.target.value)}>
      <option value="">none: my own share</option>
      ${projects.map(({ name }) => html`<option value=${name}>${name}</option>`)}
    </select>
    ${problem && html`<span class="bad-text small">${problem}</span>`}
    <span class="small muted">Its members may read the experiment, and the run is charged to it.</span>
  </div>`;
}

function Form({ presets, parts, begun, me }) {
  const [form, setForm] = useState({ text: JSON.stringify(begun.spec, null, 2), name: begun.name, tags: "", shared: false, project: "" });
  const [refused, setRefused] = useState(null);
  const [busy, setBusy] = useState(false);
  const area = useRef(null);
  const spec = useMemo(() => specOf(form.text), [form.text]);
  const check = useCheck(form);
  const projects = useProjects(me).filter((one) => one.open);
  const change = (values) => setForm((last) => ({ ...last, ...values }));
  const error = refused ?? check.error;
  const at = (pointer) => (error?.at ? error.at(pointer) : null);
  const wrongSpec = error instanceof SyntaxError || error?.errors?.some((one) => one.pointer.startsWith("/spec"));

  function choose(name, part) {
    const preset = presets.find((one) => one.name === name);
    change({ text: JSON.stringify(preset.specs[part], null, 2), name: preset.title });
  }
  async function onSubmit(event) {
    event.preventDefault();
    setBusy(true);
    try {
      const made = await post("/v1/experiments", submissionOf(form));
      location.assign(`/experiments/${made.id}`);
    } catch (problem) {
      setRefused(problem);
      setBusy(false);
    }
  }
  useEffect(() => setRefused(null), [form]);

  return html`<form class="columns" onSubmit=${onSubmit}>
    <div class="editor">
      <section class="card stack" aria-label="Fields">
        <${PresetChoice} presets=${presets} onChoose=${choose} />
        ${spec === null && html`<p class="muted">The fields come back once the JSON is right.</p>`}
        ${spec !== null && html`<${SpecForm} parts=${parts} spec=${spec} errors=${error?.errors ?? []}
          onChange=${(next) => change({ text: JSON.stringify(next, null, 2) })} />`}
      </section>
      <div class="card field sticky">
        <label for="spec">Spec, as JSON</label>
        <textarea id="spec" ref=${area} rows="24" spellcheck="false" value=${form.text} aria-invalid=${Boolean(wrongSpec)}
          aria-describedby=${wrongSpec ? "spec-errors" : null} onInput=${(event) => change({ text: event.target.value })}></textarea>
        <${FieldErrors} error=${error} text=${form.text} area=${area} />
      </div>
    </div>
    <div class="stack">
      <div class="card stack">
        <div class="field">
          <label for="name">Name</label>
          <input id="name" value=${form.name} maxlength="200" aria-invalid=${Boolean(at("/name"))} onInput=${(event) => change({ name: event.target.value })} />
          ${at("/name") && html`<span class="bad-text small">${at("/name")}</span>`}
        </div>
        <div class="field">
          <label for="tags">Tags, with commas between</label>
          <input id="tags" value=${form.tags} onInput=${(event) => change({ tags: event.target.value })} />
        </div>
        ${projects.length > 0 && html`<${ProjectChoice} projects=${projects} problem=${at("/project")}
          onChoose=${(project) => change({ project })} />`}
        <label class="row"><input type="checkbox" checked=${form.shared} onChange=${(event) => change({ shared: event.target.checked })} />Share with the lab</label>
        <button class="primary" disabled=${busy || !check.validation}>${busy ? "Submitting…" : "Submit"}</button>
        ${refused && !refused.errors?.length && html`<${Problem} error=${refused} />`}
        ${check.error instanceof Away && html`<p class="muted">The service does not answer now.</p>`}
      </div>
      <${Estimate} validation=${check.validation} />
      <${Upload} onUploaded=${(upload) => change({ text: withUpload(form.text, upload) })} />
    </div>
  </form>`;
}

/** The spec with an upload as its data, where it is JSON. */
function withUpload(text, upload) {
  try {
    return JSON.stringify({ ...JSON.parse(text), data: { source: "upload", dataset: upload.id } }, null, 2);
  } catch {
    return text;
  }
}

export default function New({ me, may }) {
  const read = async () => {
    const [{ items: presets }, document] = await Promise.all([get("/v1/presets"), get("/openapi.json")]);
    return { presets, parts: partsOf(document), begun: await beginning(presets) };
  };
  const { data, error } = useLive(read, [], () => true);
  if (!may("submit")) {
    return html`<div class="card empty"><h1>You may only look</h1><p>Your key does not let you submit: ask an admin for one that does.</p></div>`;
  }
  return html`<div class="stack">
    <h1>New experiment</h1>
    <${Problem} error=${error} />
    ${data ? html`<${Form} ...${data} me=${me} />` : !error && html`<${Loading} />`}
  </div>`;
}
