// What admins see of the lab: its users, how they share it, and who did what.

import { html, useState } from "./vendor/preact-htm.js";
import { get, withQuery } from "./api.js";
import { bytes, duration, number } from "./format.js";
import { useLive } from "./live.js";
import { Empty, Problem, Table, When } from "./parts.js";

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

const DISABLED = {
  approval: (name) => html`waits for your yes: <code>mpt admin user set ${name} --active</code>`,
  groups: () => "left the groups",
};

/** The users, who has used the server most of late first. */
export function Users() {
  const read = async () => {
    const [users, usage] = await Promise.all([get("/v1/users"), get("/v1/usage")]);
    return { users: users.items, usage: usage.items };
  };
  const { data, error } = useLive(read, []);
  if (!data) return html`<${Problem} error=${error} />`;
  const { users, usage } = data;
  const known = new Map(users.map((one) => [one.name, one]));
  const rows = usage.map((one) => ({ ...one, user: known.get(one.name) })).filter(({ user }) => user);
  const columns = [
    ["Name", "wrap", ({ name, user }) => html`${name}${!user.active && html` <span class="muted">${DISABLED[user.disabled_for]?.(name) ?? "disabled"}</span>`}`],
    ["Role", "", ({ user }) => user.role],
    ["Running", "number", ({ running }) => running],
    ["Recent use", "number", ({ share }) => (share.raw_usage ? duration(share.raw_usage) : "nothing")],
    ["Share", "number", ({ share }) => percent(share.norm_shares)],
    ["Of all use", "number wide", ({ share }) => percent(share.effectv_usage)],
    ["Limits", "wide", ({ user }) => limitsOf(user)],
  ];
  return html`<section class="card flush">
    <h2>Users</h2>
    <${Table} label="Users" columns=${columns} rows=${rows} keyOf=${({ name }) => name} />
  </section>`;
}

const told = (details) => Object.entries(details).map(([name, value]) => `${name} ${JSON.stringify(value)}`).join(", ");

const ENTRY = [
  ["Time", "", (entry) => html`<${When} at=${entry.at} />`],
  ["User", "", (entry) => entry.actor],
  ["Action", "wrap", (entry) => html`${entry.action}<div class="only-small small muted mono">${entry.object_id}</div>`],
  ["Object", "wide wrap", (entry) => html`<span class="mono">${entry.object_id}</span>`],
  ["Details", "wide wrap", (entry) => html`<span class="small muted">${told(entry.details)}</span>`],
];

export function Audit() {
  const [asked, setAsked] = useState({ actor: "", object_id: "", cursor: null });
  const path = withQuery("/v1/audit", { ...asked, limit: 20 });
  const { data, error } = useLive(() => get(path), [path]);
  function onSubmit(event) {
    event.preventDefault();
    const form = new FormData(event.target);
    setAsked({ actor: form.get("actor").trim(), object_id: form.get("object").trim(), cursor: null });
  }
  return html`<section class="card flush">
    <h2 class="unseen">Audit log</h2>
    <form class="bar row end fields" onSubmit=${onSubmit}>
      <div class="field"><label for="actor">User</label><input id="actor" name="actor" maxlength="100" /></div>
      <div class="field"><label for="object">Id of the object</label><input id="object" name="object" maxlength="100" /></div>
      <button>Show</button>
    </form>
    <${Problem} error=${error} />
    ${data?.items.length === 0 && html`<${Empty} title="No entries" />`}
    ${data?.items.length > 0 && html`<${Table} label="Audit log" columns=${ENTRY} rows=${data.items} />`}
    <div class="bar row foot">
      ${asked.cursor && html`<button type="button" onClick=${() => setAsked({ ...asked, cursor: null })}>Newest</button>`}
      ${data?.next_cursor && html`<button type="button" onClick=${() => setAsked({ ...asked, cursor: data.next_cursor })}>Older</button>`}
    </div>
  </section>`;
}
