// The result of a run in one sentence: its LML, its MPT score, and whether the two agree.

import { html } from "./vendor/preact-htm.js";
import { number, withError } from "./format.js";
import { aboutMean, overSeeds } from "./means.js";

const MAX_ERRORS = 2; // of which a difference is still called agreement
const CLEAR_ERRORS = 3; // from which a difference is hardly chance
const PARTS = [
  { suffix: "", where: "" },
  { suffix: "_heldout", where: ", held out" },
];
const AREA = { name: "area", label: "Area under the curve", unit: "nats" };

/** Whether a score agrees with the LML, by the error of their difference; `tone` alarms only where chance is unlikely. */
function agreement({ value, std_err: error }) {
  if (value === null || !error) return null;
  const errors = Math.abs(value) / error;
  const agrees = errors <= MAX_ERRORS;
  const tone = agrees ? "good-text" : errors > CLEAR_ERRORS ? "bad-text" : "";
  const how = agrees ? "they agree" : `they differ by ${number(errors, 2)} standard errors`;
  return { agrees, tone, text: `${how}: MPT − LML is ${withError(value, error)}` };
}

/**
 * The figures of a run's own model: `[{label, unit, mean, agreement}]` or, without a value, `{label, reason}`, of the training data first. Models
 * that were trained by several objectives have figures each. Those of a baseline are in the table of metrics.
 */
export function resultOf(metrics) {
  const own = overSeeds(metrics).filter(({ labels }) => (labels.model ?? "model") === "model");
  const objectives = [...new Set(own.map(({ labels }) => labels.objective))];
  if (objectives.filter(Boolean).length < 2) return figuresOf(own);
  return objectives.flatMap((objective) => {
    const found = figuresOf(own.filter(({ labels }) => labels.objective === objective));
    return found.map((one) => ({ ...one, label: objective ? `${one.label}, trained by ${objective}` : one.label }));
  });
}

function figuresOf(own) {
  const find = (name) => own.find((one) => one.name === name && one.value !== null);
  const figures = PARTS.flatMap(({ suffix, where }) => {
    const [lml, mpt, difference] = ["lml", "mpt", "difference"].map((name) => find(name + suffix));
    const exact = lml && mpt && !lml.std_err && { value: mpt.value - lml.value, std_err: mpt.std_err };
    const gap = difference ?? exact;
    return [
      lml ? { label: `LML${where}`, unit: "nats", mean: lml } : notFinal(own, `lml${suffix}`, `LML${where}`),
      mpt && { label: `MPT${where}`, unit: "nats", mean: mpt, agreement: gap ? agreement(gap) : null },
    ].filter(Boolean);
  });
  const area = find(AREA.name);
  return area ? [...figures, { ...AREA, mean: area }] : figures;
}

/** A figure that has no value, with the reason of its first seed that tells one. */
function notFinal(own, name, label) {
  const reason = own.find((one) => one.name === name)?.all.find((one) => one.reason)?.reason;
  return reason && { label, reason };
}

export function Result({ metrics }) {
  const figures = resultOf(metrics);
  if (!figures.length) return null;
  return html`<section class="result" aria-label="Result">
    ${figures.map(({ label, unit, mean, reason, agreement: found }) => html`<div key=${label} class="figure">
      <div class="muted small">${label}</div>
      ${reason ? html`<div class="small reason">${reason}</div>` : html`<div class="amount" title=${aboutMean(mean)}>${withError(mean.value, mean.std_err)} <span class="muted small">${unit}</span></div>`}
      ${found && html`<div class=${`small ${found.tone}`}>${found.text}</div>`}
    </div>`)}
  </section>`;
}
