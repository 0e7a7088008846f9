// A program as users write it with openapi-typescript and openapi-fetch: upload, submit, poll, curves.

import createClient from "openapi-fetch";
import type { components, paths } from "./schema.js";

declare const process: { argv: string[] };
const [url, key] = process.argv.slice(2) as [string, string];
const client = createClient<paths>({ baseUrl: url, headers: { Authorization: `Bearer ${key}` } });

const numbers = new TextEncoder().encode("a,b\n1,2\n3,4\n5,7\n");
const { data: upload, error: refused } = await client.POST("/v1/datasets", {
  params: { query: { name: "numbers.csv" } },
  body: numbers as unknown as string, // the type of a binary body
  bodySerializer: (body) => body as unknown as BodyInit,
});
if (!upload) throw new Error(refused.detail ?? "no upload");

const submission: components["schemas"]["Submission"] = {
  spec: {
    model: { family: "ppca", latent_dim: 1, init: "maximum_likelihood" },
    data: { source: "upload", dataset: upload.id },
    evaluate: { masks: { schedule: "all", per_size: 5 } },
    seeds: [4],
  },
  name: "by TypeScript",
};
const { data: made } = await client.POST("/v1/experiments", { body: submission, params: { header: { "idempotency-key": "ts" } } });
if (!made) throw new Error("not submitted");
console.log(made.id);

const params = { path: { experiment_id: made.id } };
let status: components["schemas"]["Status"] = made.status;
while (!["succeeded", "failed", "cancelled"].includes(status)) {
  const { data } = await client.GET("/v1/experiments/{experiment_id}", { params: { ...params, header: { prefer: "wait=5" } } });
  if (!data) throw new Error("not found");
  status = data.status;
}
const { data: curves } = await client.GET("/v1/experiments/{experiment_id}/curves", { params });
if (typeof curves !== "object") throw new Error("not asked for as JSON");
console.log(status, curves.series.map((one) => `${one.name} ${one.x.join(",")}`).join("; "));
