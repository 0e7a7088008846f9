// A spec, to be read, and how to send it from elsewhere.

import { html } from "./vendor/preact-htm.js";
import { Refused, get } from "./api.js";
import { leaves, plain } from "./format.js";
import { useLive } from "./live.js";
import { Copy } from "./parts.js";

const FIRST = ["family", "source", "dataset", "schedule", "objective"];

const MAX_ITEMS = 10;

/** A value in short: items with commas between, and of a long list the first three, the last and their number. */
function short(value) {
  if (!Array.isArray(value)) return plain(value);
  const items = value.map(plain);
  if (items.length <= MAX_ITEMS) return items.join(", ");
  return `${items.slice(0, 3).join(", ")}, …, ${items.at(-1)} (${items.length} values)`;
}

/** One part of a spec in a line: what it is, then what is set of it. */
export function summary(part) {
  if (part === null || typeof part !== "object" || Array.isArray(part)) return short(part);
  const told = leaves(part).filter(([, value]) => value !== null && !(Array.isArray(value) && !value.length));
  const isFirst = ([path]) => FIRST.includes(path.split(".").pop());
  return [...told.filter(isFirst), ...told.filter((one) => !isFirst(one))]
    .map(([path, value]) => (FIRST.includes(path) ? short(value) : `${path} ${short(value)}`))
    .join(" · ");
}

const without = (part, ...names) => Object.fromEntries(Object.entries(part).filter(([name]) => !names.includes(name)));
const isOff = (value) => value === null || value === false || (Array.isArray(value) && !value.length);

/** A part without what is off, and without what only a target error or another choice would use. */
function used(part) {
  if (part === null || typeof part !== "object" || Array.isArray(part)) return part;
  const { target_std_err: target, design, heldout, binarize, source } = part;
  const unused = [
    ...("target_std_err" in part && isOff(target) ? ["target", "max_masks"] : []),
    ...(design === "exhaustive" ? ["per_size"] : []),
    ...(["upload", "digits"].includes(source) && isOff(heldout ?? null) && isOff(binarize ?? null) ? ["seed"] : []),
  ];
  const parts = Object.entries(without(part, ...unused)).filter(([, value]) => !isOff(value));
  return Object.fromEntries(parts.map(([name, value]) => [name, used(value)]));
}

/** The parts of a spec that its run uses. Scores of texts use nothing else of `evaluate`. */
export function usedParts(spec) {
  const parts = used(spec);
  const { texts, target_std_err: target, masks } = parts.evaluate ?? {};
  if (texts) parts.evaluate = { texts };
  else if (target && masks) parts.evaluate.masks = without(masks, "per_size");
  return parts;
}

const ofTable = ({ name, columns }, part) => ({
  ...without(part, "dataset", "n", "dim"),
  dataset: name,
  ...(columns && { columns: part.columns ?? columns }),
  ...(part.n && { rows: part.n }),
});

/** A spec with names in place of the ids of its upload and of the experiment that it begins from. */
export const withNames = (parts, { dataset, experiment }) => ({
  ...parts,
  ...(experiment && { model: { ...parts.model, experiment } }),
  ...(dataset && { data: ofTable(dataset, parts.data) }),
});

/** What an id names; null for what one may not read. */
const named = (id, path) => id && get(`${path}/${id}`).catch((error) => {
  if (error instanceof Refused) return null;
  throw error;
});

async function namesOf({ data, model }) {
  const [dataset, experiment] = await Promise.all([named(data.dataset, "/v1/datasets"), named(model.experiment, "/v1/experiments")]);
  return { dataset, experiment: experiment?.title };
}

export function SpecSummary({ spec }) {
  const { data: names } = useLive(() => namesOf(spec), [spec], () => true);
  const parts = Object.entries(withNames(usedParts(spec), names ?? {}));
  return html`<dl class="facts">
    ${parts.map(([name, part]) => html`<dt>${name}</dt><dd>${summary(part)}</dd>`)}
  </dl>`;
}

/** Whether more masks make the errors of a run smaller: those of exact scores of texts and of all masks do not change. */
export function canHaveMoreMasks({ evaluate }) {
  if (evaluate?.texts) return Boolean(evaluate.texts.target_std_err);
  return evaluate !== null && evaluate?.masks?.design !== "exhaustive";
}

/** A spec with a number of times the masks: all sizes get them, or a target error shrinks by its root. */
export function withMoreMasks(spec, times) {
  const more = (part) => (part?.target_std_err ? { ...part, target_std_err: part.target_std_err / Math.sqrt(times), max_masks: part.max_masks && part.max_masks * times } : part);
  const { evaluate } = spec;
  if (!evaluate) return spec;
  const { masks, texts } = evaluate;
  return {
    ...spec,
    evaluate: {
      ...more(evaluate),
      ...(masks?.per_size && { masks: { ...masks, per_size: masks.per_size * times } }),
      ...(texts && { texts: more(texts) }),
    },
  };
}

/** What one types to run the same again. */
function asCurl(spec) {
  const body = JSON.stringify({ spec }, null, 1).replaceAll("'", "'\\''");
  return `curl -s -H "Authorization: Bearer $MPT_API_KEY" -H "Content-Type: application/json" \\
  -d '${body}' ${location.origin}/v1/experiments`;
}

function asPython(spec) {
  return `import json
from mptlab import Client

spec = json.loads(r"""${JSON.stringify(spec, null, 1)}""")
with Client("${location.origin}") as client:
    experiment = client.submit(spec)
    print(client.wait(experiment["id"])["metrics"])
`;
}

export function SpecCopies({ spec }) {
  return html`<div class="row">
    <${Copy} text=${() => JSON.stringify(spec, null, 2)}>Copy JSON<//>
    <${Copy} text=${() => asCurl(spec)}>Copy as curl<//>
    <${Copy} text=${() => asPython(spec)}>Copy as Python<//>
  </div>`;
}
