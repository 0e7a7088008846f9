// Means of metrics over seeds, by the same rule as the Python client's `means.py`.

import { labelText } from "./format.js";

const MIN_SEEDS = 3; // from which their spread alone is an error

export function withoutSeed(labels) {
  const { seed, ...others } = labels;
  return others;
}

/**
 * One mean for each name and set of labels other than the seed, in order of appearance: `{key, name,
 * labels, value, std_err, count, all}`. `value` is null where a seed has no value. For one seed the error
 * is the metric's own. For several it is the standard deviation of the values over √count, and at least
 * what the seeds' own errors give; null for two seeds without errors of their own. All seeds share the choice of texts, so that an error over their
 * population is not divided.
 */
export function overSeeds(metrics) {
  const groups = new Map();
  for (const metric of metrics) {
    const labels = withoutSeed(metric.labels);
    const key = `${metric.name} ${JSON.stringify(labels)}`;
    const group = groups.get(key) ?? { key, name: metric.name, labels, all: [] };
    group.all.push(metric);
    groups.set(key, group);
  }
  return [...groups.values()].map((group) => ({ ...group, count: group.all.length, ...meanOf(group) }));
}

const sum = (values) => values.reduce((total, one) => total + one, 0);

/** The choice that the error of a metric with `_population` covers. */
export const chosenOf = ({ name }) => OF_ROWS[name] ?? "texts";

const OF_ROWS = { lml_heldout_population: "held-out rows", lml_population: "rows" };

const coversTexts = ({ name }) => name.endsWith("_population");

/** The mean of the values of `{name, all}` and its error: `{value, std_err}`. */
export function meanOf(group) {
  const metrics = group.all;
  const count = metrics.length;
  if (metrics.some((one) => one.value === null)) return { value: null, std_err: null };
  const value = sum(metrics.map((one) => one.value)) / count;
  if (count === 1) return { value, std_err: metrics[0].std_err };
  const between = Math.sqrt(sum(metrics.map((one) => (one.value - value) ** 2)) / (count - 1) / count);
  const errors = metrics.map((one) => one.std_err);
  const own = Math.hypot(...errors.map((error) => error ?? 0));
  if (!coversTexts(group)) return { value, std_err: count < MIN_SEEDS && between && !own ? null : Math.max(between, own / count) };
  return { value, std_err: errors.includes(null) ? null : Math.hypot(between, own / Math.sqrt(count)) };
}

/** What a metric is called beside others of its name: "lml, model baseline". */
export const meanTitle = ({ name, labels }) => [name, labelText(labels)].filter(Boolean).join(", ");

/** The mean difference of two means by pairs of equal seeds, and its standard error over the pairs. */
export function paired(mean, other) {
  const known = new Map(other.all.map((one) => [one.labels.seed, one.value]));
  const differences = mean.all
    .filter((one) => one.value !== null && (known.get(one.labels.seed) ?? null) !== null)
    .map((one) => ({ ...one, name: "difference", value: one.value - known.get(one.labels.seed), std_err: null }));
  return differences.length ? overSeeds(differences)[0] : null;
}

/** What a mean and its error cover, for its tooltip. */
export function aboutMean(mean) {
  const { value, std_err: error, count, all } = mean;
  const texts = coversTexts(mean) ? `the choice of ${chosenOf(mean)} and ` : "";
  if (count === 1) return error ? `± covers ${texts}the masks or samples of this seed, not its training` : (all[0].reason ?? null);
  if (value === null) return "no mean: a seed has no value";
  if (error === null && !coversTexts(mean)) return "mean over two seeds, which tell no error";
  return `mean over ${count} seeds; ± covers ${texts}the variation between seeds: training, masks, samples`;
}
