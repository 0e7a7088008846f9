// A spec, to be read, and how to send it from elsewhere.

import { html } from "./vendor/preact-htm.js";
import { leaves, plain } from "./format.js";
import { Copy } from "./parts.js";

const FIRST = ["family", "source", "schedule", "objective"];

const MAX_ITEMS = 10;

/** A value in short: items with commas between, and of a long list the first three, the last and their number. */
function short(value) {
  if (!Array.isArray(value)) return plain(value);
  const items = value.map(plain);
  if (items.length <= MAX_ITEMS) return items.join(", ");
  return `${items.slice(0, 3).join(", ")}, …, ${items.at(-1)} (${items.length} values)`;
}

/** One part of a spec in a line: what it is, then what is set of it. */
export function summary(part) {
  if (part === null || typeof part !== "object" || Array.isArray(part)) return short(part);
  const told = leaves(part).filter(([, value]) => value !== null && !(Array.isArray(value) && !value.length));
  const isFirst = ([path]) => FIRST.includes(path.split(".").pop());
  return [...told.filter(isFirst), ...told.filter((one) => !isFirst(one))]
    .map(([path, value]) => (FIRST.includes(path) ? short(value) : `${path} ${short(value)}`))
    .join(" · ");
}

export function SpecSummary({ spec }) {
  const parts = Object.entries(spec).filter(([, value]) => value !== null);
  return html`<dl class="facts">
    ${parts.map(([name, part]) => html`<dt>${name}</dt><dd>${summary(part)}</dd>`)}
  </dl>`;
}

/** What one types to run the same again. */
function asCurl(spec) {
  const body = JSON.stringify({ spec }, null, 1).replaceAll("'", "'\\''");
  return `curl -s -H "Authorization: Bearer $MPT_API_KEY" -H "Content-Type: application/json" \\
  -d '${body}' ${location.origin}/v1/experiments`;
}

function asPython(spec) {
  return `import json
from mptlab import Client

spec = json.loads(r"""${JSON.stringify(spec, null, 1)}""")
with Client("${location.origin}") as client:
    experiment = client.submit(spec)
    print(client.wait(experiment["id"])["metrics"])
`;
}

export function SpecCopies({ spec }) {
  return html`<div class="row">
    <${Copy} text=${() => JSON.stringify(spec, null, 2)}>Copy JSON<//>
    <${Copy} text=${() => asCurl(spec)}>Copy as curl<//>
    <${Copy} text=${() => asPython(spec)}>Copy as Python<//>
  </div>`;
}
