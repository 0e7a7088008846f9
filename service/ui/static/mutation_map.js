// The scores of all changes of one letter, as a map of places and new letters.

import { html } from "./vendor/preact-htm.js";
import { get, withQuery } from "./api.js";
import { number } from "./format.js";
import { useLive } from "./live.js";
import { Loading, Problem, Scroll } from "./parts.js";
import { Legend, stepOf } from "./tokens.js";

const MAX_CELLS = 20_000;
const PAGE = 10_000;
const CHANGE = /^(\S)([1-9]\d*)(\S)$/u;

/**
 * Places with the wild type's letter, new letters, and the score of each pair by its mutation. Mutations of several
 * changes and those without a score are not on the map.
 */
export function mapOf(rows, score) {
  const wild = new Map();
  const letters = new Set();
  const values = new Map();
  for (const row of rows) {
    const [, before, place, after] = CHANGE.exec(row.text) ?? [];
    if (!after || row[score] === null) continue;
    wild.set(Number(place), before);
    letters.add(after);
    values.set(row.text, row[score]);
  }
  const places = [...wild].sort(([one], [other]) => one - other).map(([place, letter]) => ({ place, letter }));
  return { places, letters: [...letters].sort(), values };
}

/** All rows of a table, or its first ones if it is long. A page may have fewer rows than its limit. */
async function allRows(path, score) {
  const rows = [];
  let offset = 0;
  while (offset !== null && rows.length < MAX_CELLS) {
    const page = await get(withQuery(path, { offset, limit: PAGE, columns: ["text", score] }));
    rows.push(...page.items);
    offset = page.next_offset;
  }
  return { rows, isWhole: offset === null };
}

function Cell({ name, value }) {
  const label = value === undefined ? name : `${name}: ${number(value)} nats`;
  return html`<td class=${value === undefined ? null : `step-${stepOf(value)}`} title=${label} aria-label=${label} />`;
}

export function MutationMap({ path, score }) {
  const url = `${path} ${score}`;
  const { data, error } = useLive(() => allRows(path, score), [url], () => true);
  if (error) return html`<${Problem} error=${error} />`;
  if (!data) return html`<${Loading} />`;
  const { places, letters, values } = mapOf(data.rows, score);
  if (!data.isWhole || places.length < 2 || places.length * letters.length > MAX_CELLS) return null;
  return html`<div class="bar stack">
    <p class="muted small">${score} of each change of one letter: a row for each new letter, a column for each place. Grey cells have no score.</p>
    <${Scroll} label="Map of mutations"><table class="map">
      <thead><tr><th></th>${places.map(({ place, letter }) => html`<th key=${place} scope="col" title=${`${letter}${place}`}>${letter}<br />${place}</th>`)}</tr></thead>
      <tbody>${letters.map((letter) => html`<tr key=${letter}><th scope="row">${letter}</th>${places.map((one) => {
        const name = `${one.letter}${one.place}${letter}`;
        return html`<${Cell} key=${name} name=${name} value=${values.get(name)} />`;
      })}</tr>`)}</tbody>
    </table><//>
    <${Legend} />
  </div>`;
}
