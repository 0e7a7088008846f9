// Views of a list that this browser keeps by name. What a view shows is in its address.

import { html, useState } from "./vendor/preact-htm.js";

const KEY = "views";

const known = () => JSON.parse(localStorage.getItem(KEY) ?? "[]");

/** A view is all of the query of the address but which page of the list it is. */
export function SavedViews({ query }) {
  const [views, setViews] = useState(known);
  const [name, setName] = useState(null);
  const asked = new URLSearchParams(query);
  asked.delete("cursor");
  const address = asked.toString();
  const isKept = views.some((one) => one.query === address);

  function keep(next) {
    localStorage.setItem(KEY, JSON.stringify(next));
    setViews(next);
    setName(null);
  }
  function onSubmit(event) {
    event.preventDefault();
    keep([...views.filter((one) => one.name !== name.trim()), { name: name.trim(), query: address }]);
  }
  if (!views.length && !address) return null;
  return html`<nav class="row" aria-label="Saved views">
    ${views.map((one) => html`<span key=${one.name} class="view">
      <a href=${`/?${one.query}`} aria-current=${one.query === address ? "page" : null}>${one.name}</a>
      <button type="button" class="quiet" aria-label=${`Forget the view ${one.name}`} onClick=${() => keep(views.filter((other) => other !== one))}>×</button>
    </span>`)}
    ${address && !isKept && name === null && html`<button type="button" class="quiet" onClick=${() => setName("")}>Save this view</button>`}
    ${name !== null && html`<form class="row" onSubmit=${onSubmit}>
      <input class="short" aria-label="Name of the view" maxlength="60" required value=${name} onInput=${(event) => setName(event.target.value)} />
      <button>Save</button>
    </form>`}
  </nav>`;
}
