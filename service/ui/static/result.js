// The results of a run in large figures, as the service gives them: after training, with what they were before, and
// whether the MPT score agrees with the LML.

import { html } from "./vendor/preact-htm.js";
import { cut, number, withError } from "./format.js";
import { aboutMean, meansOf } from "./means.js";
import { chosenOf } from "./metrics.js";
import { metricName } from "./names.js";

const TONES = { agree: "good-text", differ: "bad-text", unclear: "" };

/** The rows of a summary that are results. */
export const resultsOf = (summary) => (summary ?? []).filter(({ label }) => label !== null);

const LABEL_CHARACTERS = 18;
const PLACE_CHARACTERS = 40;

/** The heading of a result in a table: a shorter one if it is long, as "LML mpt" for "LML, trained by mpt", or "pll" for "Pseudo-log-likelihood". */
export const shortLabel = ({ label, name, labels }) =>
  [label, [metricName(name), labels?.objective].filter(Boolean).join(" ")].find((text) => text && text.length <= LABEL_CHARACTERS) ?? name;

/** The value of a sweep's best point. */
export function BestPoint({ of: { metric, label, value, std_err: error, at } }) {
  return html`<span class="muted small">best ${shortLabel({ label, name: metric })}</span> <span class="number">${withError(value, error)}</span>${at && html` <span class="muted small">at ${cut(at, PLACE_CHARACTERS)}</span>`}`;
}

/** The result of a sweep's point that decides which is best. */
export function ofPoint(experiment, best) {
  const mean = best && experiment.summary.find(({ name }) => name === best.metric);
  return mean ? { ...mean, label: best.label } : null;
}

/** The value of an area beside its number of tokens and the width of its rates: "= −1.868 per token × 512 tokens × width 0.99". */
export function tokensText({ value, tokens }, summary) {
  if (!tokens || value === null) return null;
  const width = summary.find(({ name }) => name === "area_width")?.value ?? 1;
  return `= ${number(value / tokens / width, 4)} per token × ${tokens} tokens${width === 1 ? "" : ` × width ${number(width)}`}`;
}

/** What a result was before training, and is now: "−56.48 at epoch 0 → −10.20". */
export function beforeText({ value, std_err: error, before }) {
  if (!before) return null;
  const at = Object.entries(before.at).map(([unit, time]) => `${unit} ${time}`).join(", ");
  return `${withError(before.value, before.std_err)} at ${at} → ${withError(value, error)}`;
}

/** Whether a score agrees with the LML: "they agree: MPT − LML is 0.14 ± 0.10". */
export const agreementText = ({ agreement }) =>
  agreement && `${agreement.text}: MPT − LML is ${withError(agreement.value, agreement.std_err)}`;

/** The error of a mean if others had been chosen, such as "± 2.1 over 24 texts"; null without one. */
export function overText(row, summary) {
  const isOf = ({ name, labels }) => name === `${row.name}_population` && JSON.stringify(labels) === JSON.stringify(row.labels);
  const population = summary.find(isOf);
  if (!population?.std_err || row.value === null) return null;
  const scored = summary.find(({ name }) => name === "texts_scored");
  const chosen = chosenOf(population);
  const error = withError(row.value, population.std_err).split(" ").slice(1).join(" ");
  return `${error} over ${chosen === "texts" && scored ? `${scored.value} texts` : chosen}`;
}

/** The values of the seeds of a result that has no error: "from −58.93 to −56.39 by seed"; null where they do not differ. */
export function seedsText({ std_err: error, all }) {
  const values = all.map(({ value }) => value).filter((value) => value !== null);
  const [least, most] = [Math.min(...values), Math.max(...values)].map((value) => withError(value, null));
  return error || values.length < 2 || least === most ? null : `from ${least} to ${most} by seed`;
}

/** The heading of a large figure: in words, because it stands alone. */
export const inWords = (label) => label.replace(/^LML\b/, "Log marginal likelihood (LML)").replace(/^MPT\b/, "Masked score (MPT)").replace(/^Pseudo-log-likelihood$/, "$& (pll)");

/** The unit of a large figure: that of a mean says of what, "nats per row". */
export function unitOf({ name, unit, tokens }, summary) {
  if (unit !== "nats") return unit;
  if (tokens) return `nats per ${tokens} tokens`;
  if (/^(lml|mpt|elbo)/.test(name)) return "nats per row";
  return summary.some((one) => one.name === "texts_scored") ? "nats per text" : unit;
}

export function Result({ experiment }) {
  const { summary } = experiment;
  const results = resultsOf(meansOf(experiment));
  if (!results.length) return null;
  return html`<section class="result" aria-label="Result">
    ${results.map((row) => html`<div key=${row.title} class="figure">
      <div class="muted small">${inWords(row.label)}</div>
      ${row.value === null
        ? html`<div class="small reason">${row.reason ?? "no value"}</div>`
        : html`<div class="amount" title=${aboutMean(row)}>${withError(row.value, row.std_err)} <span class="muted small">${unitOf(row, summary)}</span></div>`}
      ${row.tokens && overText(row, summary) && row.std_err > 0 && html`<div class="small">± ${withError(row.value, row.std_err).split("± ")[1]} by the masks</div>`}
      ${overText(row, summary) && html`<div class="small" title="the error of the mean if others of the same kind had been chosen">${overText(row, summary)}</div>`}
      ${seedsText(row) && html`<div class="small">${seedsText(row)}</div>`}
      ${row.tokens && html`<div class="small">${tokensText(row, summary)}</div>`}
      ${row.before && html`<div class="small">${beforeText(row)}</div>`}
      ${row.agreement && html`<div class=${`small ${TONES[row.agreement.outcome]}`}>${agreementText(row)}</div>`}
    </div>`)}
  </section>`;
}
