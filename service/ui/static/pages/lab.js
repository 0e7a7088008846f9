// The lab: the workers, what runs and waits, what one may use, and one's keys.

import { html, useEffect, useRef, useState } from "../vendor/preact-htm.js";
import { provider, signInByAccount } from "../account.js";
import { Audit, Users } from "../administration.js";
import { call, get, post, withQuery } from "../api.js";
import { bytes, dateTime, duration, number, titleOf } from "../format.js";
import { useLive } from "../live.js";
import { Confirm, Copy, Empty, Loading, Problem, Progress, Status, Table, Tabs, When } from "../parts.js";
import { WorkerHistory } from "../worker-history.js";

const Title = ({ of }) => html`<a class=${of.name ? "name" : "name muted"} href=${`/experiments/${of.id}`}>${titleOf(of)}</a>`;

function Running({ experiments }) {
  const columns = [
    ["Experiment", "", (one) => html`<${Title} of=${one} />`],
    ["Progress", "", (one) => (one.progress?.total ? html`<${Progress} experiment=${one} label=${`Progress of ${titleOf(one)}`} />` : html`<${Status} of=${one.status} />`)],
    ["Worker", "wide", (one) => one.worker],
  ];
  return html`<section class="card flush">
    <h2>My running experiments</h2>
    ${experiments.length ? html`<${Table} label="Running" columns=${columns} rows=${experiments} />` : html`<p class="bar muted">Nothing runs.</p>`}
  </section>`;
}

function Queue({ queue }) {
  const { items } = queue;
  const columns = [
    ["Experiment", "", (one) => html`<${Title} of=${one} />`],
    ["Why it waits", "", (one) => html`${one.queue.reason}<div class="muted small">${one.queue.promise}</div>`],
    ["May start", "wide", (one) => (one.queue.estimated_start ? dateTime(one.queue.estimated_start) : "not known")],
    ["Since", "wide", (one) => html`<${When} at=${one.created_at} />`],
  ];
  return html`<section class="card flush">
    <h2>My waiting experiments</h2>
    ${items.length ? html`<${Table} label="Queue" columns=${columns} rows=${items} />` : html`<p class="bar muted">Nothing waits.</p>`}
  </section>`;
}

function Usage({ queue }) {
  const { share } = queue;
  const of = (count, most) => (most === null ? String(count) : `${number(count)} of ${number(most)}`);
  const facts = [
    ["Running experiments", of(queue.running, queue.max_running)],
    ["Unfinished experiments", of(queue.submitted, queue.max_submitted)],
    ...(queue.max_gpu_hours_a_day === null ? [] : [["GPU-hours in a day", of(queue.gpu_hours, queue.max_gpu_hours_a_day)]]),
    ["Storage", queue.max_bytes === null ? bytes(queue.kept_bytes) : `${bytes(queue.kept_bytes)} of ${bytes(queue.max_bytes)}`],
    ["Share of the lab", `${number(100 * share.norm_shares, 3)} %`],
    ["Share of what was used", `${number(100 * share.effectv_usage, 3)} %`],
    ["Recent use", `${duration(share.raw_usage)} of a CPU slot`],
    ...queue.projects.map((one) => [`Project ${one.name}`, [
      `${of(one.running, one.max_running)} running`,
      `${number(100 * one.share.effectv_usage, 3)} % of what was used for ${number(100 * one.share.norm_shares, 3)} % of the lab`,
    ].join(", ")]),
  ];
  return html`<section class="card">
    <h2>My usage</h2>
    <dl class="facts">${facts.map(([name, value]) => html`<dt>${name}</dt><dd>${value}</dd>`)}</dl>
  </section>`;
}

function drained({ drained_by: by, has_begun: hasBegun, starts_at: start, until }) {
  const end = until ? ` until ${dateTime(until)}` : "";
  if (hasBegun) return `starts no run: its machine is drained by ${by}${end}`;
  return `starts only runs that end before ${dateTime(start)}: then its machine is drained by ${by}${end}`;
}

