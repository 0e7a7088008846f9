// What the workers did over the last hours, and the memory that they had left.

import { html, useMemo, useState } from "./vendor/preact-htm.js";
import { get, withQuery } from "./api.js";
import { Chart } from "./chart.js";
import { useLive } from "./live.js";

const HOURS = [1, 6, 24];
const GIB = 2 ** 30;

function chartsOf({ at, stretch_s: stretch, items }) {
  const end = Date.parse(at[at.length - 1]) + 1000 * stretch;
  const x = at.map((moment) => (Date.parse(moment) - end) / 3_600_000);
  const std_err = at.map(() => null);
  const of = (column, unit) =>
    items.map((one) => ({ label: one.id, x, std_err, value: one[column].map((value) => (value === null ? null : value / unit)) }));
  return { busy: of("busy", 0.01), free: of("memory_free", GIB) };
}

export function WorkerHistory() {
  const [hours, setHours] = useState(6);
  const path = withQuery("/v1/workers/history", { hours });
  const { data } = useLive(() => get(path), [path]);
  const charts = useMemo(() => data && chartsOf(data), [data]);
  if (!data?.items.length) return null;
  return html`<section class="stack" aria-label="The workers over the last hours">
    <div class="row">
      <label for="hours">The last</label>
      <select id="hours" class="short" onChange=${(event) => setHours(Number(event.target.value))}>
        ${HOURS.map((one) => html`<option value=${one} selected=${one === hours}>${one === 1 ? "hour" : `${one} hours`}</option>`)}
      </select>
    </div>
    <div class="halves">
      <${Chart} title="Use of workers" toZero series=${charts.busy} xLabel="hours" yLabel="% of the time with a run" />
      <${Chart} title="Free memory of machines and GPUs" toZero series=${charts.free} xLabel="hours" yLabel="GiB" />
    </div>
  </section>`;
}
