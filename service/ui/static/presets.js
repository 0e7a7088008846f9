// The paper's presets: their runs, which carry tags, and where they stand.

import { get, post, withQuery } from "./api.js";

/** Queues all specs of these presets, or none. */
export async function runPresets(presets) {
  const experiments = presets.flatMap(({ title, specs, tags }) => specs.map((spec, index) => ({
    spec,
    name: specs.length > 1 ? `${title} ${index + 1}/${specs.length}` : title,
    tags: tags[index],
  })));
  await post("/v1/experiments:batch", { experiments });
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

/** Whether a preset can run here, or has run. */
export const isHere = ({ missing }, { status }) => status !== "not run" || Object.keys(missing).length === 0;

const QUICK_S = 60;

/** Presets that can run here within a minute each and have not. */
export const quickOnes = (presets, standings) => presets.filter((preset) =>
  preset.seconds !== null && preset.seconds <= QUICK_S && Object.keys(preset.missing).length === 0
    && ["not run", "incomplete"].includes(standings[preset.name].status));

/** The seconds that presets take together; null if that of one is not known. */
export const secondsOf = (presets) => presets.reduce((total, { seconds }) => (total === null || seconds === null ? null : total + seconds), 0);

/** The table or figure that a preset is of; null if it is not of the paper. */
const publishedOf = ({ title }) => /^(Table|Fig\.) \d+/.exec(title)?.[0] ?? null;

const BEYOND = "Beyond the paper";

/** Presets by the figure or table of the paper, in its order, as `[title, presets]`; the others come last. */
export function byFigure(presets) {
  const groups = new Map();
  for (const one of presets) {
    const title = publishedOf(one) ?? BEYOND;
    groups.set(title, [...(groups.get(title) ?? []), one]);
  }
  return [...groups].sort(([a], [b]) => (a === BEYOND) - (b === BEYOND));
}

const STATES = { agrees: "agree", differs: "differ", "not run": "not run" };

/** How many standings are in each state, such as "3 agree · 1 differ · 30 not run". Rare states are named if there are any, the usual ones always unless `all` is false. */
export function countsOf(standings, all = true) {
  const counts = Object.fromEntries(all ? Object.keys(STATES).map((state) => [state, 0]) : []);
  for (const state of standings.map(stateOf)) counts[state] = (counts[state] ?? 0) + 1;
  return Object.entries(counts).map(([state, count]) => `${count} ${STATES[state] ?? state}`).join(" · ");
}