function memory({ gpu, ...worker }) {
  const [free, total, used] = gpu
    ? [worker.gpu_memory_free, worker.gpu_memory_total, worker.gpu_memory_ours]
    : [worker.memory_free, worker.memory_total, worker.memory_ours];
  const where = gpu && worker.gpu_number !== null && worker.gpu_number !== undefined ? ` on GPU ${worker.gpu_number}` : "";
  return `${bytes(free)}${total === null ? "" : ` of ${bytes(total)}`}${where}${used ? `; its run uses ${bytes(used)}` : ""}`;
}

/** Whose run a worker has, until when at least, and who may displace it. */
function Turn({ slot }) {
  if (!slot?.owner) return null;
  const { owner, title, project, experiment_id: id, displaced_by: others } = slot;
  return html`${owner}'s ${id ? html`<a href=${`/experiments/${id}`}>${title}</a>` : "run"}${project && ` in ${project}`}
    <div class="muted small">since ${dateTime(slot.since)}${slot.expected_end && html`, expected to end ${dateTime(slot.expected_end)}`}
      ${others.length > 0 && html`<br />until ${dateTime(slot.keeps_until)} at least, then it may give way to ${others.join(" or ")}`}
      ${slot.gives_way_to && html`<br />now it is asked to give way to ${slot.gives_way_to}`}</div>`;
}

function Workers({ workers, slots }) {
  const bySlot = new Map(slots.map((one) => [one.worker, one]));
  const state = (one) => html`${one.busy ? html`<${Status} of="running" />` : html`<span class="muted">idle</span>`}
    ${one.store_full && html` <span class="bad-text">starts no run: the store's disk is full</span>`}
    ${one.hangs && html` <span class="bad-text">hangs: it last looked for a run ${Math.round(one.looked_s)} s ago</span>`}
    ${one.drain && html` <span class="muted">${drained(one.drain)}</span>`}`;
  const columns = [
    ["Worker", "", (one) => html`${one.id}<div class="muted small">${one.gpu ?? one.queue}</div>`],
    ["State", "", state],
    ["Whose turn", "", (one) => html`<${Turn} slot=${bySlot.get(one.id)} />`],
    ["Free memory", "wide", memory],
    ["Up since", "wide", (one) => html`<${When} at=${one.started_at} />`],
  ];
  return html`<section class="card flush">
    <h2>Workers</h2>
    ${workers.length === 0 && html`<${Empty} title="No worker was heard of within a minute"><p>What is queued waits until one comes.</p><//>`}
    ${workers.length > 0 && html`<${Table} label="Workers" columns=${columns} rows=${workers} />`}
  </section>`;
}

function stateOf(key) {
  if (key.revoked_at) return "revoked";
  return key.expires_at && Date.parse(key.expires_at) < Date.now() ? "expired" : "in force";
}

const NEW_KEY = "new-key"; // where a new key waits for the password, and the part of the page

/** Makes a key for scripts. The provider asks for the password first, unless it did so lately: the key is made after the
 * return. */
function NewKey({ onDone }) {
  const [made, setMade] = useState(null);
  const [error, setError] = useState(null);
  const part = useRef(null);

  async function make(wanted) {
    setMade(await post("/v1/me/keys", wanted));
    setError(null);
    onDone();
  }

  useEffect(() => {
    const wanted = sessionStorage.getItem(NEW_KEY);
    sessionStorage.removeItem(NEW_KEY);
    if (wanted === null || location.hash !== `#${NEW_KEY}`) return;
    history.replaceState(null, "", location.pathname);
    make(JSON.parse(wanted)).catch(setError);
  }, []);

  useEffect(() => made && part.current.scrollIntoView({ block: "center" }), [made]);

  async function onSubmit(event) {
    event.preventDefault();
    const form = new FormData(event.target);
    const wanted = { name: form.get("name").trim(), lasts_days: Number(form.get("days")) };
    try {
      await make(wanted);
      event.target.reset();
    } catch (refused) {
      if (refused.reason !== "sign_in_again") return setError(refused);
      sessionStorage.setItem(NEW_KEY, JSON.stringify(wanted));
      await signInByAccount(`/lab#${NEW_KEY}`, true).catch(setError);
    }
  }
  const login = `mpt login --url ${location.origin}`;
  return html`<form onSubmit=${onSubmit} ref=${part} class="bar row end fields">
    <div class="field"><label for="key-name">New key for</label>
      <input id="key-name" name="name" required maxlength="200" defaultValue="scripts on my laptop" /></div>
    <div class="field"><label for="key-days">Days</label>
      <input id="key-days" name="days" type="number" min="1" max="90" defaultValue="30" required /></div>
    <button>Make a key</button>
    <${Problem} error=${error} />
    ${made && html`<div class="notice stack" role="status">
      <p>In a terminal: <code class="wrap">${login}</code></p>
      <div><${Copy} text=${() => login}>Copy the command<//></div>
      <p>It asks for this key, which is not shown again: <code class="wrap">${made.key}</code></p>
      <div><${Copy} text=${() => made.key}>Copy the key<//></div>
    </div>`}
  </form>
  <p class="bar muted small">${provider} may ask for your password first.</p>`;
}

