// The paper: what each table and figure states, and what our runs of it found.

import { html, useState } from "../vendor/preact-htm.js";
import { get } from "../api.js";
import { duration, titleOf } from "../format.js";
import { useLive } from "../live.js";
import { Loading, Problem, Progress, Status } from "../parts.js";
import { runPreset, standingsOf } from "../presets.js";
import { Comparisons, Curves, Thumbnail } from "../published.js";

function Runs({ runs, me }) {
  const made = runs.filter(Boolean);
  if (!made.length) return null;
  return html`<ul>${made.map((one) => html`<li key=${one.id}>
    <a href=${`/experiments/${one.id}`}>${titleOf(one)}</a> <${Status} of=${one.status} />
    ${one.owner !== me.name && html` <span class="muted small">of ${one.owner}</span>`}
    ${one.status === "running" && html`<${Progress} experiment=${one} label=${`Progress of ${titleOf(one)}`} />`}
  </li>`)}</ul>
  ${made.length > 1 && html`<p><a href=${`/compare?ids=${made.map((one) => one.id).join(",")}`}>Compare them</a></p>`}`;
}

/** "not run", "running", "incomplete", or the verdict. */
function stateOf({ runs, verdict }) {
  const made = runs.filter(Boolean);
  if (verdict) return verdict.verdict;
  if (!made.length) return "not run";
  return made.every(({ terminal }) => terminal) ? "incomplete" : "running";
}

/** What the runs of a preset read, and how long they took. */
function Facts({ preset, runs }) {
  const took = runs.map((one) => (one?.finished_at ? (Date.parse(one.finished_at) - Date.parse(one.started_at)) / 1000 : NaN));
  const seconds = took.reduce((total, one) => total + one, 0);
  const facts = [preset.needs.length && `needs ${preset.needs.join(", ")}`, seconds >= 0 && `took ${duration(seconds)}`].filter(Boolean);
  return facts.length > 0 && html`<p class="muted small">${facts.join(" · ")}</p>`;
}

function Preset({ preset, standing, me, may, onRun }) {
  const [refused, setRefused] = useState(null);
  const run = () => runPreset(preset).then(() => setRefused(null), setRefused).then(onRun);
  const { runs, verdict } = standing;
  const count = preset.specs.length;
  return html`<article class=${verdict ? "card stack across" : "card stack"} aria-label=${preset.title}>
    <div class="row spread">
      <h3 class="grow">${preset.title}</h3>
      <${Status} of=${stateOf(standing)} />
    </div>
    <div class="row spread"><p class="grow">${preset.statement}</p><${Thumbnail} preset=${preset} runs=${runs} /></div>
    <${Facts} preset=${preset} runs=${runs} />
    ${verdict && html`<${Comparisons} verdict=${verdict} />`}
    ${verdict?.missing && html`<p class="muted">${verdict.missing}</p>`}
    <${Runs} runs=${runs} me=${me} />
    <${Curves} preset=${preset} runs=${runs} />
    <${Problem} error=${refused} />
    <div class="row">
      ${may("submit") && html`<button type="button" onClick=${run}>Run${count > 1 && ` all ${count}`}</button>`}
      <a class="button quiet" href=${`/new?preset=${preset.name}`}>Change it first</a>
    </div>
  </article>`;
}

/** Presets by the table or figure that they are of. */
function grouped(presets) {
  const groups = new Map();
  for (const preset of presets) {
    const of = /^(Table|Fig\.) \d+/.exec(preset.title)?.[0] ?? "Beyond the paper";
    groups.set(of, [...(groups.get(of) ?? []), preset]);
  }
  return [...groups];
}

export default function Paper({ me, may }) {
  const presets = useLive(() => get("/v1/presets"), [], () => true);
  const { data, error, refresh } = useLive(
    async () => presets.data && standingsOf(presets.data.items),
    [presets.data],
    (standings) => !standings || Object.values(standings).every(({ runs }) => runs.every((one) => one?.terminal ?? true)),
  );
  return html`<div class="stack">
    <h1>The paper</h1>
    <p class="muted">What Moreno-Muñoz, Recasens and Hauberg (2023) published, and what your runs of it found.</p>
    <${Problem} error=${presets.error ?? error} />
    ${!data && !error && html`<${Loading} />`}
    ${data && grouped(presets.data.items).map(([of, items]) => html`<section key=${of} aria-label=${of}>
      <h2>${of}</h2>
      <div class="halves">
        ${items.map((one) => html`<${Preset} key=${one.name} preset=${one} standing=${data[one.name]} me=${me} may=${may} onRun=${refresh} />`)}
      </div>
    </section>`)}
  </div>`;
}
