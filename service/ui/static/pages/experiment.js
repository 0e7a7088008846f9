// One experiment: where it stands, its curves and metrics, and what may be done with it.

import { html, useMemo } from "../vendor/preact-htm.js";
import { Actions } from "../actions.js";
import { get } from "../api.js";
import { Attempts } from "../attempts.js";
import { Chart } from "../chart.js";
import { chartsOf, colouredAlike, curvesOf, levelsOf } from "../curves.js";
import { dateTime, duration, titleOf } from "../format.js";
import { History } from "../history.js";
import { useLive } from "../live.js";
import { meansOf } from "../means.js";
import { MetricTable } from "../metrics.js";
import { canScoreRows } from "../own-data.js";
import { Loading, Missing, Progress, Scroll, Status, Tabs, Tags, When, withCode } from "../parts.js";
import { readersOf } from "../projects.js";
import { Result } from "../result.js";
import { UnusualRows } from "../rows.js";
import { SpecCopies, SpecSummary, canHaveMoreMasks } from "../spec.js";
import { Texts } from "../texts.js";

const MAX_POINTS = 1_000_000;
const MAX_LINKS = 5;

function Standing({ experiment }) {
  const { queue, desired_state: desired, status } = experiment;
  const asked = status === "running" && desired !== "run" && { pause: "pausing", cancel: "cancelling" }[desired];
  const isAhead = queue?.position > 0 && !queue.reason.endsWith("before it");
  return html`<section class="card stack" aria-labelledby="standing">
    <div class="row"><h2 id="standing">Status</h2><${Status} of=${status} />${asked && html`<span class="muted">${asked}…</span>`}</div>
    <${Progress} experiment=${experiment} />
    ${queue && html`<p>${queue.reason}.
      ${isAhead && html`<span class="muted"> ${queue.position} before it.</span>`}
      ${queue.estimated_start && html`<span class="muted"> It may start ${dateTime(queue.estimated_start)}.</span>`}
      ${queue.promise && html`<span class="muted"> ${queue.promise}.</span>`}
    </p>`}
    <${Facts} experiment=${experiment} />
  </section>`;
}

const CAUSES = { error: "Failed", oom: "Out of memory", invalid: "Cannot be computed", no_gpu: "No GPU", device: "The GPU failed", disk_full: "The disk is full", timeout: "Out of time" };

function Failure({ of: failure }) {
  if (!failure) return null;
  return html`<div class="notice error"><strong>${CAUSES[failure.kind] ?? failure.kind}</strong>
    ${failure.message.includes("\n") ? html`<pre>${failure.message}</pre>` : html`<div class="wrap">${withCode(failure.message)}</div>`}</div>`;
}

/** The warnings of a run, above its results. */
function Warnings({ experiment }) {
  const path = `/v1/experiments/${experiment.id}/logs?level=warning&limit=100`;
  const { data } = useLive(() => get(path), [path, experiment.last_seq], () => true);
  const messages = [...new Set((data?.items ?? []).map(({ message }) => message))];
  if (!messages.length) return null;
  return html`<section class="notice warning" aria-label="Warnings">
    <ul class="list">${messages.map((message) => html`<li key=${message} class="wrap">${withCode(message)}</li>`)}</ul>
  </section>`;
}

/** A link to an experiment by its title, or by the end of its id if one may not read it. */
function Link({ id }) {
  const { data } = useLive(() => get(`/v1/experiments/${id}`), [id], () => true);
  return html`<a href=${`/experiments/${id}`}>${data ? titleOf(data) : id.slice(-6)}</a>`;
}

