// Tabs of a page. The address has the one that is shown, so that it can be sent, and the browser goes back to the last.

import { html } from "./vendor/preact-htm.js";
import { useQuery } from "./parts.js";

/** The tab that the address names, by default the first: `[tab, choose]`. `tabs` are titles by name. */
export function useTab(name, tabs, first = Object.keys(tabs)[0]) {
  const [query, change] = useQuery();
  const named = query.get(name);
  return [named in tabs ? named : first, (tab) => change({ [name]: tab })];
}

export function Tabs({ label, name, tabs, current, onChoose }) {
  const choose = (tab) => (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return; // another window
    event.preventDefault();
    onChoose(tab);
  };
  return html`<nav class="tabs" aria-label=${label}>
    ${Object.entries(tabs).map(([tab, title]) => html`<a key=${tab} href=${`?${name}=${tab}`}
      aria-current=${tab === current ? "page" : null} onClick=${choose(tab)}>${title}</a>`)}
  </nav>`;
}
