// What a form needs to know of a JSON schema. The node alone decides what is valid; what is not understood here is
// edited as JSON.
//
// A schema may lead back to itself, and to more places than anybody could count. Each subschema is looked at once, what is
// found is kept, and what is made of a schema has an end.
import { Num, kindOf, print, same } from "./json.js";
import { isKept } from "./redacted.js";
import { list, matches, reference } from "./reference.js";

/** A schema that asks nothing. */
export const ANY = new Map();
/** References that lead to references are followed so far. */
const DEPTH_MAX = 64;
/** The values that a place begins with at most. */
const INITIAL_MAX = 200;
const ALTERNATIVES_MAX = 30;

/** `make(root, schema)`, done once for each schema; `meanwhile` where a schema leads back to itself. */
function once(make, meanwhile) {
  const roots = new WeakMap();
  return (root, schema, ...more) => {
    if (!roots.has(root)) roots.set(root, new Map());
    const known = roots.get(root);
    if (!known.has(schema)) {
      known.set(schema, meanwhile(schema));
      known.set(schema, make(root, schema, ...more));
    }
    return known.get(schema);
  };
}

const resolved = once((root, schema, depth) => {
  let found = schema;
  const target = reference(root, schema);
  if (target instanceof Map) {
    found = new Map([...resolve(root, target, depth + 1), ...schema]);
    found.delete("$ref");
  }
  for (const part of list(found.get("allOf"))) found = merged(found, resolve(root, part, depth + 1));
  return found;
}, () => ANY);

/** The schema that a local reference means, with everything that `allOf` adds to it. */
export function resolve(root, schema, depth = 0) {
  return schema instanceof Map && depth <= DEPTH_MAX ? resolved(root, schema, depth) : ANY;
}

const map = (value) => (value instanceof Map ? value : ANY);

/** Both schemas as one; where they differ, the first counts. */
function merged(first, second) {
  const found = new Map([...second, ...first]);
  const properties = new Map([...map(second.get("properties")), ...map(first.get("properties"))]);
  const required = [...new Set([...list(first.get("required")), ...list(second.get("required"))])];
  if (properties.size) found.set("properties", properties);
  if (required.length) found.set("required", required);
  return found;
}

const types = (schema) => [schema.get("type") ?? []].flat();

/** Which control a place takes: object, array, string, number, boolean, choice, or json for everything else. */
export function kind(schema) {
  const all = types(schema).filter((type) => type !== "null");
  if (schema.has("const") || Array.isArray(schema.get("enum"))) return "choice";
  if (schema.has("anyOf") || schema.has("oneOf") || all.length > 1) return "json";
  if (all[0] === "object" || (!all.length && schema.has("properties"))) return "object";
  if (all[0] === "array" || (!all.length && schema.get("items") instanceof Map)) return "array";
  if (all[0] === "integer" || all[0] === "number") return "number";
  if (all[0] === "string" || all[0] === "boolean") return all[0];
  return "json";
}

const isNull = (schema) => (types(schema).length === 1 && types(schema)[0] === "null") || (schema.has("const") && schema.get("const") === null);
/** Whether a branch says what a value is; others only ask for more of what the schema around them describes. */
const describes = (schema) => ["type", "properties", "items", "enum", "const", "anyOf", "oneOf", "$ref"].some((name) => schema.has(name));

/**
 * The kinds of value that a place takes, each a schema of its own, and whether null is one: { all, isNullable }.
 */
export const kinds = once((root, schema) => {
  const found = [];
  const seen = new Set();
  function walk(part, around) {
    const base = merged(new Map([...part].filter(([name]) => name !== "anyOf" && name !== "oneOf")), around);
    const inner = [...list(part.get("anyOf")), ...list(part.get("oneOf"))];
    const branches = inner.filter((raw) => !seen.has(raw) && seen.add(raw)).map((raw) => resolve(root, raw));
    if (inner.length && (kind(base) === "json" || branches.every(describes))) branches.forEach((branch) => walk(branch, base));
    else if (types(base).length > 1 && kind(base) === "json") found.push(...types(base).map((type) => new Map([...base, ["type", type]])));
    else found.push(inner.length || part !== schema ? base : schema);
  }
  walk(schema, ANY);
  return { all: found.filter((part) => !isNull(part)).slice(0, ALTERNATIVES_MAX), isNullable: found.some((part) => isNull(part) || types(part).includes("null")) };
}, (schema) => ({ all: [schema], isNullable: false }));

export const choices = (schema) => (schema.has("const") ? [schema.get("const")] : schema.get("enum"));

/** Whether the control of a schema shows this value as it is. */
export function shows(schema, value) {
  if (kind(schema) === "choice") return choices(schema).some((choice) => same(choice, value));
  return kind(schema) === kindOf(value) && kindOf(value) !== "json";
}

