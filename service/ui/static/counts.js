// How many points of a sweep stand where.

import { html } from "./vendor/preact-htm.js";

export function Counts({ sweep }) {
  const counts = Object.entries(sweep.counts).filter(([, count]) => count > 0);
  return html`<div class="small muted">
    ${sweep.ended < sweep.points && html`<progress value=${sweep.ended} max=${Math.max(1, sweep.points)} aria-label="points that have ended" />`}
    ${counts.map(([status, count]) => `${count} ${status}`).join(", ") || "no points"}
  </div>`;
}
