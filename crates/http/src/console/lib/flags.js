// Feature flags, in flagd's format: what a flag serves, its rule as the fields of a form, and what a form changes.
//
// Invariant: `formOf` shows a rule only if `targetingOf` writes it back exactly as it was.
import { Num, identical, parse, print } from "./json.js";
import { escaped, plain } from "./format.js";

/** The config that holds what the flags of its definition share. */
export const SHARED = "shared~";
/** Definitions of flags that are shown: a watch names as many. */
export const DEFINITIONS_MAX = 60;

/** Whether a definition holds flags, by its key; and its environment. */
export const hasFlags = (name) => /^([^.]+\.)?flags$/.test(name);
export const environmentOf = (name) => (name.includes(".") ? name.split(".")[0] : "default");
/** The keys of the definitions of flags, that of no environment first. */
export const definitionsOf = (names) => names.filter(hasFlags).sort((a, b) => (a.includes(".") - b.includes(".")) || (a < b ? -1 : 1));

/** A new boolean flag. */
export const newFlag = (isOn) => parse(`{"state":"ENABLED","variants":{"on":true,"off":false},"defaultVariant":"${isOn ? "on" : "off"}"}`);

const isEmpty = (value) => value === undefined || value === null || (value instanceof Map && value.size === 0);
/** Whether a flag has what the form shows. */
export const isFlag = (data) => data instanceof Map && data.get("variants") instanceof Map && ["ENABLED", "DISABLED"].includes(data.get("state"))
  && ["string", "undefined"].includes(typeof (data.get("defaultVariant") ?? undefined)) && (isEmpty(data.get("targeting")) || data.get("targeting") instanceof Map);
export const isBoolean = (data) => [true, false].every((value) => variantOf(data, value) !== undefined);

/** The variant with a boolean value: the one with the usual name, or else the first. */
export function variantOf(data, value) {
  const found = [...data.get("variants")].filter(([, own]) => own === value).map(([name]) => name);
  return found.find((name) => name === (value ? "on" : "off")) ?? found[0];
}

/** What a flag serves: { text, kind, hasRule, value }; `value` is true or false where a boolean flag is on or off, rule aside. */
export function served(data) {
  if (!isFlag(data)) return { text: "can't be read", kind: "bad", hasRule: false };
  const hasRule = !isEmpty(data.get("targeting"));
  if (data.get("state") === "DISABLED") return { text: "disabled", kind: "", hasRule };
  const name = data.get("defaultVariant") || null;
  if (name === null) return { text: "program's default", kind: "", hasRule };
  const value = data.get("variants").get(name);
  if (value === undefined) return { text: `${name} is missing`, kind: "bad", hasRule };
  return typeof value === "boolean" ? { text: value ? "on" : "off", kind: value ? "good" : "", hasRule, value } : { text: name, kind: "", hasRule };
}

/** The operators of the form: how they are called, and whether they compare texts, any value, or a list. */
export const OPERATORS = {
  "==": ["is", "any"], "!=": ["is not", "any"], in: ["is one of", "list"], contains: ["contains", "text"], starts_with: ["begins with", "text"], ends_with: ["ends with", "text"],
  ">": ["is more than", "any"], ">=": ["is at least", "any"], "<": ["is less than", "any"], "<=": ["is at most", "any"],
  ...Object.fromEntries([["=", "is version"], ["!=", "is not version"], [">", "is after version"], [">=", "is version, or after"], ["<", "is before version"], ["<=", "is version, or before"], ["^", "has the major version of"], ["~", "has the minor version of"]]
    .map(([sign, text]) => [`sem_ver ${sign}`, [text, "text"]])),
};
const kindOf = (operator) => OPERATORS[operator][1];

/** A value as it is typed: what is no text looks otherwise, as everywhere in the console. */
export const typedValue = (value, kind = "any") => {
  if (kind === "list") return value.map((item) => { const text = plain(item); return typeof item === "string" && text === item && item.includes(",") ? JSON.stringify(item) : text; }).join(", ");
  if (kind === "text") return /^$|^"|^\s|\s$/.test(value) || escaped(value) !== value ? escaped(JSON.stringify(value)) : value;
  return plain(value);
};

