// What the service's JSON Schema says of a spec, as parts that a form can show.

/**
 * The parts of a spec for each family, out of the OpenAPI document. A part's `kind` is object (with
 * `fields`), union (with `members` by the value of its `tag`), const, choice or choices (with
 * `values`), flag, list or value. Beside it stand its `default`, what it is `about`, and whether it is
 * `nullable` and `required`. The model is one union over all families: another one is another spec.
 */
export function partsOf({ components: { schemas } }) {
  const experiments = schemas.Submission.properties.spec.oneOf.map((one) => partOf(one, schemas));
  const families = experiments.flatMap((part) => modelsOf(part.fields.model).map(([family]) => [family, part]));
  const members = Object.fromEntries(experiments.flatMap((part) => modelsOf(part.fields.model)));
  experiments.forEach(({ fields }) => (fields.model = { ...fields.model, kind: "union", tag: "family", members }));
  return Object.fromEntries(families);
}

const modelsOf = (part) =>
  part.kind === "union" ? Object.entries(part.members) : [[part.fields.family.value, part]];

const named = (ref, schemas) => schemas[ref.split("/").pop()];
const isNumeric = ({ type }) => type === "integer" || type === "number";

function partOf(schema, schemas) {
  const kinds = (schema.anyOf ?? [schema]).filter((one) => one.type !== "null");
  const nullable = kinds.length < (schema.anyOf?.length ?? 0);
  return { ...shapeOf(kinds, schemas), default: schema.default ?? schema["x-default"], about: schema.description, nullable };
}

function shapeOf(kinds, schemas) {
  const [only] = kinds;
  const list = kinds.find((one) => one.type === "array");
  if (list) return listOf(list.items);
  if (kinds.length > 1) return { kind: "value", numeric: kinds.some(isNumeric) };
  if (only.$ref) return shapeOf([named(only.$ref, schemas)], schemas);
  if (only.discriminator) return unionOf(only.discriminator, schemas);
  if (only.properties) return objectOf(only, schemas);
  if ("const" in only) return { kind: "const", value: only.const };
  if (only.enum) return { kind: "choice", values: only.enum };
  return { kind: only.type === "boolean" ? "flag" : "value", numeric: isNumeric(only) };
}

function listOf(items) {
  const values = items.enum ?? ("const" in items ? [items.const] : null);
  return values ? { kind: "choices", values } : { kind: "list", numeric: isNumeric(items) };
}

function unionOf({ propertyName: tag, mapping }, schemas) {
  const members = Object.entries(mapping).map(([value, ref]) => [value, shapeOf([named(ref, schemas)], schemas)]);
  return { kind: "union", tag, members: Object.fromEntries(members) };
}

function objectOf({ properties, required = [] }, schemas) {
  const fields = Object.entries(properties).map(([name, one]) => {
    return [name, { ...partOf(one, schemas), required: required.includes(name) }];
  });
  return { kind: "object", fields: Object.fromEntries(fields) };
}

export const isGroup = ({ kind }) => kind === "object" || kind === "union";
export const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);

/** The value of a union's tag; of a value that has none, that of the default. */
export function tagOf(part, value) {
  const tag = value?.[part.tag];
  return tag in part.members ? tag : (part.default?.[part.tag] ?? Object.keys(part.members)[0]);
}

/** As much of a value as a part has room for, without what is its default anyway. */
export function fitted(part, value) {
  if (part.kind === "union") {
    const tag = tagOf(part, value);
    return { [part.tag]: tag, ...fitted(part.members[tag], value) };
  }
  const fields = Object.entries(part.fields).map(([name, field]) => [name, fittedField(field, value?.[name])]);
  return Object.fromEntries(fields.filter(([, one]) => one !== undefined));
}

function fittedField(field, value) {
  if (isGroup(field) && field.required) return fitted(field, value);
  if (field.kind === "const" && field.required) return field.value;
  if (value === undefined || value === null || same(value, field.default)) return undefined;
  if (isGroup(field)) {
    const inner = fitted(field, value);
    return same(inner, {}) ? undefined : inner;
  }
  return isFit(field, value) ? value : undefined;
}

function isFit({ kind, values }, value) {
  if (kind === "choice") return values.includes(value);
  if (kind === "choices") return [value].flat().every((one) => values.includes(one));
  return kind !== "const";
}

/** The same object with another field, or without it where the field is undefined. */
export function withField(object, name, value) {
  const { [name]: before, ...others } = object;
  return value === undefined ? others : { ...object, [name]: value };
}
