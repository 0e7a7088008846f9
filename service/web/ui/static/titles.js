// Titles of experiments without a name: the swept fields of a sweep's point, or else the spec in short.

import { useEffect, useState } from "./vendor/preact-htm.js";
import { get, withQuery } from "./api.js";
import { cut, plain, shortSpec } from "./format.js";

const MAX_IDS = 50; // specs of a page of the service
const MAX_CHARACTERS = 24; // of a sweep's name, and of a value

const asked = new Set(); // ids whose specs were requested: a spec never changes
const titles = new Map();
const sweeps = new Map();

/** The title of a sweep's point, such as "mine: latent_dim 3"; a field that its spec leaves out is left out. */
export function pointTitle({ name, fields }, spec) {
  const valueAt = (path) => path.split(".").reduce((part, key) => part?.[key], spec);
  const values = fields
    .map((path) => [path.split(".").pop(), valueAt(path)])
    .filter(([, value]) => value !== undefined && value !== null)
    .map(([field, value]) => `${field} ${cut(plain(value), MAX_CHARACTERS)}`);
  return `${cut(name ?? "sweep", MAX_CHARACTERS)}: ${values.join(", ")}`;
}

/** Reads the specs of experiments without a name, each once, and the newest sweeps if some are points of others. */
export async function readTitles(items, whose) {
  const ids = items.filter(({ id, name }) => !name && !asked.has(id)).map(({ id }) => id).slice(0, MAX_IDS);
  if (!ids.length) return;
  ids.forEach((id) => asked.add(id));
  const filter = `id in (${ids.map((id) => JSON.stringify(id)).join(", ")})`;
  const found = await get(withQuery("/v1/experiments", { whose, filter, fields: "full", limit: MAX_IDS }));
  if (found.items.some(({ sweep }) => sweep && !sweeps.has(sweep))) {
    const newest = await get(withQuery("/v1/sweeps", { whose }));
    newest.items.forEach((one) => sweeps.set(one.id, one));
  }
  for (const { id, spec, sweep } of found.items) {
    titles.set(id, sweeps.has(sweep) ? pointTitle(sweeps.get(sweep), spec) : shortSpec(spec));
  }
}

/** The same items; those without a name have a `title` as soon as it is known. */
export function useTitles(items, whose = null) {
  const [, setRead] = useState(null);
  useEffect(() => {
    let current = true;
    const show = () => current && setRead({});
    readTitles(items ?? [], whose).then(show, show); // without the titles, their families are shown
    return () => {
      current = false;
    };
  }, [items]);
  return items?.map((one) => (titles.has(one.id) ? { ...one, title: titles.get(one.id) } : one));
}