/** Whether a value is of this kind by what tells kinds apart: the members that must be there, and those with fixed values. */
function fits(root, schema, value) {
  if (!shows(schema, value)) return false;
  if (!(value instanceof Map)) return true;
  const properties = map(schema.get("properties"));
  return list(schema.get("required")).every((name) => value.has(name)) && [...value].every(([name, item]) => {
    const part = resolve(root, properties.get(name));
    return kind(part) !== "choice" || isKept(item) || shows(part, item);
  }) && (schema.get("additionalProperties") !== false || [...value.keys()].every((name) => properties.has(name)));
}

/** The place in `kinds` of the one that a value is of; -1 for none. */
export function kindPlace(root, all, value) {
  const place = all.findIndex((part) => fits(root, part, value));
  return place >= 0 ? place : all.findIndex((part) => shows(part, value));
}

/** The schema of a member, whether it is for this name alone, and whether there is one: { schema, isNamed, isKnown }. */
export function memberSchema(root, schema, name) {
  const properties = map(schema.get("properties"));
  if (properties.has(name)) return { schema: resolve(root, properties.get(name)), isNamed: true, isKnown: true };
  const pattern = [...map(schema.get("patternProperties"))].find(([text]) => matches(text, name));
  const found = pattern?.[1] ?? schema.get("additionalProperties");
  return { schema: resolve(root, found), isNamed: false, isKnown: found instanceof Map };
}

/** The schema of an element of a list. */
export function itemSchema(root, schema, place) {
  const first = list(schema.get("prefixItems") ?? (Array.isArray(schema.get("items")) ? schema.get("items") : []));
  return resolve(root, place < first.length ? first[place] : Array.isArray(schema.get("items")) ? schema.get("additionalItems") : schema.get("items"));
}

/** What a place begins with when it is set. A member that would lead back to itself is null, or left out. */
export function initial(root, schema) {
  const open = new Set();
  let left = INITIAL_MAX;
  function begin(part) {
    const known = resolve(root, part);
    if (known.has("default")) return known.get("default");
    const { all: [first = ANY], isNullable } = kinds(root, known);
    if (first.has("default")) return first.get("default");
    left -= 1;
    if (open.has(known) || left < 0) return isNullable ? null : undefined;
    open.add(known);
    const found = value(first);
    open.delete(known);
    return found;
  }
  function value(known) {
    switch (kind(known)) {
      case "choice": return choices(known)[0];
      case "object": {
        const properties = map(known.get("properties"));
        const required = list(known.get("required")).filter((name) => properties.has(name));
        return new Map(required.map((name) => [name, begin(properties.get(name))]).filter(([, item]) => item !== undefined));
      }
      case "array": return [];
      case "string": return "";
      case "number": return known.get("minimum") instanceof Num ? known.get("minimum") : new Num("0");
      case "boolean": return false;
      default: return null;
    }
  }
  return begin(schema) ?? null;
}

/** The paths of the places that can be indexed, as they are written in an index; `max` of them. */
export function scalars(root, max) {
  const found = [];
  const open = new Set();
  function walk(schema, path) {
    const known = resolve(root, schema);
    if (open.has(known)) return;
    open.add(known);
    for (const [name, part] of map(known.get("properties"))) {
      if (found.length >= max) break;
      const here = [...path, name.replace(/[\\.*[]/g, "\\$&")];
      if (kind(resolve(root, part)) === "object") walk(part, here);
      else if (name) found.push(here.join("."));
    }
    open.delete(known);
  }
  walk(root, []);
  return found;
}

const WORDS = { object: "group", array: "list", string: "text", number: "number", boolean: "yes or no", choice: "choice", json: "any JSON" };
/** What a kind is called. */
export const kindName = (schema) => schema.get("title") ?? (types(schema).includes("integer") ? "whole number" : WORDS[kind(schema)]);

/** What a place takes, in words. */
export function takes(root, schema) {
  const { all, isNullable } = kinds(root, schema);
  const names = all.map((part) => (kind(part) === "choice" ? choices(part).slice(0, 8).map((choice) => print(choice, 0)).join(", ") : kindName(part)));
  return [...new Set([...names, ...(isNullable ? ["null"] : [])])].join(" or ");
}

/** The limits of a place in words. */
export function limits(schema) {
  const found = [];
  const say = (name, words) => { if (schema.has(name)) found.push(`${words} ${typeof schema.get(name) === "string" ? schema.get(name) : print(schema.get(name), 0)}`); };
  if (types(schema).includes("integer")) found.push("whole number");
  say("minimum", "≥");
  say("exclusiveMinimum", ">");
  say("maximum", "≤");
  say("exclusiveMaximum", "<");
  say("multipleOf", "multiple of");
  say("minLength", "length ≥");
  say("maxLength", "length ≤");
  say("pattern", "matches");
  say("format", "format");
  say("minItems", "items ≥");
  say("maxItems", "items ≤");
  if (types(schema).includes("null")) found.push("or null");
  return found.join(", ");
}
