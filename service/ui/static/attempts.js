// What ran where: of each attempt what it takes to compute the same again.

import { html } from "./vendor/preact-htm.js";
import { dateTime, duration } from "./format.js";
import { Copy } from "./parts.js";

const AGAIN = "python -m mptcore --work-dir again < spec.json > again.ndjson";
const DIGITS = 16; // of a digest, to be compared by eye

const listed = (values) => Object.entries(values).map(([name, value]) => html`<div class="wrap">${name} <span class="mono">${value.slice(0, DIGITS)}</span></div>`);

function Environment({ of }) {
  const packages = Object.entries(of.packages).map(([name, version]) => `${name} ${version}`);
  const facts = [
    ["Code", html`<span class="mono">${of.core.slice(0, DIGITS)}</span>`],
    ["Processor", `${of.cpu}, ${of.cpu_capability}`],
    ["GPU", of.gpu && `${of.gpu}, driver ${of.gpu_driver}, CUDA ${of.cuda}`],
    ["Threads", of.threads],
    ["Precision", of.precision],
    ["Seeds", of.seeds.join(", ")],
    ["System", of.platform],
    ["Packages", packages.join(" · ")],
    ["Read", Object.keys(of.inputs).length > 0 && listed(of.inputs)],
  ];
  return html`<dl class="facts">
    ${facts.filter(([, value]) => value).map(([name, value]) => html`<dt>${name}</dt><dd>${value}</dd>`)}
  </dl>`;
}

function Attempt({ attempt, isLast }) {
  const { started_at: started, ended_at: ended, environment } = attempt;
  const took = ended && `, ${duration((Date.parse(ended) - Date.parse(started)) / 1000)}`;
  return html`<details open=${isLast}>
    <summary><strong>Attempt ${attempt.attempt}</strong> <span class="muted small wrap">${attempt.worker}, ${dateTime(started)}${took}</span></summary>
    <div class="inset">${environment ? html`<${Environment} of=${environment} />` : html`<p class="muted">No environment is recorded.</p>`}</div>
  </details>`;
}

export function Attempts({ experiment }) {
  const { attempts } = experiment;
  if (!attempts.length) return null;
  return html`<section class="card stack">
    ${experiment.terminal && html`<p class="muted small">The command takes <code>spec.json</code> out of the zip below Download, and needs no service. With the same code, vector instructions and threads a processor gives the same numbers to the last bit.</p>`}
    ${experiment.terminal && html`<${Copy} text=${() => AGAIN}>Copy the command that runs it again<//>`}
    ${attempts.map((one, i) => html`<${Attempt} key=${one.attempt} attempt=${one} isLast=${i === attempts.length - 1} />`)}
  </section>`;
}
