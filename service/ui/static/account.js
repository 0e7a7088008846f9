// Signing in by an account of the lab's provider, whose page sends the browser back to /sign-in.

import { post } from "./api.js";

/** The host of the provider; undefined in a lab that has none. */
export const { provider } = document.body.dataset;

const NEXT = "next";
const BY_ACCOUNT = "by-account"; // kept while this browser is signed in by an account
const SIGNED_OUT = "signed-out"; // read by the page of the sign-in

/** Signs this browser out, and leaves for the page that says what goes on. */
export async function signOut() {
  sessionStorage.clear(); // what this user has typed
  sessionStorage.setItem(SIGNED_OUT, localStorage.getItem(BY_ACCOUNT) === null ? "" : (provider ?? ""));
  localStorage.removeItem(BY_ACCOUNT);
  await post("/v1/sign-out");
  location.assign("/sign-in");
}

/** The host at which one is still signed in after signing out here, "" if there is none; null if one has not just signed out. */
export function justSignedOut() {
  const host = sessionStorage.getItem(SIGNED_OUT);
  sessionStorage.removeItem(SIGNED_OUT);
  return host;
}

/** Notes that a sign-in was not by an account. */
export const signedInByKey = () => localStorage.removeItem(BY_ACCOUNT);

/** Leaves for the provider's page. `next` is the path to open after it. */
export async function signInByAccount(next, fresh = false) {
  const { url } = await post("/v1/sign-in:begin", { fresh });
  sessionStorage.setItem(NEXT, next);
  location.assign(url);
}

/** Whether the provider has just sent the browser here. */
export const isBack = () => new URLSearchParams(location.search).has("state");

/** Ends the sign-in with what the provider added to the address, and gives the path to open. */
export async function finishSignIn() {
  const query = new URLSearchParams(location.search);
  const names = ["state", "code", "iss", "error"].filter((name) => query.has(name));
  history.replaceState(null, "", location.pathname);
  await post("/v1/sign-in:finish", Object.fromEntries(names.map((name) => [name, query.get(name)])));
  localStorage.setItem(BY_ACCOUNT, "");
  return sessionStorage.getItem(NEXT) ?? "/";
}
