// The form of a spec: what it offers, reads and writes.

import assert from "node:assert/strict";
import { test } from "node:test";
import { isOpen, read, written } from "../../../../service/ui/static/form.js";
import { fitted, partsOf, tagOf, withField } from "../../../../service/ui/static/schema.js";

const constant = { kind: "const", value: 1 };
const group = (fields, more = {}) => ({ kind: "object", fields, nullable: false, ...more });

test("a group is shown where there is anything to choose in it", () => {
  assert.equal(isOpen({ kind: "value" }), true);
  assert.equal(isOpen(constant), false);
  assert.equal(isOpen(group({ a: constant })), false);
  assert.equal(isOpen(group({ a: constant, b: { kind: "flag" } })), true);
  assert.equal(isOpen(group({ a: group({ b: constant }) })), false);
});

test("a group that may be null is shown: it is there or not", () => {
  assert.equal(isOpen(group({ a: constant }, { nullable: true })), true);
});

test("a choice of several out of one is none, unless one has to be chosen", () => {
  const choices = (values, required) => ({ kind: "choices", values, required });
  assert.equal(isOpen(choices(["a"], false)), false);
  assert.equal(isOpen(choices(["a"], true)), true);
  assert.equal(isOpen(choices(["a", "b"], false)), true);
});

test("what is typed", () => {
  const numbers = { kind: "list", numeric: true };
  const texts = { kind: "list", numeric: false };
  const cases = [
    [{ kind: "value", numeric: true }, "1e-3", 0.001], [{ kind: "value", numeric: true }, "x", "x"], [{ kind: "value", numeric: false }, " 12 ", "12"],
    [{ kind: "value" }, "  ", undefined], [numbers, "1, 2,", [1, 2]], [numbers, "1 2 x", [1, 2, "x"]], [texts, "a b\nc", ["a b", "c"]],
  ];
  cases.forEach(([part, text, value]) => assert.deepEqual(read(part, text), value));
  assert.equal(written(numbers, [1, 2]), "1, 2");
  assert.equal(written(texts, ["a", "b"]), "a\nb");
  assert.equal(written(numbers, 3), "3");
  assert.equal(written({ kind: "value" }, null), "");
  assert.equal(written({ kind: "value" }, 0), "0");
});

const ref = (name) => ({ $ref: `#/components/schemas/${name}` });
const union = (tag, members) => ({ discriminator: { propertyName: tag, mapping: Object.fromEntries(members.map((name) => [name, `#/components/schemas/${name}`])) } });
const schemas = {
  Submission: { properties: { spec: { oneOf: [ref("One"), ref("Two")] } } },
  One: { properties: { model: union("family", ["ppca", "fa"]), train: { anyOf: [ref("Train"), { type: "null" }], default: null }, n: { type: "integer", default: 5, description: "rows" } }, required: ["model"] },
  Two: { properties: { model: ref("vae"), seeds: { type: "array", items: { type: "integer" } } }, required: ["model"] },
  ppca: { properties: { family: { const: "ppca" }, dim: { type: "integer" }, init: { enum: ["random", "ml"] } }, required: ["family", "dim"] },
  fa: { properties: { family: { const: "fa" }, dim: { type: "integer" } }, required: ["family", "dim"] },
  vae: { properties: { family: { const: "vae" }, width: { type: "number" } }, required: ["family"] },
  Train: { properties: { epochs: { type: "integer" } }, required: ["epochs"] },
};

test("the parts of a schema, by family", () => {
  const parts = partsOf({ components: { schemas } });
  assert.deepEqual(Object.keys(parts), ["ppca", "fa", "vae"]);
  const { fields } = parts.ppca;
  assert.deepEqual([fields.model.kind, fields.model.tag, Object.keys(fields.model.members)], ["union", "family", ["ppca", "fa", "vae"]]);
  assert.deepEqual([fields.train.kind, fields.train.nullable, fields.train.required], ["object", true, false]);
  assert.deepEqual([fields.n.kind, fields.n.numeric, fields.n.default, fields.n.about, fields.n.nullable], ["value", true, 5, "rows", false]);
  assert.deepEqual([parts.vae.fields.seeds.kind, parts.vae.fields.seeds.numeric], ["list", true]);
  assert.equal(fields.model.members.ppca.fields.init.kind, "choice");
});

test("what is of one of two kinds is a value that is typed", () => {
  const seed = { anyOf: [{ type: "integer" }, { type: "string", enum: ["run"] }] };
  const { vae } = partsOf({ components: { schemas: { ...schemas, Two: { properties: { ...schemas.Two.properties, seed } } } } });
  assert.deepEqual([vae.fields.seed.kind, vae.fields.seed.numeric, vae.fields.seed.nullable], ["value", true, false]);
});

test("a default that is an object is beside the standard key", () => {
  const { ppca } = partsOf({ components: { schemas: { ...schemas, One: { properties: { ...schemas.One.properties, train: { ...ref("Train"), "x-default": { epochs: 3 } } }, required: ["model"] } } } });
  assert.deepEqual(ppca.fields.train.default, { epochs: 3 });
});

test("what fits is kept, what does not and what is the default anyway goes", () => {
  const { ppca, vae } = partsOf({ components: { schemas } });
  const spec = { model: { family: "ppca", dim: 3, init: "random", odd: 1 }, n: 5, train: null, other: 2 };
  assert.deepEqual(fitted(ppca, spec), { model: { family: "ppca", dim: 3, init: "random" } });
  assert.deepEqual(fitted(ppca, { ...spec, model: { ...spec.model, family: "fa" }, n: 6 }), { model: { family: "fa", dim: 3 }, n: 6 });
  assert.deepEqual(fitted(vae, { model: { family: "vae", width: 2 }, seeds: [1], n: 6 }), { model: { family: "vae", width: 2 }, seeds: [1] });
  assert.equal(tagOf(ppca.fields.model, { family: "unknown" }), "ppca");
  assert.deepEqual(withField({ a: 1, b: 2 }, "a", undefined), { b: 2 });
  assert.deepEqual(withField({ a: 1 }, "b", 2), { a: 1, b: 2 });
});
