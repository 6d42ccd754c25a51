// Which values a schema marks as secret, by the same rules as the node: a mark that could apply counts. They are shown as
// dots until somebody asks for them.
import { Secret } from "./json.js";
import { isKept, marker } from "./redacted.js";
import { list, matches, reference } from "./reference.js";

const MARK = "x-concord-secret";
const BESIDE = ["allOf", "anyOf", "oneOf"];
const ALONE = ["not", "if", "then", "else"];

const marks = new WeakMap();
/** Whether there is a mark anywhere in a schema. */
function hasMarks(part) {
  if (part === null || typeof part !== "object") return false;
  if (!marks.has(part)) {
    const inner = part instanceof Map ? [...part.values()] : Array.isArray(part) ? part : [];
    marks.set(part, (part instanceof Map && part.has(MARK) && part.get(MARK) !== false) || inner.some(hasMarks));
  }
  return marks.get(part);
}

/** All subschemas that apply to the same value as these. */
function closure(root, schemas) {
  const found = new Set();
  const todo = [...schemas];
  while (todo.length) {
    const schema = todo.pop();
    if (!(schema instanceof Map) || found.has(schema)) continue;
    found.add(schema);
    todo.push(reference(root, schema), ...BESIDE.flatMap((name) => list(schema.get(name))), ...ALONE.map((name) => schema.get(name)));
    for (const name of ["dependentSchemas", "dependencies"]) if (schema.get(name) instanceof Map) todo.push(...schema.get(name).values());
  }
  return found;
}

/** Whether a value is secret by one of these; also where a reference leads that is not followed here, as to an anchor. */
const isMarked = (root, schemas) => [...schemas].some((schema) => (schema.has(MARK) && schema.get(MARK) !== false)
  || (schema.has("$ref") && reference(root, schema) === undefined) || schema.has("$dynamicRef") || schema.has("$recursiveRef"));

/** The subschemas of a member or an element. */
function inner(root, schemas, part) {
  const found = [];
  for (const schema of schemas) {
    if (typeof part === "number") {
      const items = schema.get("items");
      const first = list(schema.get("prefixItems") ?? (Array.isArray(items) ? items : []));
      found.push(part < first.length ? first[part] : Array.isArray(items) ? schema.get("additionalItems") : items, schema.get("contains"), schema.get("unevaluatedItems"));
      continue;
    }
    const named = schema.get("properties") instanceof Map ? schema.get("properties").get(part) : undefined;
    const patterns = [...(schema.get("patternProperties") instanceof Map ? schema.get("patternProperties") : [])];
    // A pattern that can't be read here could match.
    found.push(named, ...patterns.filter(([pattern]) => matches(pattern, part, true)).map(([, schema]) => schema), schema.get("unevaluatedProperties"));
    if (named === undefined && !patterns.some(([pattern]) => matches(pattern, part))) found.push(schema.get("additionalProperties"));
  }
  return closure(root, found);
}

/** Whether the value at a path is secret, or a part of one that is. */
export function isSecret(root, path) {
  if (!hasMarks(root)) return false;
  let schemas = closure(root, [root]);
  for (const part of path) {
    if (isMarked(root, schemas)) return true;
    schemas = inner(root, schemas, part);
  }
  return isMarked(root, schemas);
}

/** The value at a path with a `Secret` in each secret place; the value itself where there is none. */
export function masked(root, value, path = []) {
  if (!hasMarks(root) || value === undefined) return value;
  if (isSecret(root, path)) return value === null ? value : new Secret();
  let schemas = closure(root, [root]);
  for (const part of path) schemas = inner(root, schemas, part);
  return mask(root, schemas, value, (item) => (item === null ? item : new Secret()));
}

/**
 * Data with a marker for each secret value that the node did not name: it names some, and sends null for all. Only null is
 * replaced.
 */
export const keepingUnnamed = (root, data) => (hasMarks(root) ? mask(root, closure(root, [root]), data, (item) => (item === null ? marker() : item)) : data);

function mask(root, schemas, value, cover) {
  if (isKept(value)) return value;
  if (isMarked(root, schemas)) return cover(value);
  if (value === null || schemas.size === 0) return value;
  if (Array.isArray(value)) {
    const items = value.map((item, place) => mask(root, inner(root, schemas, place), item, cover));
    return items.some((item, place) => item !== value[place]) ? items : value;
  }
  if (!(value instanceof Map)) return value;
  const items = [...value].map(([name, item]) => [name, mask(root, inner(root, schemas, name), item, cover)]);
  return items.some(([name, item]) => item !== value.get(name)) ? new Map(items) : value;
}
