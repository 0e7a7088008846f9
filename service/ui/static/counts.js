// How many points of a sweep stand where.

import { html } from "./vendor/preact-htm.js";

export const ENDED = ["succeeded", "failed", "cancelled"];

export function Counts({ sweep }) {
  const counts = Object.entries(sweep.counts).filter(([, count]) => count > 0);
  const ended = counts.reduce((total, [status, count]) => total + (ENDED.includes(status) ? count : 0), 0);
  return html`<div class="small muted">
    ${ended < sweep.points && html`<progress value=${ended} max=${Math.max(1, sweep.points)} aria-label="points that have ended" />`}
    ${counts.map(([status, count]) => `${count} ${status}`).join(", ") || "no points"}
  </div>`;
}
