// Signing in: by the code of a link that was printed in a terminal, or by a key.

import { html, useEffect, useState } from "../vendor/preact-htm.js";
import { post } from "../api.js";
import { Problem } from "../parts.js";

/** Where one was going: a path of this service. */
function next() {
  const wanted = new URLSearchParams(location.search).get("next") ?? "/";
  return /^\/(?![/\\])/.test(wanted) ? wanted : "/";
}

export default function SignIn() {
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState(false);

  async function signIn(given) {
    setBusy(true);
    setError(null);
    try {
      await post("/v1/sign-in", given);
      localStorage.setItem("renewed", String(Date.now()));
      location.replace(next());
    } catch (refused) {
      setError(refused);
      setBusy(false);
    }
  }

  useEffect(() => {
    function byLink() {
      const code = location.hash.slice(1);
      if (!code) return;
      history.replaceState(null, "", location.pathname + location.search);
      signIn({ code });
    }
    byLink();
    addEventListener("hashchange", byLink); // a link that was pasted into this very page
    return () => removeEventListener("hashchange", byLink);
  }, []);

  function onSubmit(event) {
    event.preventDefault();
    signIn({ key: new FormData(event.target).get("key").trim() });
  }

  return html`<div class="card narrow stack">
    <h1>Sign in</h1>
    <p class="muted">
      <code>mpt serve</code> prints a link that signs this browser in. Or give your API key: the
      browser may then what the key may, until the key is revoked, or for a week.
    </p>
    <${Problem} error=${error} />
    <form onSubmit=${onSubmit} class="stack">
      <div class="field">
        <label for="key">API key</label>
        <input id="key" name="key" type="password" autocomplete="current-password" required
          placeholder="mpt_…" spellcheck="false" />
      </div>
      <button class="primary" disabled=${busy}>${busy ? "Signing in…" : "Sign in"}</button>
    </form>
  </div>`;
}
