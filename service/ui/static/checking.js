// What the service says of a spec before it is submitted.

import { html } from "./vendor/preact-htm.js";
import { bytes, dateTime, expected, number } from "./format.js";
import { withCode } from "./parts.js";

/** Where a JSON pointer's field stands in a text: its key after those of its parents. */
function placeOf(text, pointer) {
  const keys = pointer.split("/").slice(2).filter((part) => !/^\d+$/.test(part));
  let at = 0;
  let found = null;
  for (const key of keys) {
    const next = text.indexOf(JSON.stringify(key), at);
    if (next < 0) break;
    found = [next, next + key.length + 2];
    at = found[1];
  }
  return found;
}

const lineOf = (text, at) => text.slice(0, at).split("\n").length;

/** Each error, with the line of its field; a button leads there. */
export function FieldErrors({ error, text, area }) {
  if (error instanceof SyntaxError) return html`<div id="spec-errors" class="bad-text small" role="alert">This is no JSON: ${error.message}</div>`;
  if (!error?.errors?.length) return null;
  const show = (place) => {
    area.current.focus();
    area.current.setSelectionRange(...place);
  };
  return html`<ul id="spec-errors" class="bad-text small" role="alert">
    ${error.errors.map(({ pointer, detail }) => {
      const place = pointer.startsWith("/spec") ? placeOf(text, pointer) : null;
      return html`<li key=${pointer}>
        <code>${pointer}</code>: ${withCode(detail)}
        ${place && html` <button type="button" class="quiet" onClick=${() => show(place)}>line ${lineOf(text, place[0])}</button>`}
      </li>`;
    })}
  </ul>`;
}

/** The estimate of a run, or of the largest of several. `lacks` says what is still to be given. */
export function Estimate({ validation, count = 1, lacks = "The estimate follows as soon as the spec is valid." }) {
  if (!validation) return html`<div class="card muted">${lacks}</div>`;
  const { runtime, masks, memory_bytes: memory, queue_position: position, queue_reason: reason, cached_from: cached, estimated_start: start } = validation;
  const facts = [
    ["Time", runtime ? expected(runtime) : "not known yet"],
    ["Memory", bytes(memory)],
    ["Masks", masks === null ? null : number(masks)],
    ["Before it", (position > 0 && !reason?.endsWith("before it") && position) || null],
    ["Queue", reason],
    ["May start", start && dateTime(start)],
  ];
  return html`<section class="card" aria-live="polite">
    <h2>Estimate</h2>
    ${count > 1 && html`<p class="muted">Of the largest of ${count} runs.</p>`}
    ${cached && html`<p class="notice good">This was computed before: <a href=${`/experiments/${cached}`}>see it</a>.</p>`}
    <dl class="facts">${facts.filter(([, value]) => value !== null).map(([name, value]) => html`<dt>${name}</dt><dd>${value}</dd>`)}</dl>
  </section>`;
}
