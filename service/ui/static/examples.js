// A small spec for each family, which a form begins with, and what becomes of a spec when its family changes.

import { fitted, isGroup, same, tagOf } from "./schema.js";

const SEEDS = [4, 44];
const MASKS = { masks: { schedule: "all", per_size: 100 } };
const FIXED = { masks: { schedule: "fixed", rate: 0.33, per_size: 4 } };
const BINARY = { source: "digits", binarize: "threshold" };
const gaussian = (family, latentDim, data) => ({
  model: { family, latent_dim: latentDim, init: "maximum_likelihood" },
  data,
  evaluate: MASKS,
  seeds: SEEDS,
});
const vae = (family, objective, more = {}) => ({
  model: { family, latent_dim: 2, likelihood: { distribution: "bernoulli" }, ...more },
  data: BINARY,
  train: { epochs: 60, learning_rate: 0.01, evaluate_every: 20, objective: [objective] },
  evaluate: FIXED,
  seeds: SEEDS,
});

/** The examples by family; that of a language model names a checkpoint of this lab. */
export const examplesOf = (checkpoints) => ({
  ppca: gaussian("ppca", 10, { source: "digits" }),
  factor_analysis: gaussian("factor_analysis", 3, { source: "ppca", n: 200, dim: 20, latent_dim: 3, noise_precision: 5 }),
  linear_vae: vae("linear_vae", "elbo"),
  vae: vae("vae", "mpt", { network: { layers: "dense", widths: [64] } }),
  masked_lm: {
    model: { family: "masked_lm", checkpoint: checkpoints[0] ?? "bert-base-uncased" },
    data: { source: "text", lines: ["The cat sat on the mat.", "The cat sit on the mat."] },
    seeds: [4],
  },
});

/**
 * A spec after the choice of another family. What was the example of the former family becomes that of the new one; what was
 * changed is kept as far as it fits, and what then lacks is taken from the example.
 */
export function withFamily(part, next, before, examples) {
  const former = examples[before.model?.family] ?? {};
  const example = examples[next.model?.family] ?? {};
  const kept = fitted(part, next);
  const fields = Object.keys(part.fields).map((name) => {
    const wasExample = same(before[name], former[name]);
    return [name, wasExample ? example[name] : filled(part.fields[name], kept[name], next[name], example[name])];
  });
  return Object.fromEntries(fields.filter(([, value]) => value !== undefined));
}

/** A part with the fields of the example that it has to have. If the new family has no such part, it is the example's. */
function filled(field, kept, value, example) {
  if (!isGroup(field) || example === undefined) return kept ?? (field.required ? example : undefined);
  if (field.kind === "union" && value !== undefined && !(value[field.tag] in field.members)) return example;
  if (kept === undefined) return field.required ? example : undefined;
  const { fields } = field.kind === "union" ? field.members[tagOf(field, kept)] : field;
  const isAlike = field.kind !== "union" || kept[field.tag] === example[field.tag];
  const lacking = Object.keys(fields).filter((name) => isAlike && fields[name].required && !isUsable(fields[name], kept[name]));
  return { ...kept, ...Object.fromEntries(lacking.filter((name) => name in example).map((name) => [name, example[name]])) };
}

/** Whether a value has all fields that it has to have. */
function isUsable(field, value) {
  if (value === undefined || !isGroup(field)) return value !== undefined;
  const { fields } = field.kind === "union" ? field.members[tagOf(field, value)] : field;
  return Object.keys(fields).every((name) => !fields[name].required || value[name] !== undefined);
}
