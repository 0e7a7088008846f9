// What happened to an experiment: its states and its log, in their order.

import { html, useMemo } from "./vendor/preact-htm.js";
import { get, oneAtATime, withQuery } from "./api.js";
import { dateTime, detailsOf } from "./format.js";
import { useLive } from "./live.js";
import { Status } from "./parts.js";

const PAGE = 500;

/** A function that gives all that has happened: the whole at its first call, then what came since. */
function eventsOf(id) {
  let items = [];
  let after = null;
  return oneAtATime(async () => {
    let page;
    do {
      const query = { kind: ["status", "log"], after, limit: PAGE };
      page = await get(withQuery(`/v1/experiments/${id}/events`, query));
      items = [...items, ...page.items];
      after = page.last_id;
    } while (page.more);
    return { items, ended: page.ended };
  });
}

function Event({ event }) {
  const { data } = event;
  const isWarning = event.kind === "log" && data.level !== "info";
  return html`<li>
    <time class="muted small" datetime=${event.at}>${dateTime(event.at, "medium")}</time>
    ${event.kind === "status"
      ? html`<span><${Status} of=${data.status} /> <span class="muted small wrap">${detailsOf(data)}</span></span>`
      : html`<span class=${isWarning ? "bad-text wrap" : "wrap"}>${data.message}</span>`}
  </li>`;
}

export function History({ id }) {
  const read = useMemo(() => eventsOf(id), [id]);
  const { data } = useLive(read, [read], ({ ended }) => ended);
  if (!data?.items.length) return null;
  return html`<section class="card">
    <ol class="log" tabindex="0" aria-label="What happened">
      ${data.items.map((event) => html`<${Event} key=${`${event.id} ${event.kind}`} event=${event} />`)}
    </ol>
    <div class="row">
      <a class="button quiet" href=${`/v1/experiments/${id}/logs?format=text`} download=${`${id}.log`}>Download the log</a>
    </div>
  </section>`;
}
