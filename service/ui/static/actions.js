// What may be done with an experiment, as the service says.

import { html, useState } from "./vendor/preact-htm.js";
import { call, post } from "./api.js";
import { titleOf } from "./format.js";
import { Confirm, Problem } from "./parts.js";
import { readersOf } from "./projects.js";

const TEXTS = { pause: "Pause", resume: "Resume", cancel: "Cancel", retry: "Retry" };

/** `children` stand first. */
export function Actions({ experiment, me, onDone, children }) {
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState(false);
  const [question, setQuestion] = useState(null);
  const path = `/v1/experiments/${experiment.id}`;
  const { can } = experiment;
  if (experiment.owner !== me.name && !can.length) {
    return html`<div class="row">${children}</div><p class="muted small">${experiment.owner} shares this with ${readersOf(experiment)}: you may read it.</p>`;
  }

  async function run(work) {
    setBusy(true);
    setError(null);
    try {
      await work();
    } catch (refused) {
      setError(refused);
    }
    setBusy(false);
    onDone();
  }
  const perform = (verb) => run(async () => {
    const answer = await post(`${path}:${verb}`);
    if (verb === "retry") location.assign(`/experiments/${answer.id}`);
  });
  const change = (changes) => run(() => call("PATCH", path, changes));
  const remove = () => run(async () => {
    await call("DELETE", path);
    location.assign("/");
  });
  function answer(work) {
    return (yes) => {
      setQuestion(null);
      if (yes) work();
    };
  }
  const { project, visibility } = experiment;
  const readers = [
    ["private", "Make private"],
    ...(project ? [["project", `Share with ${project}`]] : []),
    ["lab", project ? "Share with the lab" : "Share"],
  ];
  return html`<div class="stack">
    <div class="row" role="group" aria-label="What to do with it">
      ${children}
      ${can.filter((action) => action in TEXTS).map((verb) => html`
        <button key=${verb} type="button" disabled=${busy} onClick=${() => (verb === "cancel" ? setQuestion(verb) : perform(verb))}>${TEXTS[verb]}</button>`)}
      ${can.includes("change") && html`
        ${readers.filter(([value]) => value !== visibility).map(([value, text]) => html`
          <button key=${value} type="button" disabled=${busy} onClick=${() => change({ visibility: value })}>${text}</button>`)}
        <button type="button" disabled=${busy} onClick=${() => change({ pinned: !experiment.pinned })}>${experiment.pinned ? "Unpin" : "Pin"}</button>`}
      ${can.includes("delete") && html`
        <button type="button" class="quiet danger" disabled=${busy} onClick=${() => setQuestion("delete")}>Delete</button>`}
    </div>
    <${Problem} error=${error} />
    ${question === "cancel" && html`<${Confirm} title="Cancel this run?" action="Cancel the run" onAnswer=${answer(() => perform("cancel"))}>
      <p class="wrap">${titleOf(experiment)}: what it has computed stays; it does not go on.</p>
    <//>`}
    ${question === "delete" && html`<${Confirm} title="Delete this experiment?" action="Delete" deletes onAnswer=${answer(remove)}>
      <p class="wrap">${titleOf(experiment)}: no one sees it from then on, and its files go after a time.
        Until then <code>mpt undelete ${experiment.id}</code> brings it back.</p>
    <//>`}
  </div>`;
}
