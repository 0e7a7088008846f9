// Following what changes, and knowing whether the service answers.

import { useEffect, useState } from "./vendor/preact-htm.js";
import { Away } from "./api.js";

const AGAIN_MS = 2000;

let isAway = false;
const listeners = new Set();

function setAway(away) {
  if (away === isAway) return;
  isAway = away;
  listeners.forEach((listener) => listener(away));
}

/** Whether the service does not answer. */
export function useAway() {
  const [away, setState] = useState(isAway);
  useEffect(() => {
    listeners.add(setState);
    return () => listeners.delete(setState);
  }, []);
  return away;
}

/**
 * Asks now, and again whenever there may be something new, until `ask` gives false or the function
 * that this gives back is called. A page that no one looks at does not ask.
 *
 * This is the one place that decides when: by the clock, and where the service pushes, by its events.
 */
export function follow(ask) {
  let timer = null;
  let ended = false;

  async function turn() {
    clearTimeout(timer);
    let again = true;
    try {
      again = (await ask()) !== false;
      setAway(false);
    } catch (error) {
      if (!(error instanceof Away)) throw error;
      setAway(true);
    }
    if (again && !ended && !document.hidden) timer = setTimeout(turn, AGAIN_MS);
    if (!again) end();
  }
  function onVisible() {
    if (!document.hidden && !ended) turn();
  }
  function end() {
    ended = true;
    clearTimeout(timer);
    document.removeEventListener("visibilitychange", onVisible);
  }
  document.addEventListener("visibilitychange", onVisible);
  turn();
  return end;
}

/**
 * What `read` gives, followed as long as the component is shown: `{data, error, refresh}`. `data`
 * stays while the service is away; `error` is a Refused. `until(data)` says that nothing will change.
 */
export function useLive(read, inputs, until = () => false) {
  const [state, setState] = useState({ data: null, error: null });
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    let current = true;
    const end = follow(async () => {
      let next;
      try {
        next = { data: await read(), error: null };
      } catch (error) {
        if (error instanceof Away) throw error;
        next = { data: null, error };
      }
      if (!current) return false;
      setState(next);
      return !next.error && !until(next.data);
    });
    return () => {
      current = false;
      end();
    };
  }, [...inputs, turn]);
  return { ...state, refresh: () => setTurn((last) => last + 1) };
}
