// Metrics and swept fields in words.

const { results } = globalThis.document?.body.dataset ?? {};

/** Headings of the results and their units, as the service names them. */
const RESULTS = JSON.parse(results ?? "{}");

const METRICS = {
  difference: ["MPT − LML", "nats"],
  difference_heldout: ["MPT − LML, held out", "nats"],
  lml_heldout_behind_best: ["LML, held out, behind the best", "nats"],
};
const FIELDS = {
  "model.latent_dim": "latent dimensions K",
  "data.n": "observations N",
  "data.dim": "dimensions D",
  "data.latent_dim": "latent dimensions of the data",
  "data.noise_precision": "noise precision of the data",
  "data.seed": "seed of the data",
  "evaluate.masks.per_size": "masks of each size P",
  "evaluate.masks.design": "design of the masks",
  "evaluate.masks.schedule": "schedule of the masks",
  "train.masks.per_size": "masks of each size in training",
  seeds: "seed",
};

/** A swept field in words: "latent dimensions K", or the end of its path. */
export const fieldName = (path) => FIELDS[path] ?? path.split(".").pop().replaceAll("_", " ");

/** A swept field before its value: its letter if it has one, "K". */
export const fieldSymbol = (path) => / ([A-Z])$/.exec(fieldName(path))?.[1] ?? fieldName(path);

/** A metric in words, with its labels: "LML, held out"; with `hasUnit` for an axis: "LML, held out, nats". */
export function metricName(title, { hasUnit = false } = {}) {
  const [, name, labels] = /^([^[]*)(.*)$/.exec(title);
  const [heading, unit] = RESULTS[name] ?? METRICS[name] ?? [name.replaceAll("_", " "), null];
  return [labels ? `${heading} ${labels}` : heading, hasUnit && unit].filter(Boolean).join(", ");
}
