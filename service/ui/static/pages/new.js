// A new experiment: own data, a checkpoint and texts, or a spec; checked while one types.

import { html, useEffect, useMemo, useState } from "../vendor/preact-htm.js";
import { Away, get, post } from "../api.js";
import { Estimate } from "../checking.js";
import { useDraft } from "../draft.js";
import { examplesOf } from "../examples.js";
import { useLive } from "../live.js";
import { OwnData, begunWith as begunWithData, requestOf as ofData } from "../own-data.js";
import { OwnTexts, begunWith as begunWithTexts, requestOf as ofTexts } from "../own-texts.js";
import { Loading, Problem, Tabs } from "../parts.js";
import { useProjects } from "../projects.js";
import { partsOf } from "../schema.js";
import { withMoreMasks } from "../spec.js";
import { SpecEditor, textOf } from "../spec-editor.js";

const PAUSE_MS = 400;
const WAYS = [["data", "Your own data"], ["texts", "A checkpoint and texts"], ["spec", "A spec"]];
const LACKS = { data: "Choose a file and a range of K.", texts: "Choose a checkpoint and give some texts." };

/** What is to be submitted in this way, as `{path, body, checked, count}`; null where something lacks. Throws SyntaxError. */
function requestOf(way, values) {
  if (way === "data") return ofData(values.data);
  if (way === "texts") return ofTexts(values.texts);
  const body = { spec: JSON.parse(values.text) };
  return { path: "/v1/experiments", body, checked: body, count: 1 };
}

/** What is submitted beside the spec. Each way has a name of its own: that of a file is none for texts. */
function besideOf({ names, tags, shared, project }, way) {
  const list = tags.split(",").map((one) => one.trim()).filter(Boolean);
  const name = names[way]?.trim();
  const named = name ? { name } : {};
  return { ...named, tags: list, visibility: shared ? "lab" : null, project: project || null };
}

/** What the service says of the form, asked when one has paused. */
function useCheck(way, values) {
  const [check, setCheck] = useState({});
  useEffect(() => {
    let current = true;
    const set = (found) => current && setCheck(found);
    const timer = setTimeout(async () => {
      try {
        const request = requestOf(way, values);
        const asked = request && { ...request.checked, ...besideOf(values, way) };
        if (request && current) setCheck((before) => ({ ...before, isAsked: true }));
        set(request ? { request, validation: await post("/v1/experiments:validate", asked) } : {});
      } catch (error) {
        set({ error });
      }
    }, PAUSE_MS);
    return () => {
      current = false;
      clearTimeout(timer);
    };
  }, [way, values]);
  return check;
}

/** An experiment whose model scores other rows, with the names of the columns that these need; null without an id. */
async function fittedBy(id) {
  if (!id) return null;
  const { title, spec } = await get(`/v1/experiments/${id}`);
  const { dataset, array, columns } = spec.data;
  const read = dataset && !array ? await get(`/v1/datasets/${dataset}`).catch(() => null) : null; // another member's
  return { id, title, spec, columns: columns ?? read?.columns ?? null };
}

/** What the page begins with, by the address: ?model=ID, ?preset=NAME&part=0, ?from=ID&masks=4, or an example. */
async function beginning(presets, example) {
  const query = new URLSearchParams(location.search);
  const fitted = await fittedBy(query.get("model"));
  if (fitted) return { spec: example, name: "", fitted };
  const preset = presets.find((one) => one.name === query.get("preset"));
  if (preset) return { spec: preset.specs[Number(query.get("part") ?? 0)] ?? preset.specs[0], name: preset.title };
  if (!query.has("from")) return { spec: example, name: "" };
  const experiment = await get(`/v1/experiments/${query.get("from")}`);
  const times = Number(query.get("masks") ?? 1);
  if (times > 1) return { spec: withMoreMasks(experiment.spec, times), name: `${experiment.title}, more masks`.slice(0, 200) };
  return { spec: experiment.spec, name: experiment.name ? `${experiment.name}, again`.slice(0, 200) : "" };
}

/** Opens the tab of the spec, if the address names one and no tab. */
function openSpec() {
  const query = new URLSearchParams(location.search);
  if (query.has("tab") || !["preset", "from"].some((name) => query.has(name))) return;
  query.set("tab", "spec");
  history.replaceState(null, "", `?${query}`);
}

function ProjectChoice({ projects, project, onChoose, problem }) {
  return html`<div class="field">
    <label for="project">Project</label>
    <select id="project" aria-invalid=${Boolean(problem)} onChange=${(event) => onChoose(event.target.value)}>
      <option value="">none: my own share</option>
      ${projects.map(({ name }) => html`<option value=${name} selected=${name === project}>${name}</option>`)}
    </select>
    ${problem && html`<span class="bad-text small">${problem}</span>`}
    <span class="small muted">Its members may read the experiment, and the run is charged to it.</span>
  </div>`;
}

