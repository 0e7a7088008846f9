// The paper: what each table and figure states, and what our runs of it found.

import { html, useState } from "../vendor/preact-htm.js";
import { get } from "../api.js";
import { duration, titleOf } from "../format.js";
import { useLive } from "../live.js";
import { Loading, Problem, Progress, Status } from "../parts.js";
import { countsOf, runPreset, standingsOf, stateOf } from "../presets.js";
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

/** How long the runs took together; null unless all have ended. */
function timeOf(runs) {
  const took = runs.map((one) => (one?.finished_at ? (Date.parse(one.finished_at) - Date.parse(one.started_at)) / 1000 : NaN));
  const seconds = took.reduce((total, one) => total + one, 0);
  return seconds >= 0 ? `took ${duration(seconds)}` : null;
}

/** A row; a click opens its comparisons, runs and curves. */
function Preset({ preset, standing, me, may, onRun }) {
  const [refused, setRefused] = useState(null);
  const run = () => runPreset(preset).then(() => setRefused(null), setRefused).then(onRun);
  const { runs, verdict } = standing;
  const count = preset.specs.length;
  const needs = preset.needs.length > 0 && `needs ${preset.needs.join(", ")}`;
  return html`<article class="entry" aria-label=${preset.title}><details>
    <summary>
      <h3>${preset.title}</h3>
      <${Thumbnail} preset=${preset} runs=${runs} />
      <span class="muted small wrap">${[needs, timeOf(runs)].filter(Boolean).join(" · ")}</span>
      <${Status} of=${stateOf(standing)} />
    </summary>
    <div class="stack inset">
      <p>${preset.statement}</p>
      ${verdict && html`<${Comparisons} verdict=${verdict} title=${preset.title} />`}
      ${verdict?.missing && html`<p class="muted">${verdict.missing}</p>`}
      <${Runs} runs=${runs} me=${me} />
      <${Curves} preset=${preset} runs=${runs} />
      <${Problem} error=${refused} />
      <div class="row">
        ${may("submit") && html`<button type="button" onClick=${run}>Run${count > 1 && ` all ${count}`}</button>`}
        <a class="button quiet" href=${`/new?preset=${preset.name}`}>Change it first</a>
      </div>
    </div>
  </details></article>`;
}

/** The table or figure that a preset is of; null if it is not of the paper. */
const publishedOf = ({ title }) => /^(Table|Fig\.) \d+/.exec(title)?.[0] ?? null;

/** The presets of the paper, those of a table or figure one after the other, and the others. */
function divided(presets) {
  const order = [...new Set(presets.map(publishedOf))];
  const [others, published] = [true, false].map((beyond) => presets.filter((one) => (publishedOf(one) === null) === beyond));
  published.sort((a, b) => order.indexOf(publishedOf(a)) - order.indexOf(publishedOf(b)));
  return [["Tables and figures", published], ["Beyond the paper", others]];
}

export default function Paper({ me, may }) {
  const presets = useLive(() => get("/v1/presets"), [], () => true);
  const { data, error, refresh } = useLive(
    async () => presets.data && standingsOf(presets.data.items),
    [presets.data],
    (standings) => !standings || Object.values(standings).every(({ runs }) => runs.every((one) => one?.terminal ?? true)),
  );
  return html`<div class="stack">
    <div>
      <h1>The paper</h1>
      <p class="muted">What Moreno-Muñoz, Recasens and Hauberg (2023) published, and what your runs of it found.
        <a href="/help/report">A report of all of them</a> comes with this version.</p>
      ${data && html`<p><strong>${countsOf(Object.values(data))}</strong></p>`}
    </div>
    <${Problem} error=${presets.error ?? error} />
    ${!data && !error && html`<${Loading} />`}
    ${data && divided(presets.data.items).map(([title, items]) => html`<section key=${title} class="card flush" aria-label=${title}>
      <h2>${title}</h2>
      ${items.map((one) => html`<${Preset} key=${one.name} preset=${one} standing=${data[one.name]} me=${me} may=${may} onRun=${refresh} />`)}
    </section>`)}
  </div>`;
}