function Facts({ experiment }) {
  const { started_at: started, finished_at: finished } = experiment;
  const ran = started && finished && duration((Date.parse(finished) - Date.parse(started)) / 1000);
  const facts = [
    ["Owner", experiment.owner],
    ["Created", html`<${When} at=${experiment.created_at} />`],
    ["Started", started && html`<${When} at=${started} />`],
    ["Finished", finished && html`<${When} at=${finished} />`],
    ["Took", ran],
    ["Attempts", experiment.attempt > 1 && experiment.attempt],
    ["Worker", experiment.worker],
    ["Priority", experiment.priority || null],
    ["Project", experiment.project],
    ["Visible to", readersOf(experiment)],
    ["Pinned", experiment.pinned && "yes"],
    ["Model", experiment.spec.model.experiment && html`of <${Link} id=${experiment.spec.model.experiment} />`],
    ["Sweep", experiment.sweep && html`<a href=${`/sweeps/${experiment.sweep}`}>the sweep it is a point of</a>`],
    ["Retry of", experiment.retry_of && html`<${Link} id=${experiment.retry_of} />`],
    ["After", experiment.after.length > 0 && experiment.after.slice(0, MAX_LINKS).map((id) => html`<div key=${id}><${Link} id=${id} /></div>`)],
    ["Id", html`<span class="mono">${experiment.id}</span>`],
  ];
  return html`<dl class="facts">
    ${facts.filter(([, value]) => value).map(([name, value]) => html`<dt>${name}</dt><dd>${value}</dd>`)}
  </dl>`;
}

/** The charts of the trained model before those over its training. */
const resultsFirst = (charts) => [false, true].flatMap((isOver) => charts.filter(({ about: [, x] }) => ["epoch", "step"].includes(x) === isOver));

