// Signing in by an account of the lab's provider, whose page sends the browser back to /sign-in.

import { post } from "./api.js";

/** The host of the provider; undefined in a lab that has none. */
export const { provider } = document.body.dataset;

const NEXT = "next";

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
  return sessionStorage.getItem(NEXT) ?? "/";
}
