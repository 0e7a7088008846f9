// Means over seeds: those of metrics come from the service; those of curves are computed here by the same rule.

const MIN_SEEDS = 3; // from which their spread alone is an error
const INTERIM = ["epoch", "step"];

export function withoutSeed(labels) {
  const { seed, ...others } = labels;
  return others;
}

const keyOf = ({ name, labels }) => `${name} ${JSON.stringify(Object.entries(withoutSeed(labels)).sort())}`;

/** Whether a metric is of an epoch or step of `train.curve_at`, not the final one. */
export const isInterim = ({ labels }) => INTERIM.some((name) => name in labels);

/** The rows of a summary, final ones first, each with its values of the seeds as `all`. */
export function meansOf({ summary, metrics }) {
  const groups = new Map();
  for (const metric of metrics) {
    const key = keyOf(metric);
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(metric);
  }
  const means = summary.map((row) => ({ ...row, key: row.title, all: groups.get(keyOf(row)) ?? [] }));
  return [...means.filter((one) => !isInterim(one)), ...means.filter(isInterim)];
}

const sum = (values) => values.reduce((total, one) => total + one, 0);

/** The mean of some values with errors, `{value, std_err}` each, and its error, as the service computes that of a metric. */
export function meanOf(points) {
  const count = points.length;
  if (points.some((one) => one.value === null)) return { value: null, std_err: null };
  const value = sum(points.map((one) => one.value)) / count;
  if (count === 1) return { value, std_err: points[0].std_err };
  const between = Math.sqrt(sum(points.map((one) => (one.value - value) ** 2)) / (count - 1) / count);
  const within = Math.hypot(...points.map((one) => one.std_err ?? 0)) / count;
  return { value, std_err: count < MIN_SEEDS && between && !within ? null : Math.max(between, within) };
}

/** The mean difference of two means by pairs of equal seeds, and its standard error over the pairs; null without a pair. */
export function paired(mean, other) {
  const known = new Map(other.all.map((one) => [one.labels.seed, one.value]));
  const differences = mean.all
    .filter((one) => one.value !== null && (known.get(one.labels.seed) ?? null) !== null)
    .map((one) => ({ value: one.value - known.get(one.labels.seed), std_err: null }));
  return differences.length ? { ...meanOf(differences), count: differences.length } : null;
}

const MIN_PARTS = 8; // from which a standard error is computed
export const isSame = (a, b) => a.length === b.length && a.every((one, i) => one === b[i]);

/** The held-out LML of each part of the rows, the mean over seeds, and the number of rows of each; null where it is not known. */
export function partsOf(series) {
  const own = series.filter(({ name, labels }) => name === "lml_heldout_parts" && !Object.keys(withoutSeed(labels)).length);
  if (!own.length || !own.every(({ n }) => isSame(n, own[0].n))) return null;
  return { n: own[0].n, value: own[0].value.map((_, i) => sum(own.map((one) => one.value[i])) / own.length) };
}

/** A difference with its error over the held-out rows that both share, as in the table of a sweep, if that is known. */
export function withErrorOfParts(difference, one, other) {
  if (!one || !other || !isSame(one.n, other.n) || one.n.length < MIN_PARTS) return difference;
  const [count, apart] = [sum(one.n), one.value.map((value, i) => value - other.value[i])];
  const mean = sum(apart.map((value, i) => one.n[i] * value)) / count;
  const variance = sum(apart.map((value, i) => one.n[i] * (value - mean) ** 2)) / (one.n.length - 1);
  return { ...difference, std_err: Math.sqrt(variance / count) };
}

/** What a mean and its error cover, for its tooltip. */
export function aboutMean({ value, std_err: error, count, covers, reason }) {
  if (value === null) return reason ?? "no mean: a seed has no value";
  if (count === 1) return error ? `± covers ${covers}` : reason;
  if (error === null) return `mean over ${count === 2 ? "two" : count} seeds, which tell no error`;
  return `mean over ${count} seeds; ± covers ${covers}`;
}
