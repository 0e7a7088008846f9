// Signing in: by an account of the lab's provider, by the code of a link that was printed in a
// terminal, or by a key. Anyone can send a link, so the page asks before it signs in by one.

import { html, useEffect, useRef, useState } from "../vendor/preact-htm.js";
import { finishSignIn, isBack, justSignedOut, provider, signInByAccount, signedInByKey } from "../account.js";
import { post } from "../api.js";
import { Problem } from "../parts.js";

/** The path of this service that was asked for before the sign-in. */
function next() {
  const wanted = new URLSearchParams(location.search).get("next") ?? "/";
  return /^\/(?![/\\])[^\t\r\n]*$/.test(wanted) ? wanted : "/"; // browsers leave tabs and line ends out
}

/** Asks whether to sign in by a link. "No" has the focus: Enter accepts no foreign link. */
function Confirm({ link, busy, onYes, onNo }) {
  const no = useRef(null);
  useEffect(() => no.current.focus(), [link.code]);

  function onSubmit(event) {
    event.preventDefault();
    onYes();
  }

  const { name, signed_in_as: current } = link;
  return html`<form onSubmit=${onSubmit} class="stack">
    <p>
      The link you opened signs this browser in as <strong>${name}</strong>.
      ${current !== null && html` You are signed in as <strong>${current}</strong>: that ends.`}
      ${" "}Go on only if you asked for this link yourself.
    </p>
    <div class="row">
      <button class="primary" disabled=${busy}>Sign in as ${name}</button>
      <button type="button" ref=${no} onClick=${onNo} disabled=${busy}>No</button>
    </div>
  </form>`;
}

export default function SignIn() {
  const [error, setError] = useState(null);
  const [link, setLink] = useState(null); // the code of a link, and what it would do
  const [busy, setBusy] = useState(false);
  const [signedOut] = useState(justSignedOut);

  async function signIn(given) {
    setBusy(true);
    setError(null);
    try {
      await post("/v1/sign-in", given);
      signedInByKey();
      location.replace(next());
    } catch (refused) {
      setLink(null);
      setError(refused);
      setBusy(false);
    }
  }

  /** Does a step of a sign-in by an account, or shows why it cannot be done. */
  async function byAccount(step) {
    setBusy(true);
    setError(null);
    await step().catch((refused) => {
      setError(refused);
      setBusy(false);
    });
  }

  useEffect(() => {
    if (isBack()) byAccount(async () => location.replace(await finishSignIn()));
  }, []);

  useEffect(() => {
    async function byLink() {
      const code = location.hash.slice(1);
      if (!code) return;
      history.replaceState(null, "", location.pathname + location.search);
      setLink(null);
      setError(null);
      await post("/v1/sign-in:preview", { code }).then((found) => {
        if (found.signed_in_as === found.name) location.replace(next());
        else setLink({ code, ...found });
      }, setError);
    }
    byLink();
    addEventListener("hashchange", byLink); // a link that was pasted into this very page
    return () => removeEventListener("hashchange", byLink);
  }, []);

  function onSubmit(event) {
    event.preventDefault();
    signIn({ key: new FormData(event.target).get("key").trim() });
  }

  if (link !== null) {
    return html`<div class="card narrow stack">
      <h1>Sign in as ${link.name}?</h1>
      <${Confirm} link=${link} busy=${busy} onYes=${() => signIn({ code: link.code })}
        onNo=${() => (link.signed_in_as === null ? setLink(null) : location.replace(next()))} />
    </div>`;
  }
  return html`<div class="card narrow stack">
    <h1>Sign in to MPT Lab</h1>
    ${signedOut !== null && html`<p class="notice" role="status">You are signed out here.
      ${signedOut && html` You are still signed in at ${signedOut}: if others use this browser, sign out there, too.`}</p>`}
    ${provider && html`<button class="primary" type="button" disabled=${busy}
      onClick=${() => byAccount(() => signInByAccount(next()))}>
      ${busy ? "Signing in…" : `Sign in with your account at ${provider}`}
    </button>`}
    <${Problem} error=${error} />
    <p class="muted">
      ${provider ? "Or use a key of yours." : html`On your own machine, open the link that <code>mpt serve</code> printed. In a lab, use your key.`}
    </p>
    <form onSubmit=${onSubmit} class="stack">
      <div class="field">
        <label for="key">API key</label>
        <input id="key" name="key" type="password" autocomplete="current-password" required
          placeholder="mpt_…" spellcheck="false" aria-describedby="key-hint" />
        <span id="key-hint" class="muted small">This browser may then do what the key may, for a week at most. You have none? ${provider ? "Sign in with your account, and make one on the page The lab." : "An admin makes one."}</span>
      </div>
      <button class=${provider ? "" : "primary"} disabled=${busy}>${busy ? "Signing in…" : "Sign in"}</button>
    </form>
  </div>`;
}
