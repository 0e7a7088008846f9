// The paper's presets: their runs, which carry tags, and where they stand.

import { get, post, withQuery } from "./api.js";

/** Queues all of a preset's specs, or none; gives their ids. */
export async function runPreset(preset) {
  const { specs, tags } = preset;
  const experiments = specs.map((spec, index) => ({
    spec,
    name: specs.length > 1 ? `${preset.title} ${index + 1}/${specs.length}` : preset.title,
    tags: tags[index],
  }));
  const made = await post("/v1/experiments:batch", { experiments });
  return made.items.map((one) => one.id);
}

/**
 * Where presets stand, by their names: `runs`, the newest experiment that ran each of its specs or
 * null, their `status` together, and the `verdict` once all of these have succeeded.
 */
export async function standingsOf(presets) {
  const { items } = await get("/v1/presets:runs");
  const known = new Map(items.map((one) => [one.name, one]));
  const standings = presets.map(async ({ name }) => {
    const { runs, status } = known.get(name);
    return [name, { runs, status, verdict: status === "succeeded" ? await verdictOf(name, runs) : null }];
  });
  return Object.fromEntries(await Promise.all(standings));
}

async function verdictOf(name, runs) {
  const query = { experiment: runs.map((one) => one.id) };
  return get(withQuery(`/v1/presets/${name}/verdict`, query));
}

/** "not run", "running", "incomplete", or the verdict. */
export const stateOf = ({ status, verdict }) => verdict?.verdict ?? status;

const STATES = { agrees: "agree", differs: "differ", "not run": "not run" };

/** How many standings are in each state, such as "3 agree · 1 differ · 30 not run". Rare states are named if there are any. */
export function countsOf(standings) {
  const counts = Object.fromEntries(Object.keys(STATES).map((state) => [state, 0]));
  for (const state of standings.map(stateOf)) counts[state] = (counts[state] ?? 0) + 1;
  return Object.entries(counts).map(([state, count]) => `${count} ${STATES[state] ?? state}`).join(" · ");
}
