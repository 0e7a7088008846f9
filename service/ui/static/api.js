// Asking the service. All that the pages show and do goes through here.

/** The service's answer was a problem (RFC 9457): its sentence, and what is wrong at which field. */
export class Refused extends Error {
  constructor(status, problem) {
    super(problem.detail ?? problem.title ?? `the answer was ${status}`);
    this.status = status;
    this.reason = problem.reason;
    this.errors = problem.errors ?? [];
  }

  /** What is wrong at a field, as a sentence; null where nothing is. */
  at(pointer) {
    const found = this.errors.filter((error) => error.pointer === pointer);
    return found.length ? found.map((error) => error.detail).join("; ") : null;
  }
}

/** The service does not answer, or cannot now. */
export class Away extends Error {}

/** Asks, and gives the answer's JSON; null where it has none. Throws Refused and Away. */
export async function call(method, path, body, headers) {
  const answer = await answerTo(method, path, body, headers);
  return answer.status === 204 ? null : answer.json();
}

/** Asks, and gives the answer itself. Throws Refused and Away. */
export async function answerTo(method, path, body, headers = {}) {
  const answer = await send(method, path, body, headers);
  if (answer.ok) return answer;
  const problem = await answer.json().catch(() => ({}));
  if ([429, 502, 503, 504].includes(answer.status)) throw new Away(problem.detail);
  if (answer.status === 401 && !path.startsWith("/v1/sign-in")) {
    const here = location.pathname + location.search;
    location.assign(`/sign-in?next=${encodeURIComponent(here)}`);
    return new Promise(() => {}); // this page is being left
  }
  throw new Refused(answer.status, problem);
}

async function send(method, path, body, headers) {
  const isFile = body instanceof Blob;
  const type = body === undefined || isFile ? {} : { "Content-Type": "application/json" };
  try {
    return await fetch(path, {
      method,
      headers: { ...type, ...headers },
      body: body === undefined || isFile ? body : JSON.stringify(body),
    });
  } catch {
    throw new Away();
  }
}

export const get = (path) => call("GET", path);
export const post = (path, body, headers) => call("POST", path, body, headers);

/** A path with a query; null and empty values are left out, lists are given several times. */
export function withQuery(path, values) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(values)) {
    for (const one of [value].flat()) {
      if (one !== null && one !== undefined && one !== "") query.append(name, one);
    }
  }
  const text = query.toString();
  return text ? `${path}?${text}` : path;
}

/** Does the same with each of many, a few at a time. Gives the sentences of those refused. */
export async function withEach(items, work) {
  const waiting = [...items];
  const refused = [];
  async function next() {
    for (let item = waiting.shift(); item !== undefined; item = waiting.shift()) {
      await work(item).catch((error) => refused.push(error.message));
    }
  }
  await Promise.all([next(), next(), next(), next()]);
  return refused;
}

/** The same function, of which one call is under way at a time: who asks meanwhile gets its answer. */
export function oneAtATime(read) {
  let underWay = null;
  return () => (underWay ??= read().finally(() => (underWay = null)));
}
