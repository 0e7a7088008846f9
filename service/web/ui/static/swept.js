// The charts of a sweep, from its table.

import { BY_MERIT } from "./compared.js";
import { plain } from "./format.js";

export const SEEDS = "seeds";
/** Parts of a spec that change the measurement, and nothing that is measured. */
const MEASURING = ["evaluate", "compute", SEEDS];
const MAX_LINES = 8;

/** The rows that a chart shows: where seeds are swept, points that differ in them alone are one row. */
export const rowsOf = (table) => (table.fields.includes(SEEDS) ? table.pooled : table.items);

/** The fields that tell rows apart: none that has one value only, and the first of those that change together. */
function choosing(rows, fields) {
  const groups = new Map();
  for (const field of fields) {
    const known = new Map();
    const group = rows.map((row) => {
      const value = JSON.stringify(row.fields[field] ?? null);
      if (!known.has(value)) known.set(value, known.size);
      return known.get(value);
    });
    const key = group.join();
    if (known.size > 1 && !groups.has(key)) groups.set(key, field); // fields with equal groups change together
  }
  return [...groups.values()];
}

/** The value of a field on an axis; of the seeds of a point, its only one; null where it is no number. */
function valueOf(row, field) {
  const value = row.fields[field];
  if (field === SEEDS && Array.isArray(value) && value.length === 1) return value[0];
  return typeof value === "number" ? value : null;
}

/** The fields that a metric can be drawn against; seeds last. */
export function axesOf(table) {
  const fields = table.fields.filter((field) => table.items.some((row) => valueOf(row, field) !== null));
  return [...fields.filter((one) => one !== SEEDS), ...fields.filter((one) => one === SEEDS)];
}

/** The metric that a chart shows at first: the one that chooses between models. */
export function chiefMetric(table) {
  const fields = (table.fields ?? []).filter((field) => field !== SEEDS);
  const isMeasurement = fields.length > 0 && fields.every((field) => MEASURING.includes(field.split(".")[0]));
  const names = isMeasurement ? ["mpt_heldout", "mpt", ...BY_MERIT] : BY_MERIT;
  return names.find((name) => table.metrics.includes(name)) ?? table.metrics[0];
}

/** The row with the largest value of the metric that chooses between models, `{metric, row, at, alike}`; null if there is no choice. */
export function bestRow(table) {
  const metric = BY_MERIT.find((name) => table.metrics.includes(name));
  const known = rowsOf(table).filter(({ metrics }) => (metrics[metric]?.value ?? null) !== null);
  const swept = table.fields.filter((field) => !MEASURING.includes(field.split(".")[0]));
  if (known.length < 2 || !swept.length) return null;
  const varying = choosing(known, swept);
  const fields = varying.length ? varying : swept;
  const row = known.reduce((one, other) => (other.metrics[metric].value > one.metrics[metric].value ? other : one));
  const at = (one) => fields.map((field) => `${field.split(".").pop()} ${plain(one.fields[field] ?? null)}`).join(", ");
  const alike = new Set(alikeTo(row, known, metric).map(at));
  alike.delete(at(row));
  return { metric, row, at: at(row), alike: [...alike] };
}

const BEHIND_BEST = "lml_heldout_behind_best";
const ALIKE_ERRORS = 2;
const TIE = 1e-6;

/** The rows that the held-out observations do not tell from the best, of those that share them. */
function alikeTo(best, rows, metric) {
  if (metric !== "lml_heldout") return [];
  const isAlike = ({ metrics }) => {
    const behind = metrics[BEHIND_BEST];
    const gap = best.metrics[metric].value - metrics[metric].value;
    return behind?.value === gap && gap <= Math.max(TIE, ALIKE_ERRORS * (behind.std_err ?? 0));
  };
  return rows.filter((row) => row !== best && isAlike(row));
}

/**
 * A curve for each choice of the other swept fields, x ascending. Against seeds it is a dot for each
 * point, and a line at the mean over seeds.
 */
export function chartOf(table, field, metric) {
  const isBySeed = field === SEEDS;
  const swept = [field, ...table.fields].filter((one, i, all) => one !== SEEDS && all.indexOf(one) === i);
  const others = choosing(table.items, swept).filter((one) => one !== field);
  const labelOf = (row) => others.map((name) => `${name.split(".").pop()} ${plain(row.fields[name] ?? null)}`).join(", ");
  const hasMetric = (row) => (row.metrics[metric]?.value ?? null) !== null;
  const groups = new Map();
  for (const row of isBySeed ? table.items : rowsOf(table)) {
    if (!hasMetric(row) || valueOf(row, field) === null) continue;
    const label = labelOf(row) || metric;
    if (!groups.has(label)) groups.set(label, []);
    groups.get(label).push(row);
  }
  const series = [...groups].map(([label, rows]) => {
    rows.sort((a, b) => valueOf(a, field) - valueOf(b, field));
    const column = (name) => rows.map((row) => row.metrics[metric][name]);
    return { label, x: rows.map((row) => valueOf(row, field)), value: column("value"), std_err: column("std_err"), dots: isBySeed };
  });
  const means = isBySeed && series.length <= MAX_LINES ? table.pooled.filter(hasMetric) : [];
  const lines = means.map((row) => ({
    label: ["mean over seeds", labelOf(row)].filter(Boolean).join(", "),
    y: row.metrics[metric].value,
    colour: Math.max(0, series.findIndex(({ label }) => label === (labelOf(row) || metric))),
  }));
  return { series, lines };
}
