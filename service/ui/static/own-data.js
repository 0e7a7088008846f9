// Own numbers: a file, the models to fit and their latent dimensions. `mpt submit --data FILE` submits the same.

import { html } from "./vendor/preact-htm.js";
import { withCode } from "./parts.js";
import { NUMBERS, Upload, stemOf } from "./upload.js";

const MODELS = { ppca: "PPCA", factor_analysis: "factor analysis", "ppca,factor_analysis": "both" };
const HELDOUT = 0.2; // so that models with more latent dimensions can lose
const EVALUATE = { masks: { schedule: "all", per_size: 100 } };
const MAX_LATENT_DIM = 8;
const MAX_POINTS = 200;

/** The largest K that is tried at first: PPCA and factor analysis have fewer latent dimensions than the data has columns. */
export const firstLast = ({ dim }) => Math.max(1, Math.min(MAX_LATENT_DIM, dim - 1));

/** `fitted` is the experiment whose model scores the rows; null: models are fitted to them. */
export const begunWith = (fitted) => ({ upload: null, array: "", fitted, model: "ppca", first: "1", last: String(MAX_LATENT_DIM) });

/** The whole numbers from one to another; null where there are none, or too many. */
export function rangeOf(first, last) {
  const [low, high] = [first, last].map(Number);
  if (!Number.isInteger(low) || !Number.isInteger(high) || low < 1 || high < low || high - low >= MAX_POINTS) return null;
  return Array.from({ length: high - low + 1 }, (_, i) => low + i);
}

/** Whether the model of an experiment can score the rows of an upload. */
export const canScoreRows = ({ status, spec: { model, data, train } }) =>
  status === "succeeded" && model.family in MODELS && data.source === "upload" && Boolean(train || model.init === "maximum_likelihood");

/** What the model of `fitted`, an experiment with the names of its columns, is asked to score, as that experiment did. */
function scoredBy({ id, spec, columns }, data) {
  const { noise_precision: _, ...model } = spec.model;
  const { binarize, standardize } = spec.data;
  return {
    model: { ...model, init: "experiment", experiment: id },
    data: { ...(binarize && { binarize }), ...(standardize && { standardize }), ...data, ...(columns && { columns }) },
    evaluate: spec.evaluate,
  };
}

/** What these choices submit: `{path, body, checked, count}`, where `checked` is the largest run. Null where something lacks. */
export function requestOf({ upload, array, fitted, model, first, last }) {
  const latentDims = rangeOf(first, last);
  if (!upload || latentDims === null) return null;
  const data = { source: "upload", dataset: upload.id, ...(array ? { array } : {}) };
  if (fitted) {
    const spec = scoredBy(fitted, data);
    return { path: "/v1/experiments", body: { spec }, checked: { spec }, count: 1 };
  }
  const families = model.split(",");
  const specOf = (family, latentDim) => ({
    model: { family, latent_dim: latentDim, init: "maximum_likelihood" },
    data: { heldout: HELDOUT, ...data },
    evaluate: EVALUATE,
  });
  const spec = specOf(families[0], latentDims[0]);
  const count = latentDims.length * families.length;
  const checked = { spec: specOf(families.at(-1), latentDims.at(-1)) };
  if (count === 1) return { path: "/v1/experiments", body: { spec }, checked, count };
  const grid = { "model.latent_dim": latentDims, ...(families.length > 1 ? { "model.family": families } : {}) };
  return { path: "/v1/sweeps", body: { spec, grid }, checked, count };
}

export function OwnData({ values, earlier, error, onChange }) {
  const { upload, array, fitted } = values;
  const isOfRange = ({ pointer }) => !fitted && pointer === "/spec/model/latent_dim";
  const wrong = error?.errors?.find(isOfRange)?.detail;
  const others = error?.errors?.filter((one) => !isOfRange(one)) ?? [];
  const set = (name) => (event) => onChange({ [name]: event.target.value });
  const onUpload = (next) => onChange(next === null
    ? { upload: null, array: "" }
    : { upload: next, array: Object.keys(next.arrays ?? {})[0] ?? "", last: String(firstLast(next)) }, next && stemOf(next.name));
  const arrays = Object.keys(upload?.arrays ?? {});
  return html`<section class="card stack" aria-label="Your own data">
    <${Upload} kinds=${NUMBERS} upload=${upload} earlier=${earlier} onUpload=${onUpload} />
    ${arrays.length > 1 && html`<div class="field">
      <label for="array">Array of the file</label>
      <select id="array" onChange=${set("array")}>${arrays.map((name) => html`<option selected=${name === array}>${name}</option>`)}</select>
    </div>`}
    ${fitted
      ? html`<p>Its rows are scored by the model of <a href=${`/experiments/${fitted.id}`}>${fitted.title}</a>, and those that it finds
        unusual are named with their columns. <button type="button" class="quiet" onClick=${() => onChange({ fitted: null })}>Fit models to them instead</button></p>`
      : html`<${Models} ...${values} wrong=${wrong} onChange=${onChange} />`}
    ${others.length > 0 && html`<ul class="bad-text small" role="alert">${others.map(({ detail }) => html`<li>${withCode(detail)}</li>`)}</ul>`}
  </section>`;
}

/** The models to fit, and their latent dimensions. */
function Models({ model, first, last, wrong, onChange }) {
  const set = (name) => (event) => onChange({ [name]: event.target.value });
  const number = (name, value, label) => html`<input class="count" type="number" min="1" aria-label=${label} value=${value}
    aria-invalid=${Boolean(wrong) || rangeOf(first, last) === null} aria-describedby="k-hint" onInput=${set(name)} />`;
  return html`<div class="entries">
    <div class="field">
      <label for="model">Model</label>
      <select id="model" onChange=${set("model")}>
        ${Object.entries(MODELS).map(([name, title]) => html`<option value=${name} selected=${name === model}>${title}</option>`)}
      </select>
    </div>
    <div class="field" role="group" aria-labelledby="k-label">
      <span id="k-label" class="label">Latent dimensions K</span>
      <div class="row">from ${number("first", first, "K from")} to ${number("last", last, "K to")}</div>
      <span id="k-hint" class=${wrong ? "bad-text small" : "muted small"}>
        ${withCode(wrong ?? "A run for each K. A fifth of the rows is held out, and the sweep says which K describes them best.")}</span>
    </div>
  </div>`;
}
