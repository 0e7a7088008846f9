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

/** The newest experiments that ran a preset's specs, in their order; null for a spec that none ran. */
async function runsOf(preset) {
  const path = withQuery("/v1/experiments", { tag: tagOf(preset), limit: 200 });
  const { items } = await get(path);
  return preset.specs.map((_, index) => items.find((one) => one.tags.includes(partOf(index))) ?? null);
}

/** Where a preset stands: its runs, and the verdict once all have succeeded. */
export async function standingOf(preset) {
  const runs = await runsOf(preset);
  const isDone = runs.every((one) => one?.status === "succeeded");
  const query = { experiment: runs.map((one) => one?.id) };
  const verdict = isDone ? await get(withQuery(`/v1/presets/${preset.name}/verdict`, query)) : null;
  return { runs, verdict };
}
