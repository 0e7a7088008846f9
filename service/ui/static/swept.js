// The charts of a sweep, from its table.

import { plain } from "./format.js";
import { fieldSymbol, metricName } from "./names.js";

export const SEEDS = "seeds";
const MAX_LINES = 8;
const HELDOUT = "lml_heldout";
const BEHIND_BEST = "lml_heldout_behind_best";

/** The rows that a chart shows: where seeds are swept, points that differ in them alone are one row. */
export const rowsOf = (table) => (table.pooled.length ? table.pooled : table.items);

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

/** The values of some fields in a row: "K = 3". */
const choiceOf = (row, fields) => fields.map((field) => `${fieldSymbol(field)} = ${plain(row.fields[field] ?? null)}`).join(", ");

/** The best row of a table and the smallest model as good, if it is another, `{metric, label, row, at, smallestAt}`, with their fields in words; null if there is none. */
export function bestRow(table) {
  if (!table.best) return null;
  const { fields, smallest } = table.best;
  const row = rowsOf(table)[table.best.row];
  const hasSmaller = smallest !== null && smallest !== table.best.row;
  return { ...table.best, row, at: choiceOf(row, fields), smallestAt: hasSmaller ? choiceOf(rowsOf(table)[smallest], fields) : null };
}

/** The metric whose errors are drawn: for the held-out LML, whose points share their observations, the difference from the best. */
export function errorOf(table, metric) {
  const isPaired = metric === HELDOUT && rowsOf(table).some(({ metrics }) => metrics[BEHIND_BEST]?.std_err);
  return isPaired ? BEHIND_BEST : metric;
}

/** Dots for the best row and the smallest as good, where the chart shows the metric that decides. */
function marksOf(table, field, metric) {
  const { best } = table;
  if (best?.metric !== metric) return [];
  const rows = rowsOf(table);
  const marked = [["best", best.row], ["smallest as good", best.smallest]].filter(([, at], i) => at !== null && (i === 0 || at !== best.row));
  return marked
    .filter(([, at]) => valueOf(rows[at], field) !== null)
    .map(([label, at]) => ({ label: `${label}: ${choiceOf(rows[at], best.fields)}`, x: [valueOf(rows[at], field)], value: [rows[at].metrics[metric].value], std_err: [null], dots: true }));
}

/**
 * A curve for each choice of the other swept fields, x ascending. Against seeds it is a dot for each
 * point, and a line at the mean over seeds.
 */
export function chartOf(table, field, metric) {
  const isBySeed = field === SEEDS;
  const others = table.varying.filter((group) => !group.includes(field)).map(([first]) => first);
  const error = errorOf(table, metric);
  const labelOf = (row) => choiceOf(row, others);
  const hasMetric = (row) => (row.metrics[metric]?.value ?? null) !== null;
  const groups = new Map();
  for (const row of isBySeed ? table.items : rowsOf(table)) {
    if (!hasMetric(row) || valueOf(row, field) === null) continue;
    const label = labelOf(row) || metricName(metric);
    if (!groups.has(label)) groups.set(label, []);
    groups.get(label).push(row);
  }
  const series = [...groups].map(([label, rows]) => {
    rows.sort((a, b) => valueOf(a, field) - valueOf(b, field));
    const column = (name, part) => rows.map((row) => row.metrics[name]?.[part] ?? null);
    return { label, x: rows.map((row) => valueOf(row, field)), value: column(metric, "value"), std_err: column(isBySeed ? metric : error, "std_err"), dots: isBySeed };
  });
  const means = isBySeed && series.length <= MAX_LINES ? table.pooled.filter(hasMetric) : [];
  const lines = means.map((row) => ({
    label: ["mean over seeds", labelOf(row)].filter(Boolean).join(", "),
    y: row.metrics[metric].value,
    colour: Math.max(0, series.findIndex(({ label }) => label === (labelOf(row) || metricName(metric)))),
  }));
  return { series: isBySeed ? series : [...series, ...marksOf(table, field, metric)], lines };
}
