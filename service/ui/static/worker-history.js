// What the workers did over the last hours, and the memory that they had left.

import { html, useMemo, useState } from "./vendor/preact-htm.js";
import { get, withQuery } from "./api.js";
import { Chart } from "./chart.js";
import { useLive } from "./live.js";

const HOURS = [1, 6, 24];
const GIB = 2 ** 30;
const UNITS = [["hours", 3_600_000], ["minutes", 60_000]];

/** The charts, from the first sample on: before it the service or its workers were not there. Each sample stands in the middle of its stretch; the last one is not over. */
export function chartsOf({ at, stretch_s: stretch, items }, here, now = Date.now()) {
  const isKnown = (_, i) => items.some((one) => one.busy[i] !== null || one.memory_free[i] !== null);
  const first = Math.max(0, at.findIndex(isKnown));
  const begins = at.map((moment) => Date.parse(moment));
  const end = Math.min(begins.at(-1) + 1000 * stretch, now);
  const [unit, unitMs] = UNITS.find(([, size]) => end - begins[first] >= 2 * size) ?? UNITS.at(-1);
  const x = begins.slice(first).map((begin) => ((begin + Math.min(begin + 1000 * stretch, end)) / 2 - end) / unitMs);
  const std_err = x.map(() => null);
  const isHere = ({ id }) => here.includes(id);
  const hasGone = items.some(isHere) && items.some((one) => !isHere(one));
  const of = (column, scale) =>
    [...items].sort((a, b) => isHere(b) - isHere(a)).map((one) => ({ label: one.id, faint: hasGone && !isHere(one), x, std_err, value: one[column].slice(first).map((value) => (value === null ? null : value / scale)) }));
  return { busy: of("busy", 0.01), free: of("memory_free", GIB), xLabel: `${unit} from now`, note: hasGone && "Workers that have gone are faint." };
}

/** `here` are the ids of the workers that are there now. */
export function WorkerHistory({ here }) {
  const [hours, setHours] = useState(6);
  const path = withQuery("/v1/workers/history", { hours });
  const { data } = useLive(() => get(path), [path]);
  const charts = useMemo(() => data && chartsOf(data, here), [data, here.join()]);
  if (!data?.items.length) return null;
  return html`<section class="stack" aria-label="The workers over the last hours">
    <div class="row">
      <label for="hours">The last</label>
      <select id="hours" class="short" onChange=${(event) => setHours(Number(event.target.value))}>
        ${HOURS.map((one) => html`<option value=${one} selected=${one === hours}>${one === 1 ? "hour" : `${one} hours`}</option>`)}
      </select>
    </div>
    <div class="halves">
      <${Chart} title="Use of workers" note=${charts.note} toZero yMax=${100} series=${charts.busy} xLabel=${charts.xLabel} yLabel="time with a run, %" />
      <${Chart} title="Free memory" note=${charts.note} toZero series=${charts.free} xLabel=${charts.xLabel} yLabel="free memory, GiB" />
    </div>
  </section>`;
}
