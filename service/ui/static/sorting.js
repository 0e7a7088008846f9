// Headers of tables that sort their rows.

import { html, useState } from "./vendor/preact-htm.js";

/** A header whose click sorts: `order` is "asc", "desc" or null. `first` is the first order; numbers begin with the largest. */
export function SortHeader({ order, onSort, number = false, wide = false, first = number ? "desc" : "asc", children }) {
  const kind = [number && "number", wide && "wide"].filter(Boolean).join(" ");
  const next = order === null ? first : order === "asc" ? "desc" : "asc";
  const sign = { asc: "▲", desc: "▼" }[order];
  const said = { asc: "ascending", desc: "descending" }[order] ?? "none";
  return html`<th scope="col" class=${kind} aria-sort=${said}>
    <button type="button" class="sort" onClick=${() => onSort(next)}>${children}${sign && html` <span aria-hidden="true">${sign}</span>`}</button>
  </th>`;
}

/** Missing values are last in both orders. */
export function sorted(rows, valueOf, order) {
  const known = rows.filter((row) => (valueOf(row) ?? null) !== null);
  const compare = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b)));
  known.sort((a, b) => compare(valueOf(a), valueOf(b)) * (order === "desc" ? -1 : 1));
  return [...known, ...rows.filter((row) => (valueOf(row) ?? null) === null)];
}

/**
 * Sorting of a table's rows: the rows in order, and the properties of a header by its name. `values`
 * gives the value of a row for a header's name; `first` is the header by which the rows are sorted already.
 */
export function useSorting(rows, values, first = { name: null, order: null }) {
  const [sorting, setSorting] = useState(first);
  const { name, order } = sorting;
  const headerOf = (one) => ({ order: one === name ? order : null, onSort: (next) => setSorting({ name: one, order: next }) });
  return [name === null || sorting === first ? rows : sorted(rows, (row) => values(row, name), order), headerOf];
}
