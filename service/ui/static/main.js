// Every page begins here: the page's own component, the account, and the banners.

import { html, render, useEffect, useState } from "./vendor/preact-htm.js";
import { signOut } from "./account.js";
import { get } from "./api.js";
import { dateTime } from "./format.js";
import { follow, useAway } from "./live.js";

const { page } = document.body.dataset;
const DAY_MS = 86_400_000;
const DRAINS_EVERY_MS = 300_000;

function Away() {
  return useAway() && html`<div class="banner">
    The service does not answer. What you see may be out of date; this page asks again by itself.
  </div>`;
}

/**
 * The drains of machines that are planned for the next day. They are not followed: that would hold
 * an event stream for each page, also for one that has ended.
 */
function PlannedDrains() {
  const [drains, setDrains] = useState([]);
  useEffect(() => {
    const ask = () => get("/v1/drains").then(({ items }) => setDrains(items), () => {}); // if it fails, again later
    ask();
    const timer = setInterval(ask, DRAINS_EVERY_MS);
    return () => clearInterval(timer);
  }, []);
  const soon = drains.filter((one) => !one.has_begun && Date.parse(one.starts_at) < Date.now() + DAY_MS);
  return soon.map((one) => html`<div class="banner" key=${one.host}>
    ${one.host} is drained from ${dateTime(one.starts_at)} ${one.until ? `until ${dateTime(one.until)}` : "on"}. Its runs save a checkpoint
    ${one.hand_back_at === one.starts_at ? "then" : `at ${dateTime(one.hand_back_at)}`} and return to the queue; runs that would not end before wait, or start
    on other machines.
  </div>`);
}

function Account({ me }) {
  return html`<div class="account">
    <a href="/lab#keys" title=${me.role}>${me.name}</a>
    <button class="quiet" type="button" onClick=${signOut}>Sign out</button>
  </div>`;
}

function show(Page, me) {
  const main = document.getElementById("main");
  main.replaceChildren();
  render(html`<${Page} me=${me} may=${(scope) => me?.scopes.includes(scope) ?? false} />`, main);
}

const hasAccount = page !== "sign-in";
render(html`<${Away} />${hasAccount && html`<${PlannedDrains} />`}`, document.getElementById("banner"));
const loading = import(`./pages/${page}.js`);
if (!hasAccount) {
  show((await loading).default, null);
} else {
  follow(async () => {
    const me = await get("/v1/me");
    const { default: Page } = await loading;
    render(html`<${Account} me=${me} />`, document.getElementById("account"));
    show(Page, me);
    return false;
  });
}
