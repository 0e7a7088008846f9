// The lab: the workers, what runs and waits, what one may use, and one's keys.

import { html, useState } from "../vendor/preact-htm.js";
import { Administration } from "../administration.js";
import { call, get, withQuery } from "../api.js";
import { bytes, dateTime, duration, number, titleOf } from "../format.js";
import { useLive } from "../live.js";
import { Confirm, Empty, Problem, Progress, Scroll, Status, When } from "../parts.js";
import { WorkerHistory } from "../worker-history.js";

const Title = ({ of }) => html`<a class=${of.name ? "name" : "name muted"} href=${`/experiments/${of.id}`}>${titleOf(of)}</a>`;

function Running({ experiments }) {
  return html`<section class="card flush">
    <h2>My running experiments</h2>
    ${experiments.length === 0 && html`<${Empty} title="Nothing runs" />`}
    ${experiments.length > 0 && html`<${Scroll} label="Running"><table>
      <thead><tr><th scope="col">Experiment</th><th scope="col">Progress</th><th scope="col" class="wide">Worker</th></tr></thead>
      <tbody>${experiments.map((one) => html`<tr key=${one.id}>
        <th scope="row"><${Title} of=${one} /></th>
        <td>${one.progress?.total ? html`<${Progress} experiment=${one} label=${`Progress of ${titleOf(one)}`} />` : html`<${Status} of=${one.status} />`}</td>
        <td class="wide wrap">${one.worker}</td>
      </tr>`)}</tbody>
    </table><//>`}
  </section>`;
}

function Queue({ queue }) {
  const { items } = queue;
  return html`<section class="card flush">
    <h2>My waiting experiments</h2>
    ${items.length === 0 && html`<${Empty} title="Nothing waits" />`}
    ${items.length > 0 && html`<${Scroll} label="Queue"><table>
      <thead><tr><th scope="col">Experiment</th><th scope="col">Why it waits</th><th scope="col" class="wide">May start</th><th scope="col" class="wide">Since</th></tr></thead>
      <tbody>${items.map((one) => html`<tr key=${one.id}>
        <th scope="row"><${Title} of=${one} /></th>
        <td>${one.queue.reason}</td>
        <td class="wide">${one.queue.estimated_start ? dateTime(one.queue.estimated_start) : "not known"}</td>
        <td class="wide"><${When} at=${one.created_at} /></td>
      </tr>`)}</tbody>
    </table><//>`}
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
  ];
  return html`<section class="card">
    <h2>My usage</h2>
    <dl class="facts">${facts.map(([name, value]) => html`<dt>${name}</dt><dd>${value}</dd>`)}</dl>
  </section>`;
}

const drained = ({ drained_by: by, until }) => `starts no run: its machine is drained by ${by}${until ? ` until ${dateTime(until)}` : ""}`;

function Workers({ workers, experiments }) {
  const titles = new Map(experiments.map((one) => [one.id, titleOf(one)]));
  return html`<section class="card flush">
    <h2>Workers</h2>
    ${workers.length === 0 && html`<${Empty} title="No worker was heard of within a minute"><p>What is queued waits until one comes.</p><//>`}
    ${workers.length > 0 && html`<${Scroll} label="Workers"><table>
      <thead><tr><th scope="col">Worker</th><th scope="col">State</th><th scope="col" class="wide">Free memory</th><th scope="col" class="wide">Up since</th></tr></thead>
      <tbody>${workers.map((one) => html`<tr key=${one.id}>
        <th scope="row" class="wrap">${one.id}<div class="muted small">${one.gpu ?? one.queue}</div></th>
        <td>${one.busy ? html`<${Status} of="running" />` : html`<span class="muted">idle</span>`}
          ${one.store_full && html` <span class="bad-text">starts no run: the store's disk is full</span>`}
          ${!one.busy && one.looked_s > 12 && html` <span class="bad-text">hangs: it last looked for a run ${Math.round(one.looked_s)} s ago</span>`}
          ${one.drain && html` <span class="muted">${drained(one.drain)}</span>`}
          ${one.experiment_id && html` <a href=${`/experiments/${one.experiment_id}`}>${titles.get(one.experiment_id) ?? one.experiment_id.slice(-6)}</a>`}</td>
        <td class="wide">${one.gpu ? `${bytes(one.gpu_memory_free)} of ${bytes(one.gpu_memory_total)} on GPU ${one.gpu_number ?? ""}; its run uses ${bytes(one.gpu_memory_ours ?? 0)}` : `${bytes(one.memory_free)} of ${bytes(one.memory_total)}; its run uses ${bytes(one.memory_ours ?? 0)}`}</td>
        <td class="wide"><${When} at=${one.started_at} /></td>
      </tr>`)}</tbody>
    </table><//>`}
  </section>`;
}

function stateOf(key) {
  if (key.revoked_at) return "revoked";
  return key.expires_at && Date.parse(key.expires_at) < Date.now() ? "expired" : "in force";
}

function Keys({ me, may, keys, onDone }) {
  const [revoking, setRevoking] = useState(null);
  const [error, setError] = useState(null);
  function onAnswer(yes) {
    const { id } = revoking;
    setRevoking(null);
    if (yes) call("DELETE", `/v1/users/${me.name}/keys/${id}`).then(() => setError(null), setError).then(onDone);
  }
  return html`<section class="card flush">
    <h2>My keys</h2>
    <${Problem} error=${error} />
    <${Scroll} label="Keys"><table>
      <thead><tr><th scope="col">Key</th><th scope="col" class="wide">May</th><th scope="col" class="wide">Last used</th><th scope="col">State</th></tr></thead>
      <tbody>${keys.map((key) => html`<tr key=${key.id}>
        <th scope="row">${key.name ?? "unnamed"}<div class="muted small mono">${key.id}${key.id === me.key_id && " (this browser's)"}</div></th>
        <td class="wide">${key.scopes.join(", ")}</td>
        <td class="wide"><${When} at=${key.last_used_at} /></td>
        <td>${stateOf(key)}
          ${may("cancel") && stateOf(key) === "in force" && html` <button type="button" class="quiet" onClick=${() => setRevoking(key)}>Revoke</button>`}</td>
      </tr>`)}</tbody>
    </table><//>
    ${revoking && html`<${Confirm} title="Revoke this key?" action="Revoke" onAnswer=${onAnswer}>
      <p>${revoking.name ?? revoking.id} serves no request from then on${revoking.id === me.key_id && ", and this browser is signed out"}.</p>
    <//>`}
  </section>`;
}

const MAX_RUNNING = 20;

export default function Lab({ me, may }) {
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
  return html`<div class="stack">
    <h1>The lab</h1>
    <${Problem} error=${error} />
    ${data && html`
      <div class="halves">
        <${Workers} workers=${data.workers} experiments=${data.running} />
        <${Running} experiments=${data.running} />
      </div>
      <div class="halves"><${Queue} queue=${data.queue} /><${Usage} queue=${data.queue} /></div>
      <${WorkerHistory} />
      <${Keys} me=${me} may=${may} keys=${data.keys} onDone=${refresh} />
      ${may("admin") && html`<${Administration} />`}
      <p class="muted">For scripts: <a href="/docs">the API</a>.</p>`}
  </div>`;
}
