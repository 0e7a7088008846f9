// The paper's presets: run as experiments that carry their tags, by which they are found again.

import { get, post, withQuery } from "./api.js";

export const tagOf = (preset) => `preset:${preset.name}`;
const partOf = (index) => `part:${index + 1}`;

/** Queues all of a preset's specs, or none; gives their ids. */
export async function runPreset(preset) {
  const { specs } = preset;
  const experiments = specs.map((spec, index) => ({
    spec,
    name: specs.length > 1 ? `${preset.title} ${index + 1}/${specs.length}` : preset.title,
    tags: [tagOf(preset), partOf(index)],
  }));
  const made = await post("/v1/experiments:batch", { experiments });
  return made.items.map((one) => one.id);
}

/**
 * Where presets stand, by their names: `runs`, the newest experiment that ran each of its specs or
 * null, and the `verdict` once all of these have succeeded.
 */
export async function standingsOf(presets) {
  const path = withQuery("/v1/experiments", { tag: presets.map(tagOf), limit: 500 });
  const { items } = await get(path);
  const standings = presets.map(async (preset) => {
    const mine = items.filter((one) => one.tags.includes(tagOf(preset)));
    const ran = (index) => mine.find((one) => one.tags.includes(partOf(index))) ?? null;
    const runs = preset.specs.map((_, index) => ran(index));
    return [preset.name, { runs, verdict: await verdictOf(preset, runs) }];
  });
  return Object.fromEntries(await Promise.all(standings));
}

async function verdictOf(preset, runs) {
  if (!runs.every((one) => one?.status === "succeeded")) return null;
  const query = { experiment: runs.map((one) => one.id) };
  return get(withQuery(`/v1/presets/${preset.name}/verdict`, query));
}
