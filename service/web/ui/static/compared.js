// Several experiments side by side: the fields in which their specs differ, their colours, the best of them.

import { leaves, plain } from "./format.js";
import { overSeeds } from "./means.js";

/** Of the client's `tables.py`: metrics that choose between models, the most trustworthy first. */
export const BY_MERIT = ["lml_heldout", "mpt_heldout", "lml", "mpt"];
const LARGER_IS_BETTER = new Set([...BY_MERIT, "elbo", "elbo_heldout", "area"]);
const ALIKE_ERRORS = 2;

/** A row for each experiment: `{experiment, index, fields, means}`, its spec by path and its means by key. */
export function rowsOf(experiments) {
  return experiments.map((experiment, index) => ({
    experiment,
    index,
    fields: new Map(leaves(experiment.spec)),
    means: new Map(overSeeds(experiment.metrics).map((mean) => [mean.key, mean])),
  }));
}

const textOf = (row, path) => (row.fields.has(path) ? plain(row.fields.get(path)) : "–");

/** The paths of the fields that are not the same in all specs. */
export function differing(rows) {
  const paths = [...new Set(rows.flatMap(({ fields }) => [...fields.keys()]))];
  return paths.filter((path) => new Set(rows.map((row) => textOf(row, path))).size > 1);
}

/** The shortest end of each path that tells it from the others. */
export function shortNames(paths) {
  return paths.map((path) => {
    const parts = path.split(".");
    const ends = parts.map((_, i) => parts.slice(parts.length - 1 - i).join("."));
    return ends.find((end) => paths.filter((one) => one === end || one.endsWith(`.${end}`)).length === 1) ?? path;
  });
}

/** A colour for each row: its own, or that of its value of a field, in the order of the values. */
export function coloursBy(rows, path) {
  if (!path) return rows.map(({ index }) => index);
  const values = [...new Map(rows.map((row) => [textOf(row, path), row.fields.get(path)]))];
  const areNumbers = values.every(([, value]) => typeof value === "number");
  const order = values.sort(([a, x], [b, y]) => (areNumbers ? x - y : a.localeCompare(b))).map(([text]) => text);
  return rows.map((row) => order.indexOf(textOf(row, path)));
}

/** The metrics of all rows, `[{key, name, labels}]`: those that choose between models first. */
export function metricsOf(rows) {
  const found = [...new Map(rows.flatMap(({ means }) => [...means])).values()];
  const rank = ({ name }) => (BY_MERIT.includes(name) ? BY_MERIT.indexOf(name) : BY_MERIT.length);
  return found.sort((a, b) => rank(a) - rank(b));
}

/** The rows whose mean is the largest, or that its error does not tell from it; none if larger is not better, or if all are alike. */
export function bestOf(rows, { key, name }) {
  const known = rows.filter(({ means }) => (means.get(key)?.value ?? null) !== null);
  if (!LARGER_IS_BETTER.has(name) || known.length < 2) return new Set();
  const meanOf = (row) => row.means.get(key);
  const best = known.reduce((one, other) => (meanOf(other).value > meanOf(one).value ? other : one));
  const isAlike = (row) => {
    const error = Math.hypot(meanOf(row).std_err ?? 0, meanOf(best).std_err ?? 0);
    return meanOf(best).value - meanOf(row).value <= ALIKE_ERRORS * error;
  };
  const alike = known.filter(isAlike);
  return new Set(alike.length < known.length ? alike : []);
}
