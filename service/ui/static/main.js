// Every page begins here: the page's own component, the account, and the banner.

import { html, render } from "./vendor/preact-htm.js";
import { get, post } from "./api.js";
import { follow, useAway } from "./live.js";

const { page } = document.body.dataset;

function Banner() {
  return useAway() && html`<div class="banner">
    The service does not answer. What you see may be out of date; this page asks again by itself.
  </div>`;
}

function Account({ me }) {
  async function signOut() {
    await post("/v1/sign-out");
    location.assign("/sign-in");
  }
  return html`<div class="account">
    <a href="/lab" title=${me.role}>${me.name}</a>
    <button class="quiet" type="button" onClick=${signOut}>Sign out</button>
  </div>`;
}

function show(Page, me) {
  const main = document.getElementById("main");
  main.replaceChildren();
  render(html`<${Page} me=${me} may=${(scope) => me?.scopes.includes(scope) ?? false} />`, main);
}

render(html`<${Banner} />`, document.getElementById("banner"));
const loading = import(`./pages/${page}.js`);
if (page === "sign-in") {
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
