// The list of sweeps.

import { html } from "../vendor/preact-htm.js";
import { get, withQuery } from "../api.js";
import { titleOf } from "../format.js";
import { useLive } from "../live.js";
import { Empty, Loading, Problem, Status, Table, Tags, When, useQuery } from "../parts.js";
import { Counts } from "../counts.js";
import { fieldName } from "../names.js";
import { useProjects } from "../projects.js";
import { BestPoint } from "../result.js";

const COLUMNS = [
  ["Name", "", (sweep) => html`<a class=${sweep.name ? "name" : "name muted"} href=${`/sweeps/${sweep.id}`}>${titleOf(sweep)}</a>
    <div class="small"><${Tags} of=${sweep.tags} /></div>`],
  ["Points", "", (sweep) => html`<${Status} of=${sweep.status} /><${Counts} sweep=${sweep} />${sweep.best && html`<div class="small only-small"><${BestPoint} of=${sweep.best} /></div>`}`],
  ["Fields", "wide wrap", (sweep) => html`<span title=${sweep.fields.join(", ")}>${sweep.fields.map(fieldName).join(", ")}</span>`],
  ["Best", "wide", ({ best }) => best && html`<${BestPoint} of=${best} />`],
  ["Created", "wide", (sweep) => html`<${When} at=${sweep.created_at} />`],
];

export default function Sweeps({ me }) {
  const [query, change] = useQuery();
  const path = withQuery("/v1/sweeps", { whose: query.get("whose"), cursor: query.get("cursor") });
  const { data, error } = useLive(() => get(path), [path]);
  const whose = query.get("whose") ?? "";
  const hasProjects = useProjects(me).length > 0;
  return html`<div class="stack">
    <div class="row spread">
      <h1>Sweeps</h1>
      <div class="field"><label for="whose">Whose</label>
        <select id="whose" onChange=${(event) => change({ whose: event.target.value, cursor: null })}>
          <option value="" selected=${!whose}>Mine</option>
          ${hasProjects && html`<option value="project" selected=${whose === "project"}>Shared with my projects</option>`}
          <option value="lab" selected=${whose === "lab"}>Shared with the lab</option>
        </select></div>
    </div>
    <${Problem} error=${error} />
    ${!data && !error && html`<${Loading} />`}
    ${data && html`<div class="card flush">
      ${data.items.length === 0 && html`<${Empty} title="No sweeps yet">
        <p>A sweep runs one spec with different values of some fields: a range of K chooses the size of a model.</p>
        <a class="button" href="/new">New experiment</a>
      <//>`}
      ${data.items.length > 0 && html`<${Table} label="Sweeps" columns=${COLUMNS} rows=${data.items} />`}
    </div>`}
    ${data?.next_cursor && html`<nav aria-label="Pages"><button type="button" onClick=${() => change({ cursor: data.next_cursor })}>Next page</button></nav>`}
  </div>`;
}
