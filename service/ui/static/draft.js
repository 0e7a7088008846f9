// What one has typed into a form, kept by the browser until it is submitted: a sign-in may end meanwhile.

import { useEffect, useState } from "./vendor/preact-htm.js";

const KEY = "draft";

/** The values that were typed into this form before; null if there are none. */
function kept(form) {
  try {
    const draft = JSON.parse(sessionStorage.getItem(KEY));
    return draft?.form === form ? draft.values : null;
  } catch {
    return null;
  }
}

function keep(form, values) {
  try {
    sessionStorage.setItem(KEY, JSON.stringify({ form, values }));
  } catch {
    forget(); // it is too large for the browser
  }
}

const forget = () => sessionStorage.removeItem(KEY);

/**
 * The values of a form: `{values, change, forget, isKept}`, where `form` names the form and its user. `isKept` says that
 * they are those of an earlier visit; `forget` is called once they are submitted or no longer wanted.
 */
export function useDraft(form, begun) {
  const [before] = useState(() => kept(form));
  const [values, setValues] = useState(before ? { ...begun, ...before } : begun);
  useEffect(() => {
    if (values !== begun) keep(form, values);
  }, [values]);
  return { values, change: (changes) => setValues((last) => ({ ...last, ...changes })), forget, isKept: before !== null };
}
