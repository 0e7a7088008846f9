// The paper: what each table and figure states, and what our runs of it found.

import { html, useState } from "../vendor/preact-htm.js";
import { get } from "../api.js";
import { duration, titleOf } from "../format.js";
import { useLive } from "../live.js";
import { Loading, Problem, Progress, Status, withCode } from "../parts.js";
import { byFigure, countsOf, isHere, quickOnes, runPresets, secondsOf, standingsOf, stateOf } from "../presets.js";
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

/** What a preset needs, and how long its runs took or are expected to take; or what of it is missing. */
function factsOf(preset, runs) {
  const lacks = Object.keys(preset.missing);
  if (lacks.length) return missingOf(lacks);
  const needs = preset.needs.length > 0 && `needs ${preset.needs.join(", ")}`;
  return [needs, timeOf(runs) ?? expectedTime([preset])].filter(Boolean).join(" · ");
}

/** How long presets take together, where that is known. */
function expectedTime(presets) {
  const seconds = secondsOf(presets);
  if (seconds === null) return null;
  return seconds < 1 ? duration(seconds) : `about ${duration(seconds)}`;
}

const missingOf = (names) => `missing: ${names.slice(0, 3).join(", ")}${names.length > 3 ? " …" : ""}`;

/** A row; a click opens its comparisons, runs and curves. */
function Preset({ preset, standing, me, may, onRun }) {
  const [refused, setRefused] = useState(null);
  const run = () => runPresets([preset]).then(() => setRefused(null), setRefused).then(onRun);
  const { runs, verdict } = standing;
  const count = preset.specs.length;
  const lacks = Object.values(preset.missing);
  return html`<article class="entry" aria-label=${preset.title}><details>
    <summary>
      <h3>${preset.title}</h3>
      <${Thumbnail} preset=${preset} runs=${runs} />
      <span class="muted small wrap">${factsOf(preset, runs)}</span>
      <${Status} of=${stateOf(standing)} />
    </summary>
    <div class="stack inset">
      <p>${preset.statement}</p>
      ${lacks.length > 0 && html`<ul class="notice warning list">${lacks.map((why) => html`<li>${withCode(why)}</li>`)}</ul>`}
      ${verdict && html`<${Comparisons} verdict=${verdict} title=${preset.title} />`}
      ${verdict?.missing && html`<p class="muted">${verdict.missing}</p>`}
      <${Runs} runs=${runs} me=${me} />
      <${Curves} preset=${preset} runs=${runs} />
      <${Problem} error=${refused} />
      <div class="row">
        ${may("submit") && !lacks.length && html`<button type="button" onClick=${run}>Run${count > 1 && ` all ${count}`}</button>`}
        <a class="button quiet" href=${`/new?preset=${preset.name}`}>Change it first</a>
      </div>
    </div>
  </details></article>`;
}

/** The rows of a figure, folded: how many they are, how long they take together, and where they stand. */
function Figure({ title, presets, standings, row }) {
  if (presets.length === 1) return row(presets[0]);
  const states = [...new Set(presets.map(({ name }) => stateOf(standings[name])))];
  const lacks = [...new Set(presets.flatMap(({ missing }) => Object.keys(missing)))];
  const facts = [`${presets.length} parts`, lacks.length ? missingOf(lacks) : expectedTime(presets)];
  const subjects = presets.map((one) => one.title.split(": ").slice(1).join(": ") || one.title);
  return html`<div class="entry" role="group" aria-label=${title}><details>
    <summary>
      <div class="line"><h3>${title}</h3> <span class="muted small">${subjects.join("; ")}</span></div>
      <span class="muted small wrap">${facts.filter(Boolean).join(" · ")}</span>
      ${states.length === 1 ? html`<${Status} of=${states[0]} />` : html`<span class="status counts">${countsOf(presets.map(({ name }) => standings[name]), false)}</span>`}
    </summary>
    ${presets.map(row)}
  </details></div>`;
}

/** Queues all presets that take less than a minute each. */
function QuickOnes({ presets, onRun }) {
  const [busy, setBusy] = useState(false);
  const [refused, setRefused] = useState(null);
  if (!presets.length) return null;
  const run = () => {
    setBusy(true);
    return runPresets(presets).then(() => setRefused(null), setRefused).then(() => setBusy(false)).then(onRun);
  };
  return html`<div class="row">
      <button type="button" class="primary" disabled=${busy} onClick=${run}>Run all ${presets.length} quick ones</button>
      <span class="muted">${expectedTime(presets)} of one worker</span>
    </div>
    <${Problem} error=${refused} />`;
}

export default function Paper({ me, may }) {
  const presets = useLive(() => get("/v1/presets"), [], () => true);
  const { data, error, refresh } = useLive(
    async () => presets.data && standingsOf(presets.data.items),
    [presets.data],
    (standings) => !standings || Object.values(standings).every(({ runs }) => runs.every((one) => one?.terminal ?? true)),
  );
  const items = presets.data?.items ?? [];
  const row = (one) => html`<${Preset} key=${one.name} preset=${one} standing=${data[one.name]} me=${me} may=${may} onRun=${refresh} />`;
  const sections = data ? Object.entries({
    "Can run here": items.filter((one) => isHere(one, data[one.name])),
    "Something is missing here": items.filter((one) => !isHere(one, data[one.name])),
  }) : [];
  return html`<div class="stack">
    <div>
      <h1>The paper</h1>
      <p class="muted">What Moreno-Muñoz, Recasens and Hauberg (2023) published, and what your runs of it found.${" "}
        <a href="/help/report">A report of all of them</a> comes with this version.</p>
      ${data && html`<p><strong>${countsOf(Object.values(data))}</strong></p>`}
      ${data && may("submit") && html`<${QuickOnes} presets=${quickOnes(items, data)} onRun=${refresh} />`}
    </div>
    <${Problem} error=${presets.error ?? error} />
    ${!data && !error && html`<${Loading} />`}
    ${sections.filter(([, some]) => some.length).map(([title, some]) => html`<section key=${title} class="card flush" aria-label=${title}>
      <h2>${title}</h2>
      ${byFigure(some).map(([figure, parts]) => html`<${Figure} key=${figure} title=${figure} presets=${parts} standings=${data} row=${row} />`)}
    </section>`)}
  </div>`;
}
