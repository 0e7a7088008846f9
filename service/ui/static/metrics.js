// The numbers of a whole run: a row for each name and its labels, a column for each model and seed.

import { html } from "./vendor/preact-htm.js";
import { labelText, withError } from "./format.js";
import { aboutMean, isInterim, meansOf } from "./means.js";
import { metricName } from "./names.js";

const MAX_SEEDS = 24;
const POPULATION = "_population";

const baseOf = (name) => (name.endsWith(POPULATION) ? name.slice(0, -POPULATION.length) : name);

/** The choice that the error of a metric with `_population` covers: "texts". */
export const chosenOf = ({ covers }) => /^the choice of (.+?) and /.exec(covers)?.[1] ?? "others";

/**
 * A table of means, each with its seeds: `columns` are `{seed, model, title}`, where the seed `null` stands for the mean over
 * seeds, or for what has no seed; `rows` are `{title, cells}`, a cell for each column: `{metric,
 * population}` or null. `population` is the same metric with the error over the choice of texts.
 */
export function tableOf(means) {
  const metrics = means.flatMap(({ all }) => all);
  const models = [...new Set(metrics.map(({ labels }) => labels.model))];
  const seeds = [...new Set(metrics.map(({ labels }) => labels.seed))].filter((seed) => seed !== undefined);
  const hasMean = seeds.length !== 1 || means.some(({ all, count }) => count > 1 || all[0].labels.seed === undefined);
  const hasSeeds = seeds.length > 1 || !hasMean;
  const shown = [...(hasMean ? [null] : []), ...(hasSeeds ? seeds.slice(0, MAX_SEEDS) : [])];
  const columns = shown.flatMap((seed) => models.map((model) => ({ seed, model, title: titleOf(seed, model, seeds, models) })));
  const rows = new Map();
  for (const mean of means) {
    const { model, ...others } = mean.labels;
    const name = baseOf(mean.name);
    const title = [metricName(name), labelText(others)].filter(Boolean).join(", ");
    if (!rows.has(title)) rows.set(title, { title, meaning: [name, mean.meaning].filter(Boolean).join(": "), cells: columns.map(() => null) });
    const { cells } = rows.get(title);
    columns.forEach((column, i) => {
      if (column.model !== model) return;
      const metric = column.seed === null ? mean : mean.all.find((one) => one.labels.seed === column.seed);
      if (metric) cells[i] = { ...cells[i], [mean.name.endsWith(POPULATION) ? "population" : "metric"]: { ...metric, covers: mean.covers } };
    });
  }
  return { columns, rows: [...rows.values()], hiddenSeeds: Math.max(0, seeds.length - MAX_SEEDS) };
}

/** "model, mean over seeds", "seed 4", or "value". */
function titleOf(seed, model, seeds, models) {
  const ofSeed = seed === null ? seeds.length > 1 && "mean over seeds" : (seeds.length > 1 || models.length < 2) && `seed ${seed}`;
  return [models.length > 1 && model, ofSeed].filter(Boolean).join(", ") || "value";
}

/** Metrics of the model and the baseline, side by side, then those of the run, and below them those of `train.curve_at`. */
export function MetricTable({ experiment }) {
  const means = meansOf(experiment);
  const final = means.filter((one) => !isInterim(one));
  const interim = means.filter(isInterim);
  const tables = (some) => {
    const ofModels = some.filter(({ labels }) => labels.model !== undefined);
    const others = some.filter(({ labels }) => labels.model === undefined);
    return [ofModels, others].filter((one) => one.length).map((one) => html`<${Table} means=${one} />`);
  };
  return html`${tables(final)}
    ${interim.length > 0 && html`<details open=${!final.length}><summary>During training</summary>${tables(interim)}</details>`}`;
}

function Table({ means }) {
  const { columns, rows, hiddenSeeds } = tableOf(means);
  return html`<table class="runs">
    <thead><tr>
      <th scope="col">Metric</th>
      ${columns.map(({ title }) => html`<th key=${title} scope="col" class="number">${title}</th>`)}
    </tr></thead>
    <tbody>
      ${rows.map(({ title, meaning, cells }) => html`<tr key=${title}>
        <th scope="row" title=${meaning}>${title}</th>
        ${cells.map((cell, i) => html`<${Cell} key=${i} ...${cell} isMean=${columns[i].seed === null} />`)}
      </tr>`)}
    </tbody>
  </table>
  ${hiddenSeeds > 0 && html`<p class="bar muted small">The first ${MAX_SEEDS} seeds; the download has ${hiddenSeeds} more.</p>`}`;
}

function Cell({ metric, population, isMean }) {
  const shown = metric ?? population;
  if (!shown) return html`<td></td>`;
  const title = isMean ? aboutMean(shown) : shown.reason;
  if (shown.value === null) return html`<td class="number muted" title=${title}>missing</td>`;
  const spread = metric && population?.std_err;
  return html`<td class="number" title=${title}>${withError(shown.value, shown.std_err)}
    ${spread > 0 && html`<div class="small muted" title=${`the error if other ${chosenOf(population)} of the same kind had been chosen`}>over ${chosenOf(population)} ${withError(metric.value, spread).split(" ").slice(1).join(" ")}</div>`}
  </td>`;
}