function Form({ way, presets, parts, checkpoints, datasets, begun, me }) {
  const examples = useMemo(() => examplesOf(checkpoints), [checkpoints]);
  const first = useMemo(() => ({
    text: textOf(begun.spec), data: begunWithData(begun.fitted), texts: begunWithTexts(checkpoints), names: { spec: begun.name }, tags: "", shared: false, project: "",
  }), []);
  const query = new URLSearchParams(location.search);
  const { values, change, forget, isKept } = useDraft(`${me.name} ${["preset", "from", "model"].map((one) => query.get(one))}`, first);
  const [refused, setRefused] = useState(null);
  const [busy, setBusy] = useState(false);
  const check = useCheck(way, values);
  const projects = useProjects(me).filter((one) => one.open);
  const error = refused ?? check.error;
  const at = (pointer) => (error?.at ? error.at(pointer) : null);
  const { count = 1 } = check.request ?? {};

  const name = values.names[way] ?? "";
  const named = (given) => ({ names: { ...values.names, [way]: given } });
  const rename = (given) => change(named(given));
  /** The changes of a part of the values; a file or a preset gives the name, unless one has typed another. */
  const changePart = (part) => (changes, given) => {
    const isNamed = name.trim() && name !== values.namedBy;
    change({ [part]: { ...values[part], ...changes }, ...(given && !isNamed ? { ...named(given), namedBy: given } : {}) });
  };
  async function onSubmit(event) {
    event.preventDefault();
    if (!check.validation) return;
    setBusy(true);
    try {
      const { path, body } = check.request;
      const made = await post(path, { ...body, ...besideOf(values, way) });
      forget();
      location.assign(path.endsWith("sweeps") ? `/sweeps/${made.id}` : `/experiments/${made.id}`);
    } catch (problem) {
      setRefused(problem);
      setBusy(false);
    }
  }
  function startOver() {
    forget();
    location.reload();
  }
  useEffect(() => setRefused(null), [way, values]);

  const submits = count > 1 ? `Submit ${count} runs` : "Submit";
  return html`
    ${isKept && html`<p class="row muted">This is what you typed before. <button type="button" class="quiet" onClick=${startOver}>Start over</button></p>`}
    <form class="columns sends" onSubmit=${onSubmit}>
      ${way === "data" && html`<${OwnData} values=${values.data} error=${error} onChange=${changePart("data")}
        earlier=${datasets.filter(({ dim }) => dim !== null)} />`}
      ${way === "texts" && html`<${OwnTexts} values=${values.texts} error=${error} onChange=${changePart("texts")}
        checkpoints=${checkpoints} earlier=${datasets.filter(({ dim }) => dim === null)} />`}
      ${way === "spec" && html`<${SpecEditor} text=${values.text} presets=${presets} parts=${parts} examples=${examples} error=${error}
        onChange=${(text, given) => change({ text, ...(given ? named(given) : {}) })} />`}
      <div class="stack">
        <div class="card stack">
          <div class="field">
            <label for="tags">Tags, with commas between</label>
            <input id="tags" value=${values.tags} onInput=${(event) => change({ tags: event.target.value })} />
          </div>
          ${projects.length > 0 && html`<${ProjectChoice} projects=${projects} project=${values.project} problem=${at("/project")}
            onChoose=${(project) => change({ project })} />`}
          <label class="row"><input type="checkbox" checked=${values.shared} onChange=${(event) => change({ shared: event.target.checked })} />Share with the lab</label>
          <div class="send">
            <div class="field grow">
              <label for="name">Name</label>
              <input id="name" value=${name} maxlength="200" aria-invalid=${Boolean(at("/name"))} onInput=${(event) => rename(event.target.value)} />
              ${at("/name") && html`<span class="bad-text small">${at("/name")}</span>`}
            </div>
            <button class="primary" disabled=${busy || !check.validation}>${busy ? "Submitting…" : submits}</button>
            ${refused && !refused.errors?.length && html`<${Problem} error=${refused} />`}
            ${check.error instanceof Away && html`<p class="muted">The service does not answer now.</p>`}
          </div>
        </div>
        <${Estimate} validation=${check.validation} count=${count} lacks=${check.isAsked ? "Checking…" : check.error ? undefined : values[way]?.fitted ? "Choose a file." : LACKS[way]} />
      </div>
    </form>`;
}

export default function New({ me, may }) {
  const read = async () => {
    const [{ items: presets, checkpoints }, document, { items: datasets }] = await Promise.all([
      get("/v1/presets"), get("/openapi.json"), get("/v1/datasets"),
    ]);
    const example = examplesOf(checkpoints).ppca;
    openSpec();
    return { presets, checkpoints, datasets, parts: partsOf(document), begun: await beginning(presets, example) };
  };
  const { data, error } = useLive(may("submit") ? read : async () => null, [], () => true);
  if (!may("submit")) {
    return html`<div class="card empty"><h1>You may only look</h1><p>Your key does not let you submit: ask an admin for one that does.</p></div>`;
  }
  return html`<div class="stack">
    <h1>${data?.begun.fitted ? `Score rows with ${data.begun.fitted.title}` : "New experiment"}</h1>
    <${Problem} error=${error} />
    ${data && html`<${Tabs} label="Ways to begin" tabs=${WAYS}>${(way) => html`<${Form} ...${data} way=${way} me=${me} />`}<//>`}
    ${!data && !error && html`<${Loading} />`}
  </div>`;
}