function Curves({ experiment, curves }) {
  const charts = useMemo(() => resultsFirst(chartsOf(curves.series, curves.partial, experiment.spec)), [curves]);
  if (!charts.length) {
    return experiment.terminal ? null : html`<div class="card empty"><p>Curves appear here as soon as there are points.</p></div>`;
  }
  const alone = charts.length < 3 ? charts.length : charts.length % 2; // of more, two stand side by side
  return html`<div class="halves">${charts.map(({ key, about: [title, xLabel, yLabel], name, series }, i) => {
    const csv = `/v1/experiments/${experiment.id}/curves/${name}?format=csv&max_points=${MAX_POINTS}`;
    const hasSum = name === "score" && experiment.metrics.some((one) => one.name === "mpt");
    const note = hasSum ? "The shaded area is the MPT score, an estimate of the LML." : name === "mpt" && "Each point is an estimate from a few masks.";
    return html`<div key=${key} class=${i < alone ? "across" : ""}><${Chart} title=${title} note=${note} series=${series} xLabel=${xLabel} yLabel=${yLabel}
      lines=${colouredAlike(levelsOf(name, meansOf(experiment)), series)}>
      <a class="button quiet" href=${csv} download=${`${experiment.id}-${name}.csv`}>CSV</a>
    <//></div>`;
  })}</div>`;
}

function Downloads({ experiment, artifacts, hasCurves }) {
  const { id, terminal } = experiment;
  const curves = `/v1/experiments/${id}/curves?max_points=${MAX_POINTS}`;
  const files = [
    ...(hasCurves ? [
      ["Curves, CSV", `${curves}&format=csv`, `${id}-curves.csv`],
      ["Curves, JSON", curves, `${id}-curves.json`],
      ["Curves, Arrow", `${curves}&format=arrow`, `${id}-curves.arrow`],
    ] : []),
    ["Metrics, JSON", `/v1/experiments/${id}/metrics`, `${id}-metrics.json`],
    ...artifacts.map(({ name, url }) => [name, url, name]),
    ...(terminal ? [["All of it, zip", `/v1/experiments/${id}/bundle`, `${id}-bundle.zip`]] : []),
  ];
  return html`<section class="card">
    <h2>Download</h2>
    <ul class="list">${files.map(([text, href, name]) => html`<li class="wrap"><a href=${href} download=${name}>${text}</a></li>`)}</ul>
  </section>`;
}

function Spec({ experiment }) {
  return html`<section class="card stack">
    <${SpecSummary} spec=${experiment.spec} />
    <details><summary>As JSON</summary><pre tabindex="0">${JSON.stringify(experiment.spec, null, 2)}</pre></details>
    <${SpecCopies} spec=${experiment.spec} />
  </section>`;
}

/** What a model drew: samples and reconstructions. */
function Pictures({ artifacts }) {
  const pictures = artifacts.filter((one) => one.media_type.startsWith("image/"));
  if (!pictures.length) return null;
  return html`<section class="card">
    <h2>Pictures</h2>
    <div class="row">${pictures.map(({ name, url }) => html`<figure key=${name}>
      <img class="picture" src=${url} alt=${name} loading="lazy" />
      <figcaption class="small muted">${name.replace(/\.[^.]*$/, "").replace(/[-_]/g, " ")}</figcaption>
    </figure>`)}</div>
  </section>`;
}

function Results({ experiment, artifacts, curves }) {
  return html`<${Texts} experiment=${experiment} />
    <${UnusualRows} experiment=${experiment} />
    ${curves && !experiment.spec.evaluate?.texts && html`<${Curves} experiment=${experiment} curves=${curves} />`}
    ${experiment.metrics.length > 0 && html`<section class="card flush">
      <h2>Metrics</h2>
      <${Scroll} label="Metrics"><${MetricTable} experiment=${experiment} /><//>
    </section>`}
    <${Pictures} artifacts=${artifacts} />`;
}

/** A run that ended early and without any result begins with what happened. */
function tabsOf(experiment, curves) {
  const hasEndedEarly = experiment.terminal && experiment.status !== "succeeded";
  const hasNothing = hasEndedEarly && curves && !curves.series.length && !experiment.metrics.length;
  return [
    ...(hasNothing ? [["history", "What happened"]] : [["results", "Results"]]),
    ["spec", "Spec"],
    ...(experiment.attempts.length ? [["where", "What ran where"]] : []),
    ...(hasNothing ? [] : [["history", "What happened"]]),
  ];
}

export default function Experiment({ me, may }) {
  const id = location.pathname.split("/")[2];
  const one = useLive(() => get(`/v1/experiments/${id}`), [id], (data) => data.terminal);
  const reader = useMemo(() => curvesOf(id), [id]);
  const curves = useLive(reader, [reader], (data) => !data.partial);
  const files = useLive(() => get(`/v1/experiments/${id}/artifacts`), [id, one.data?.last_seq], () => true);
  if (one.error) return html`<${Missing} error=${one.error} />`;
  if (!one.data) return html`<${Loading} />`;
  const experiment = one.data;
  const artifacts = files.data?.items ?? [];
  document.title = `${titleOf(experiment)} · MPT Lab`;
  const tabs = tabsOf(experiment, curves.data);
  const mayHaveMoreMasks = experiment.status === "succeeded" && may("submit") && canHaveMoreMasks(experiment.spec);
  return html`<div class="stack">
    <div class="row spread head">
      <div class="grow">
        <h1>${titleOf(experiment)}</h1>
        <div><${Tags} of=${experiment.tags} /></div>
      </div>
      <${Actions} experiment=${experiment} me=${me} onDone=${() => { one.refresh(); curves.refresh(); }}>
        ${may("submit") && canScoreRows(experiment) && html`<a class="button" href=${`/new?model=${id}`}>Score other rows</a>`}
        ${may("submit") && html`<a class="button" href=${`/new?from=${id}`} title="Opens its spec, to be changed">Run again</a>`}
        ${mayHaveMoreMasks && html`<a class="button" href=${`/new?from=${id}&masks=4`} title="Opens its spec with four times the masks">More masks</a>`}
      <//>
    </div>
    <${Failure} of=${experiment.failure} />
    <${Warnings} experiment=${experiment} />
    ${experiment.note && html`<p class="wrap">${experiment.note}</p>`}
    <${Result} experiment=${experiment} />
    <div class=${`columns three${experiment.terminal ? " ended" : ""}`}>
      <div class="first"><${Standing} experiment=${experiment} /></div>
      <div class="main"><${Tabs} label="Parts of the experiment" tabs=${tabs}>${(tab) => ({
        results: () => html`<${Results} experiment=${experiment} artifacts=${artifacts} curves=${curves.data} />`,
        spec: () => html`<${Spec} experiment=${experiment} />`,
        where: () => html`<${Attempts} experiment=${experiment} />`,
        history: () => html`<${History} id=${id} />`,
      })[tab]()}<//></div>
      <div class="last"><${Downloads} experiment=${experiment} artifacts=${artifacts} hasCurves=${curves.data?.series.length > 0} /></div>
    </div>
  </div>`;
}
