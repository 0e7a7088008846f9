// The paper: what each table and figure states, and what our runs of it found.

import { html, useState } from "../vendor/preact-htm.js";
import { get } from "../api.js";
import { titleOf } from "../format.js";
import { useLive } from "../live.js";
import { Loading, Problem, Progress, Status } from "../parts.js";
import { runPreset, standingsOf } from "../presets.js";
import { Comparisons, Curves } from "../published.js";

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

function Preset({ preset, standing, me, may, onRun }) {
  const [refused, setRefused] = useState(null);
  const run = () => runPreset(preset).then(() => setRefused(null), setRefused).then(onRun);
  const { runs, verdict } = standing;
  const count = preset.specs.length;
  return html`<article class=${verdict ? "card stack whole" : "card stack"} aria-label=${preset.title}>
    <div class="row spread">
      <h3>${preset.title}</h3>
      ${verdict && html`<${Status} of=${verdict.verdict} />`}
    </div>
    <p>${preset.statement}</p>
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
