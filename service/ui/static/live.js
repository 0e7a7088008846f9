// Following what changes, and knowing whether the service answers.

import { useEffect, useState } from "./vendor/preact-htm.js";
import { Away } from "./api.js";

const AGAIN_MS = 2000;
const PUSHED_MS = 15_000; // while the service tells by itself: it tells of one's own experiments alone
const TOGETHER_MS = 300;
const KINDS = ["status", "log", "progress", "points"];

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

// The stream of events of one's own experiments: whatever it tells, all that is followed is asked.

const turns = new Set();
const lasting = new Set(); // those that have asked, and are to ask again
let stream = null;
let isPushed = false;
let ringing = null;

function ring() {
  ringing ??= setTimeout(() => {
    ringing = null;
    turns.forEach((turn) => turn());
  }, TOGETHER_MS);
}

/** Browsers open few connections to one host: only a page that is looked at, and has not ended, has one. */
function listen() {
  const isWanted = lasting.size > 0 && !document.hidden;
  if (isWanted && stream === null) {
    stream = new EventSource("/v1/events");
    stream.onopen = () => setPushed(true);
    stream.onerror = () => setPushed(false); // the browser tries again; we ask meanwhile
    stream.addEventListener("end", () => {
      stream.close(); // the browser is not to open it again
      setPushed(false);
    });
    KINDS.forEach((kind) => stream.addEventListener(kind, ring));
  }
  if (!isWanted && stream !== null) {
    stream.close();
    stream = null;
    isPushed = false;
  }
}

function setPushed(pushed) {
  isPushed = pushed;
  ring();
}

addEventListener("visibilitychange", () => {
  listen();
  if (!document.hidden) ring();
});

/**
 * Asks now, and again whenever there may be something new, until `ask` gives false or the function
 * that this gives back is called. A page that no one looks at does not ask.
 *
 * This decides when, for all but the banner of planned drains: by the service's events, and by the clock.
 */
export function follow(ask) {
  let timer = null;
  let isAsking = false;

  async function turn() {
    if (isAsking || document.hidden) return;
    clearTimeout(timer);
    isAsking = true;
    let again = true;
    try {
      again = (await ask()) !== false;
      setAway(false);
    } catch (error) {
      if (!(error instanceof Away)) throw error;
      setAway(true);
    } finally {
      isAsking = false;
    }
    if (!again) end();
    if (!turns.has(turn)) return;
    lasting.add(turn);
    listen();
    timer = setTimeout(turn, isPushed && !isAway ? PUSHED_MS : AGAIN_MS);
  }
  function end() {
    clearTimeout(timer);
    turns.delete(turn);
    lasting.delete(turn);
    listen();
  }
  turns.add(turn);
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
