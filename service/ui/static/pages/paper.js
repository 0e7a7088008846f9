// The paper: what each table and figure states, and what our runs of it found.

import { html, useState } from "../vendor/preact-htm.js";
import { get } from "../api.js";
import { number } from "../format.js";
import { useLive } from "../live.js";
import { Loading, Problem, Progress, Scroll, Status } from "../parts.js";
import { runPreset, standingOf } from "../presets.js";

function Comparisons({ verdict }) {
  if (!verdict.comparisons.length) return null;
  const bounds = ({ low, high }) => `${low === null ? "" : number(low, 5)} … ${high === null ? "" : number(high, 5)}`;
  return html`<${Scroll} label="Published and measured"><table>
    <thead><tr><th scope="col">Figure</th><th scope="col" class="number">Published</th><th scope="col" class="number">Measured</th><th scope="col" class="number wide">Agrees within</th></tr></thead>
    <tbody>${verdict.comparisons.map((one) => html`<tr key=${one.what}>
      <th scope="row">${one.what}</th>
      <td class="number">${number(one.published, 5)}</td>
      <td class=${one.agrees ? "number" : "number bad-text"}>${number(one.measured, 5)}${!one.agrees && html` <span class="small">differs</span>`}</td>
      <td class="number wide muted">${bounds(one)}</td>
    </tr>`)}</tbody>
  </table><//>`;
}

function Published({ published }) {
  return html`<dl class="facts small">
    ${Object.entries(published).map(([name, values]) => html`<dt>${name}</dt><dd>${values.map((one) => number(one, 5)).join(" ± ")}</dd>`)}
  </dl>`;
}

function Runs({ runs }) {
  const made = runs.filter(Boolean);
  if (!made.length) return null;
  return html`<ul>${made.map((one) => html`<li key=${one.id}>
    <a href=${`/experiments/${one.id}`}>${one.name}</a> <${Status} of=${one.status} />
    ${one.status === "running" && html`<${Progress} experiment=${one} label=${`Progress of ${one.name}`} />`}
  </li>`)}</ul>
  <p><a href=${`/compare?ids=${made.map((one) => one.id).join(",")}`}>See their curves</a></p>`;
}

function Preset({ preset, may }) {
  const isDone = ({ runs }) => runs.every((one) => one === null || one.terminal);
  const { data, error, refresh } = useLive(() => standingOf(preset), [preset.name], isDone);
  const [refused, setRefused] = useState(null);
  const run = () => runPreset(preset).then(() => setRefused(null), setRefused).then(refresh);
  const count = preset.specs.length;
  return html`<article class="card stack" aria-label=${preset.title}>
    <div class="row spread">
      <h2>${preset.title}</h2>
      ${data?.verdict && html`<${Status} of=${data.verdict.verdict} />`}
    </div>
    <p>${preset.statement}</p>
    ${data?.verdict ? html`<${Comparisons} verdict=${data.verdict} />` : html`<${Published} published=${preset.published} />`}
    ${data?.verdict?.missing && html`<p class="muted">${data.verdict.missing}</p>`}
    ${data && html`<${Runs} runs=${data.runs} />`}
    <${Problem} error=${error ?? refused} />
    <div class="row">
      ${may("submit") && html`<button type="button" onClick=${run}>Run${count > 1 && ` all ${count}`}</button>`}
      <a class="button quiet" href=${`/new?preset=${preset.name}`}>Change it first</a>
    </div>
  </article>`;
}

export default function Paper({ may }) {
  const { data, error } = useLive(() => get("/v1/presets"), [], () => true);
  return html`<div class="stack">
    <h1>The paper</h1>
    <p class="muted">What Moreno-Muñoz, Recasens and Hauberg (2023) published, and what your runs of it found.</p>
    <${Problem} error=${error} />
    ${!data && !error && html`<${Loading} />`}
    ${data && html`<div class="halves">${data.items.map((one) => html`<${Preset} key=${one.name} preset=${one} may=${may} />`)}</div>`}
  </div>`;
}
