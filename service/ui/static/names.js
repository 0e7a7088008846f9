// Metrics and swept fields in words.

const { results } = globalThis.document?.body.dataset ?? {};

/** Headings of the results and their units, as the service names them. */
const RESULTS = JSON.parse(results ?? "{}");

const METRICS = {
  difference: ["MPT − LML", "nats"],
  elbo: ["ELBO", "nats"],
};
/** Words for the end of a metric's name, after those for its beginning. */
const ENDS = { _behind_best: ", behind the best", _half_interval: ", ½ of the 95 % interval", _population: ", error over the sample", _heldout: ", held out", _per_token: " per token" };
const ACRONYM = /\b(ais|elbo|iwae|kl|lml|mpt)\b/g;
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

/** Whether a metric repeats another, with a wider error or as its interval: tables of several runs leave it out, as `mpt table`. */
export const isDerived = (title) => /^lml_heldout_population|_half_interval/.test(title);

/** A metric in words, with its labels: "LML, held out"; with `hasUnit` for an axis: "LML, held out, nats". */
export function metricName(title, { hasUnit = false } = {}) {
  const [, name, labels] = /^([^[]*)(.*)$/.exec(title);
  const [heading, unit] = nameAndUnit(name);
  return [labels ? `${heading} ${labels}` : heading, hasUnit && unit].filter(Boolean).join(", ");
}

function nameAndUnit(name) {
  const known = RESULTS[name] ?? METRICS[name];
  if (known) return known;
  const end = Object.keys(ENDS).find((one) => name.endsWith(one));
  if (end === undefined) return [name.replaceAll("_", " ").replace(ACRONYM, (word) => word.toUpperCase()), null];
  const [heading, unit] = nameAndUnit(name.slice(0, -end.length));
  return [heading + ENDS[end], unit];
}