/** What was typed as a value, or undefined where it is none. */
export function valueOf(text, kind = "any") {
  const trimmed = text.trim();
  if (kind === "list") {
    const parts = trimmed.match(/\s*"(?:[^"\\]|\\.)*"\s*|[^,]+/g) ?? [];
    const items = parts.map((part) => part.trim()).filter(Boolean).map((part) => valueOf(part));
    return items.length === 0 || items.includes(undefined) ? undefined : items;
  }
  const isJson = kind === "text" ? /^"/.test(trimmed) : /^["[{]|^(true|false|null)$|^-?\d[\d.]*([eE][+-]?\d+)?$/.test(trimmed);
  if (!isJson) return trimmed === "" ? undefined : trimmed;
  try {
    return parse(trimmed);
  } catch {
    // What begins like another value and is none is a text, but for one in quotes.
    return /^["[{]/.test(trimmed) ? undefined : trimmed;
  }
}

const isScalar = (value) => typeof value === "string" || typeof value === "boolean" || value instanceof Num;
const only = (value, length) => (Array.isArray(value) && value.length === length ? value : []);
/** The one member of an object: its name and its value. */
const single = (value) => (value instanceof Map && value.size === 1 ? [...value][0] : []);
const attributeOf = (value) => { const [name, path] = single(value); return name === "var" && typeof path === "string" && path ? path : undefined; };
const byVar = (attribute) => new Map([["var", attribute]]);

/** A condition as { attribute, operator, value }, or null. */
function conditionOf(condition) {
  const [operator, args] = single(condition);
  if (operator === "sem_ver") {
    const [left, sign, value] = only(args, 3);
    return attributeOf(left) && OPERATORS[`sem_ver ${sign}`] && typeof value === "string" ? { attribute: attributeOf(left), operator: `sem_ver ${sign}`, value } : null;
  }
  const [left, right] = only(args, 2);
  if (operator === "in" && typeof left === "string" && attributeOf(right)) return { attribute: attributeOf(right), operator: "contains", value: left };
  if (operator === "contains" || !OPERATORS[operator] || !attributeOf(left)) return null;
  const fits = { any: isScalar, text: (value) => typeof value === "string", list: (value) => Array.isArray(value) && value.length > 0 && value.every(isScalar) }[kindOf(operator)];
  return fits(right) ? { attribute: attributeOf(left), operator, value: right } : null;
}

function conditionBy({ attribute, operator, value }) {
  if (operator.startsWith("sem_ver ")) return new Map([["sem_ver", [byVar(attribute), operator.slice(8), value]]]);
  return operator === "contains" ? new Map([["in", [value, byVar(attribute)]]]) : new Map([[operator, [byVar(attribute), value]]]);
}

/** The rest of a rule: { kind: "default", isWritten }, { kind: "variant", variant } or { kind: "share", shares: [[variant, weight]] }; or null. */
function restOf(rest) {
  if (rest === undefined || rest === null) return { kind: "default", isWritten: rest === null };
  if (typeof rest === "string") return { kind: "variant", variant: rest };
  const [operator, shares] = single(rest);
  const isShare = (item) => Array.isArray(item) && item.length === 2 && typeof item[0] === "string" && item[1] instanceof Num && /^\d{1,9}$/.test(item[1].text);
  if (operator !== "fractional" || !Array.isArray(shares) || shares.length === 0 || !shares.every(isShare)) return null;
  return { kind: "share", shares: shares.map(([variant, weight]) => [variant, Number(weight.text)]) };
}

const restBy = (rest) => (rest.kind === "variant" ? rest.variant : rest.kind === "share" ? new Map([["fractional", rest.shares.map(([variant, weight]) => [variant, new Num(String(weight))])]]) : null);

function read(targeting) {
  const [operator, args] = single(targeting);
  if (operator !== "if") return { rules: [], rest: restOf(targeting) };
  if (!Array.isArray(args) || args.length < 2) return null;
  const isOdd = args.length % 2 === 1;
  const rules = [];
  for (let place = 0; place + 1 < args.length; place += 2) {
    const condition = conditionOf(args[place]);
    if (!condition || typeof args[place + 1] !== "string") return null;
    rules.push({ ...condition, variant: args[place + 1] });
  }
  return { rules, rest: restOf(isOdd ? args.at(-1) : undefined) };
}

/** A rule as a form: { rules: [{ attribute, operator, value, variant }], rest }, in their order; null where the form can't show it. */
export function formOf(targeting) {
  if (isEmpty(targeting)) return { rules: [], rest: { kind: "default", isWritten: true } };
  const form = read(targeting);
  return form?.rest && identical(targetingOf(form), targeting) ? form : null;
}

/** The rule that a form stands for; undefined for none. Without a condition, a variant for everybody is the default variant. */
export function targetingOf({ rules, rest }) {
  if (rules.length === 0) {
    return rest.kind === "share" ? restBy(rest) : undefined;
  }
  const args = rules.flatMap((rule) => [conditionBy(rule), rule.variant]);
  return new Map([["if", rest.kind === "default" && !rest.isWritten ? args : [...args, restBy(rest)]]]);
}

const pointer = (path) => path.map((part) => `/${part.replaceAll("~", "~0").replaceAll("/", "~1")}`).join("");
/** The operations of a JSON Patch that make `now` of `before` in these members, as one text; null where nothing differs. */
export function patchOf(before, now) {
  const operations = [];
  const set = (path, was, is) => {
    if (is === undefined ? was === undefined : was !== undefined && identical(was, is)) return;
    operations.push(is === undefined ? `{"op":"remove","path":${JSON.stringify(pointer(path))}}` : `{"op":"add","path":${JSON.stringify(pointer(path))},"value":${print(is, 0)}}`);
  };
  const [variants, wanted] = [before.get("variants"), now.get("variants")];
  for (const name of new Set([...variants.keys(), ...wanted.keys()])) set(["variants", name], variants.get(name), wanted.get(name));
  for (const name of ["state", "defaultVariant", "targeting"]) set([name], before.get(name), now.get(name));
  return operations.length ? `[${operations.join(",")}]` : null;
}

/** What turning a boolean flag on or off makes of it; `isDropped`: without its rule. */
export function switched(data, isOn, isDropped) {
  const now = new Map(data);
  now.set("state", "ENABLED");
  now.set("defaultVariant", variantOf(data, isOn));
  if (isDropped) now.delete("targeting");
  return now;
}