function Keys({ me, may, keys, onDone }) {
  const [revoking, setRevoking] = useState(null);
  const [error, setError] = useState(null);
  function onAnswer(yes) {
    const { id } = revoking;
    setRevoking(null);
    if (yes) call("DELETE", `/v1/users/${me.name}/keys/${id}`).then(() => setError(null), setError).then(onDone);
  }
  const columns = [
    ["Key", "", (key) => html`${key.name ?? "unnamed"}<div class="muted small mono">${key.id}${key.id === me.key_id && " (this browser's)"}</div>`],
    ["May", "wide", (key) => key.scopes.join(", ")],
    ["Last used", "wide", (key) => html`<${When} at=${key.last_used_at} />`],
    ["State", "", (key) => html`${stateOf(key)}${key.expires_at && stateOf(key) === "in force" && ` until ${dateTime(key.expires_at)}`}
      ${may("cancel") && stateOf(key) === "in force" && html` <button type="button" class="quiet" onClick=${() => setRevoking(key)}>Revoke</button>`}`],
  ];
  const section = useRef(null);
  useEffect(() => location.hash === "#keys" && section.current.scrollIntoView(), []);
  return html`<section id="keys" class="card flush" ref=${section}>
    <h2>My keys</h2>
    <${Problem} error=${error} />
    ${provider && html`<${NewKey} onDone=${onDone} />`}
    <${Table} label="Keys" columns=${columns} rows=${keys} />
    ${revoking && html`<${Confirm} title="Revoke this key?" action="Revoke" deletes onAnswer=${onAnswer}>
      <p>${revoking.name ?? revoking.id} serves no request from then on${revoking.id === me.key_id && ", and this browser is signed out"}.</p>
    <//>`}
  </section>`;
}

const MAX_RUNNING = 20;
const TABS = [["now", "Workers and queue"], ["audit", "Audit log"]];

function Now({ me, may }) {
  const read = async () => {
    const [queue, running, workers, keys] = await Promise.all([
      get("/v1/queue"),
      get(withQuery("/v1/experiments", { status: "running", limit: MAX_RUNNING })),
      get("/v1/workers"),
      get(`/v1/users/${me.name}/keys`),
    ]);
    return { queue, running: running.items, workers: workers.items, keys: keys.items };
  };
  const { data, error, refresh } = useLive(read, []);
  return html`
    <${Problem} error=${error} />
    ${!data && !error && html`<${Loading} />`}
    ${data && html`
      <${Workers} workers=${data.workers} slots=${data.queue.slots} />
      <div class="halves"><${Queue} queue=${data.queue} /><${Running} experiments=${data.running} /></div>
      <div class="halves"><${Usage} queue=${data.queue} /><${Keys} me=${me} may=${may} keys=${data.keys} onDone=${refresh} /></div>
      <${WorkerHistory} here=${data.workers.map(({ id }) => id)} />
      ${may("admin") && html`<${Users} />`}
      <p class="muted">For scripts: <a href="/docs">the API</a>.</p>`}`;
}

export default function Lab({ me, may }) {
  const now = html`<${Now} me=${me} may=${may} />`;
  return html`<div class="stack">
    <h1>The lab</h1>
    ${may("admin") ? html`<${Tabs} label="The lab" tabs=${TABS}>${(tab) => (tab === "audit" ? html`<${Audit} />` : now)}<//>` : now}
  </div>`;
}
