// What admins see of the lab: its users, how they share it, and who did what.

import { html, useState } from "./vendor/preact-htm.js";
import { get, withQuery } from "./api.js";
import { bytes, duration, number } from "./format.js";
import { useLive } from "./live.js";
import { Empty, Problem, Scroll, When } from "./parts.js";

function limitsOf(user) {
  const limits = [
    [user.max_running, "running"],
    [user.max_submitted, "submitted"],
    [user.max_gpu_hours_a_day, "GPU-hours a day"],
    [user.max_bytes === null ? null : bytes(user.max_bytes), "kept"],
  ].filter(([most]) => most !== null);
  return limits.map(([most, what]) => `${most} ${what}`).join(", ") || "those of the service";
}

const percent = (share) => `${number(100 * share, 3)} %`;

/** The users, who has used the server most of late first. */
function Users({ users, usage }) {
  const known = new Map(users.map((one) => [one.name, one]));
  const rows = usage.map((one) => ({ ...one, user: known.get(one.name) })).filter(({ user }) => user);
  return html`<section class="card flush">
    <h2>Users</h2>
    <${Scroll} label="Users"><table>
      <thead><tr>
        <th scope="col">Name</th><th scope="col">Role</th><th scope="col" class="number">Running</th>
        <th scope="col" class="number">Recent use</th><th scope="col" class="number">Share</th><th scope="col" class="number wide">Of all use</th>
        <th scope="col" class="wide">Limits</th>
      </tr></thead>
      <tbody>${rows.map(({ name, running, share, user }) => html`<tr key=${name}>
        <th scope="row" class="wrap">${name}${!user.active && html` <span class="muted">disabled</span>`}</th>
        <td>${user.role}</td>
        <td class="number">${running}</td>
        <td class="number">${share.raw_usage ? duration(share.raw_usage) : "nothing"}</td>
        <td class="number">${percent(share.norm_shares)}</td>
        <td class="number wide">${percent(share.effectv_usage)}</td>
        <td class="wide">${limitsOf(user)}</td>
      </tr>`)}</tbody>
    </table><//>
  </section>`;
}

const told = (details) => Object.entries(details).map(([name, value]) => `${name} ${JSON.stringify(value)}`).join(", ");

function Audit() {
  const [asked, setAsked] = useState({ actor: "", object_id: "", cursor: null });
  const path = withQuery("/v1/audit", { ...asked, limit: 20 });
  const { data, error } = useLive(() => get(path), [path]);
  function onSubmit(event) {
    event.preventDefault();
    const form = new FormData(event.target);
    setAsked({ actor: form.get("actor").trim(), object_id: form.get("object").trim(), cursor: null });
  }
  return html`<section class="card flush">
    <h2>Audit log</h2>
    <form class="bar row end fields" onSubmit=${onSubmit}>
      <div class="field"><label for="actor">User</label><input id="actor" name="actor" maxlength="100" /></div>
      <div class="field"><label for="object">Id of the object</label><input id="object" name="object" maxlength="100" /></div>
      <button>Show</button>
    </form>
    <${Problem} error=${error} />
    ${data?.items.length === 0 && html`<${Empty} title="No entries" />`}
    ${data?.items.length > 0 && html`<${Scroll} label="Audit log"><table>
      <thead><tr><th scope="col">Time</th><th scope="col">User</th><th scope="col">Action</th><th scope="col" class="wide">Object</th><th scope="col" class="wide">Details</th></tr></thead>
      <tbody>${data.items.map((one) => html`<tr key=${one.id}>
        <td><${When} at=${one.at} /></td>
        <td class="wrap">${one.actor}</td>
        <td>${one.action}</td>
        <td class="mono wide wrap">${one.object_id}</td>
        <td class="wide small muted wrap">${told(one.details)}</td>
      </tr>`)}</tbody>
    </table><//>`}
    <div class="bar row foot">
      ${asked.cursor && html`<button type="button" onClick=${() => setAsked({ ...asked, cursor: null })}>Newest</button>`}
      ${data?.next_cursor && html`<button type="button" onClick=${() => setAsked({ ...asked, cursor: data.next_cursor })}>Older</button>`}
    </div>
  </section>`;
}

export function Administration() {
  const read = async () => {
    const [users, usage] = await Promise.all([get("/v1/users"), get("/v1/usage")]);
    return { users: users.items, usage: usage.items };
  };
  const { data, error } = useLive(read, []);
  return html`
    <${Problem} error=${error} />
    ${data && html`<${Users} ...${data} />`}
    <${Audit} />`;
}
