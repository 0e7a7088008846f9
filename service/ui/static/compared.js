// Several experiments side by side: the fields in which their specs differ, their colours, the best of them.

import { distinctTitles, leaves, plain } from "./format.js";
import { isInterim, meanOf, meansOf, paired, partsOf, withErrorOfParts } from "./means.js";
import { isDerived } from "./names.js";

const ALIKE_ERRORS = 2;
const HELDOUT = "lml_heldout";
const POPULATION = "_population"; // the same metric with another error, which its cell has too

/**
 * A row for each experiment: `{experiment, index, title, fields, means}`, the fields of its spec that differ, or all that
 * any of them sets, by path, its means by key, and the `parts` of its held-out LML. `names` are those of ids in specs.
 */
export function rowsOf(experiments, { all = false, curves = [], names = new Map() } = {}) {
  const specs = experiments.map(({ spec }) => withNames(spec, names));
  const columns = all ? everyField(specs) : new Map([...differing(specs)].filter(([, values]) => values.some(isSet)));
  const titles = distinctTitles(experiments);
  return experiments.map((experiment, index) => ({
    experiment,
    index,
    title: titles[index],
    fields: new Map([...columns].map(([path, values]) => [path, values[index]])),
    means: new Map(meansOf(experiment).map((mean) => [mean.key, mean])),
    parts: partsOf(curves[index]?.series ?? []),
  }));
}

const NAMED = [["data", "dataset"], ["model", "experiment"]]; // fields of ids

/** The ids of data sets and experiments that specs name, once each: `[{kind, id}]`. */
export function idsIn(experiments) {
  const ids = NAMED.flatMap(([part, kind]) => experiments.map(({ spec }) => spec[part]?.[kind]).filter(Boolean).map((id) => [id, { kind, id }]));
  return [...new Map(ids).values()];
}

function withNames(spec, names) {
  const parts = NAMED.filter(([part, kind]) => names.has(spec[part]?.[kind]));
  return { ...spec, ...Object.fromEntries(parts.map(([part, kind]) => [part, { ...spec[part], [kind]: names.get(spec[part][kind]) }])) };
}

const isSet = (value) => value !== undefined && value !== null && value !== false;

/** The values of each field that one of the specs sets, by its path. */
function everyField(specs) {
  const fields = specs.map((spec) => new Map(leaves(spec)));
  const paths = [...new Set(fields.flatMap((one) => [...one.keys()]))];
  return new Map(paths.map((path) => [path, fields.map((one) => one.get(path))]).filter(([, values]) => values.some(isSet)));
}

const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
const keysOf = (objects) => [...new Set(objects.flatMap((one) => Object.keys(one)))];
const areSame = (values) => new Set(values.map((one) => JSON.stringify(one) ?? "missing")).size < 2;

/**
 * The values of each field that is not the same in all specs, by its path, as in the client's `tables.py`. Of an
 * object that some specs do not have, those that have it get its fields that differ among them.
 */
export function differing(values, path = "") {
  if (areSame(values)) return new Map();
  if (values.every(isObject)) {
    const parts = keysOf(values).map((key) => [...differing(values.map((one) => one[key]), path ? `${path}.${key}` : key)]);
    return new Map(parts.flat());
  }
  const objects = values.filter(isObject);
  const keys = keysOf(objects).filter((key) => !areSame(objects.map((one) => one[key])));
  const part = (one) => Object.fromEntries(Object.entries(one).filter(([key]) => !keys.length || keys.includes(key)));
  return new Map([[path, values.map((one) => (isObject(one) ? part(one) : one))]]);
}

/** A value of a field as text: an object by its fields; "–" where there is no such field. */
export function fieldText(value) {
  if (value === undefined) return "–";
  if (value === null) return "none";
  if (!isObject(value)) return plain(value);
  return Object.entries(value).map(([key, part]) => `${key} ${isObject(part) ? `(${fieldText(part)})` : fieldText(part)}`).join(", ");
}

const textOf = (row, path) => fieldText(row.fields.get(path));

/** The fields in which the data of experiments differ: their metrics do not tell which model is better. */
export function differentData(experiments) {
  const seeds = experiments.some(({ spec }) => spec.data?.seed === "run") ? (spec) => spec.seeds : () => null;
  return [...differing(experiments.map(({ spec }) => ({ data: spec.data, seeds: seeds(spec) }))).keys()];
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

/** The metrics of all rows, `[{key, name, labels}]`: results first, those of `train.curve_at` last. */
export function metricsOf(rows) {
  const every = new Map(rows.flatMap(({ means }) => [...means]));
  const found = [...every.values()].filter(({ name, key }) => !isDerived(name) && !(name.endsWith(POPULATION) && every.has(key.replace(POPULATION, ""))));
  return [...found.filter((one) => !isInterim(one)), ...found.filter(isInterim)];
}

/** How much a mean is above that of another row, paired by seed and, if it is the held-out LML, by row; null without a pair. */
export function differenceOf(row, other, key) {
  const difference = row.means.has(key) && other.means.has(key) ? paired(row.means.get(key), other.means.get(key)) : null;
  return key === HELDOUT && difference ? withErrorOfParts(difference, row.parts, other.parts) : difference;
}

/** How much a score of the texts of a run is above that of others, as the mean over the texts that both scored and its error. */
export function differenceOfTexts(texts, others, score) {
  const known = new Map(others.map((text) => [text.row, text[score] ?? null]));
  const differences = texts
    .filter((text) => (text[score] ?? null) !== null && (known.get(text.row) ?? null) !== null)
    .map((text) => ({ value: text[score] - known.get(text.row), std_err: null }));
  return differences.length > 1 ? { ...meanOf(differences), count: differences.length } : null;
}

/**
 * The rows whose mean is the largest, or that its error does not tell from it; none if larger is not better, if all are alike, among
 * different data, or on the rows that models were fitted to if others were held out.
 */
export function bestOf(rows, { key, higher_is_better: isHigherBetter, tokens }) {
  if (rows.some(({ means }) => means.has(`${key}_heldout`))) return new Set();
  const known = rows.filter(({ means }) => (means.get(key)?.value ?? null) !== null);
  const isComparable = !differentData(known.map(({ experiment }) => experiment)).length && known.every(({ means }) => means.get(key).tokens === tokens);
  if (!isHigherBetter || known.length < 2 || !isComparable) return new Set();
  const meanOf = (row) => row.means.get(key);
  const best = known.reduce((one, other) => (meanOf(other).value > meanOf(one).value ? other : one));
  const isAlike = (row) => {
    const apart = Math.hypot(meanOf(row).std_err ?? 0, meanOf(best).std_err ?? 0);
    const error = (key === HELDOUT && differenceOf(best, row, key)?.std_err) || apart;
    return meanOf(best).value - meanOf(row).value <= ALIKE_ERRORS * error;
  };
  const alike = known.filter(isAlike);
  return new Set(alike.length < known.length ? alike : []);
}
