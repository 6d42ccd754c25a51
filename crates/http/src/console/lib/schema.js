// What a form needs to know of a JSON schema. The node alone decides what is valid; what is not understood here is
// edited as JSON.
import { Num, print, same } from "./json.js";

const text = (value) => (typeof value === "string" ? value : undefined);

/** The schema that a local reference means, with everything that `allOf` adds to it. */
export function resolve(root, schema, depth = 0) {
  if (!(schema instanceof Map) || depth > 16) return new Map();
  let found = schema;
  const reference = text(schema.get("$ref"));
  if (reference?.startsWith("#")) {
    const target = pointer(root, reference.slice(1));
    if (target instanceof Map) {
      found = new Map([...resolve(root, target, depth + 1), ...schema]);
      found.delete("$ref");
    }
  }
  for (const part of found.get("allOf") ?? []) {
    const added = resolve(root, part, depth + 1);
    const properties = new Map([...(added.get("properties") ?? []), ...(found.get("properties") ?? [])]);
    const required = [...new Set([...(found.get("required") ?? []), ...(added.get("required") ?? [])])];
    found = new Map([...added, ...found]);
    if (properties.size) found.set("properties", properties);
    if (required.length) found.set("required", required);
  }
  return found;
}

function pointer(root, path) {
  const parts = decodeURIComponent(path).split("/").slice(1).map((part) => part.replaceAll("~1", "/").replaceAll("~0", "~"));
  return parts.reduce((found, part) => (found instanceof Map ? found.get(part) : Array.isArray(found) ? found[part] : undefined), root);
}

/** Which control a place takes: object, array, string, number, boolean, choice, or json for everything else. */
export function kind(schema) {
  const types = [schema.get("type") ?? []].flat().filter((type) => type !== "null");
  if (schema.has("const") || Array.isArray(schema.get("enum"))) return "choice";
  if (schema.has("anyOf") || schema.has("oneOf")) return "json";
  if (types.length > 1) return "json";
  if (types[0] === "object" || (!types.length && schema.has("properties"))) return "object";
  if (types[0] === "array" && schema.get("items") instanceof Map && !schema.has("prefixItems")) return "array";
  if (types[0] === "integer" || types[0] === "number") return "number";
  if (types[0] === "string" || types[0] === "boolean") return types[0];
  return "json";
}

export const allowsNull = (schema) => [schema.get("type") ?? []].flat().includes("null");
export const choices = (schema) => (schema.has("const") ? [schema.get("const")] : schema.get("enum"));

/** Whether the control shows this value as it is; if not, the place is edited as JSON. */
export function shows(schema, value) {
  if (value === undefined || (value === null && allowsNull(schema))) return true;
  switch (kind(schema)) {
    case "object": return value instanceof Map;
    case "array": return Array.isArray(value);
    case "string": return typeof value === "string";
    case "number": return value instanceof Num;
    case "boolean": return typeof value === "boolean";
    case "choice": return choices(schema).some((choice) => same(choice, value));
    default: return true;
  }
}

/** What a place begins with when it is set. */
export function initial(root, schema) {
  const known = resolve(root, schema);
  if (known.has("default")) return known.get("default");
  if (known.has("const")) return known.get("const");
  switch (kind(known)) {
    case "object": {
      const required = (known.get("required") ?? []).filter((name) => known.get("properties")?.has(name));
      return new Map(required.map((name) => [name, initial(root, known.get("properties").get(name))]));
    }
    case "array": return [];
    case "string": return "";
    case "number": return known.get("minimum") instanceof Num ? known.get("minimum") : new Num("0");
    case "boolean": return false;
    case "choice": return choices(known)[0];
    default: return null;
  }
}

/** The limits of a place in words. */
export function limits(schema) {
  const found = [];
  const say = (name, words) => { if (schema.has(name)) found.push(`${words} ${typeof schema.get(name) === "string" ? schema.get(name) : print(schema.get(name), 0)}`); };
  if ([schema.get("type")].flat().includes("integer")) found.push("whole number");
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
  if (allowsNull(schema)) found.push("or null");
  return found.join(", ");
}
