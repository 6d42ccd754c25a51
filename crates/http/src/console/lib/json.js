// JSON without loss. `JSON.parse` rounds long numbers, forgets that 7.0 is no 7, and moves members whose names are
// numbers to the front; what is read here is written back as it was. An object is a Map, a number a Num with its text.

/** A number as it is written. */
export class Num {
  constructor(text) { this.text = text; }
}

/** Stands in place of a secret value where values are shown. It is no JSON value, so that it is never taken for one. */
export class Secret { }
export const DOTS = "••••••";

const NUMBER = /-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?/y;
const SPACE = /[ \t\n\r]*/y;
const PLAIN = /[^"\\\u0000-\u001f]*/y;
const ESCAPES = { '"': '"', "\\": "\\", "/": "/", b: "\b", f: "\f", n: "\n", r: "\r", t: "\t" };

/** What is wrong with a text, and where. */
export class JsonError extends Error {
  constructor(message, at) { super(message); this.at = at; }
}

/** The value of a JSON text. `note(path, from, to)` is told where each value stands. */
export function parse(text, note) {
  let at = 0;
  const path = [];
  const fail = (message) => { throw new JsonError(message, Math.min(at, text.length)); };
  const space = () => { SPACE.lastIndex = at; SPACE.test(text); at = SPACE.lastIndex; };
  const word = (name, value) => {
    if (!text.startsWith(name, at)) fail(at < text.length ? "a value is expected here" : "the text ends too early");
    at += name.length;
    return value;
  };
  function string() {
    let out = "";
    for (at += 1; ;) {
      PLAIN.lastIndex = at;
      const plain = PLAIN.exec(text)[0];
      out += plain;
      at += plain.length;
      const c = text[at];
      if (c === '"') { at += 1; return out; }
      if (c !== "\\") fail(c === undefined ? "this string has no end" : "a control character in a string must be escaped");
      const kind = text[at + 1];
      if (kind === "u") {
        const hex = text.slice(at + 2, at + 6);
        if (!/^[0-9a-fA-F]{4}$/.test(hex)) fail("four hexadecimal digits must follow \\u");
        out += String.fromCharCode(parseInt(hex, 16));
        at += 6;
      } else if (kind in ESCAPES) {
        out += ESCAPES[kind];
        at += 2;
      } else fail("no such escape");
    }
  }
  function object() {
    const found = new Map();
    at += 1;
    space();
    if (text[at] === "}") { at += 1; return found; }
    for (; ;) {
      space();
      if (text[at] !== '"') fail("the name of a member is expected here, in double quotes");
      const name = string();
      space();
      if (text[at] !== ":") fail("a colon is expected here");
      at += 1;
      path.push(name);
      found.set(name, value());
      path.pop();
      if (text[at] === "}") { at += 1; return found; }
      if (text[at] !== ",") fail("a comma or } is expected here");
      at += 1;
    }
  }
  function array() {
    const found = [];
    at += 1;
    space();
    if (text[at] === "]") { at += 1; return found; }
    for (; ;) {
      path.push(found.length);
      found.push(value());
      path.pop();
      if (text[at] === "]") { at += 1; return found; }
      if (text[at] !== ",") fail("a comma or ] is expected here");
      at += 1;
    }
  }
  function value() {
    space();
    const from = at;
    const found = one(text[at]);
    if (note) note(path, from, at);
    space();
    return found;
  }
  function one(c) {
    if (c === "{") return object();
    if (c === "[") return array();
    if (c === '"') return string();
    if (c === "t") return word("true", true);
    if (c === "f") return word("false", false);
    if (c === "n") return word("null", null);
    NUMBER.lastIndex = at;
    const number = NUMBER.exec(text);
    if (!number) return word("a value");
    at += number[0].length;
    return new Num(number[0]);
  }
  const found = value();
  if (at < text.length) fail("nothing may follow the value");
  return found;
}

/** The text of a value, on one line or indented. */
export function print(value, indent = 2, depth = 0) {
  if (value instanceof Num) return value.text;
  if (value instanceof Secret) return DOTS;
  if (value === undefined) return "";
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  const isList = Array.isArray(value);
  const parts = isList
    ? value.map((item) => print(item, indent, depth + 1))
    : [...value].map(([name, item]) => `${JSON.stringify(name)}:${indent ? " " : ""}${print(item, indent, depth + 1)}`);
  const [open, close] = isList ? "[]" : "{}";
  if (parts.length === 0) return open + close;
  const short = isList && value.every((item) => item === null || typeof item !== "object" || item instanceof Num || item instanceof Secret);
  const line = parts.join(", ");
  if (!indent) return open + parts.join(",") + close;
  if (short && line.length < 80) return open + line + close;
  const pad = " ".repeat(indent * (depth + 1));
  return `${open}\n${pad}${parts.join(`,\n${pad}`)}\n${" ".repeat(indent * depth)}${close}`;
}

/** Whether two values are the same JSON: the order of members says nothing, the digits of a number do. */
export function same(a, b) {
  if (a === b) return true;
  if (a instanceof Num || b instanceof Num) return a instanceof Num && b instanceof Num && a.text === b.text;
  if (Array.isArray(a)) return Array.isArray(b) && a.length === b.length && a.every((item, i) => same(item, b[i]));
  if (a instanceof Map && b instanceof Map) {
    return a.size === b.size && [...a].every(([name, item]) => b.has(name) && same(item, b.get(name)));
  }
  return false;
}

/**
 * `fresh`, with what is written as in `old` taken from there: what did not change is the same object. Digits and the order
 * of members count.
 */
export function share(old, fresh) {
  if (old === fresh) return old;
  if (fresh instanceof Num) return old instanceof Num && old.text === fresh.text ? old : fresh;
  if (Array.isArray(fresh) && Array.isArray(old)) {
    const shared = fresh.map((item, place) => share(old[place], item));
    return shared.length === old.length && shared.every((item, place) => item === old[place]) ? old : shared;
  }
  if (fresh instanceof Map && old instanceof Map) {
    const names = [...old.keys()];
    const shared = [...fresh].map(([name, item]) => [name, share(old.get(name), item)]);
    return shared.length === names.length && shared.every(([name, item], place) => name === names[place] && item === old.get(name)) ? old : new Map(shared);
  }
  return fresh;
}

/** What a value is: object, array, number, string, boolean, or json for null. */
export function kindOf(value) {
  if (value instanceof Map) return "object";
  if (Array.isArray(value)) return "array";
  if (value instanceof Num) return "number";
  return typeof value === "string" || typeof value === "boolean" ? typeof value : "json";
}

/** Whether two values are written alike: digits and the order of members count. */
export function identical(a, b) {
  if (a === b) return true;
  if (kindOf(a) !== kindOf(b) || a === null || b === null) return false;
  if (a instanceof Num) return a.text === b.text;
  if (Array.isArray(a)) return a.length === b.length && a.every((item, place) => identical(item, b[place]));
  if (!(a instanceof Map) || a.size !== b.size) return false;
  const others = b.entries();
  for (const [name, item] of a) {
    const [other, its] = others.next().value;
    if (name !== other || !identical(item, its)) return false;
  }
  return true;
}

/** The value at a path, or undefined. */
export function at(value, path) {
  let found = value;
  for (const part of path) {
    if (found instanceof Map) found = found.get(String(part));
    else if (Array.isArray(found)) found = found[part];
    else return undefined;
  }
  return found;
}

/** A copy with another value at a path; undefined takes it out. Only what is on the path is copied. */
export function put(value, path, item) {
  if (path.length === 0) return item;
  const [first, ...rest] = path;
  if (Array.isArray(value)) {
    const copy = value.slice();
    const inner = put(copy[first], rest, item);
    if (inner === undefined) copy.splice(first, 1);
    else copy[first] = inner;
    return copy;
  }
  const copy = new Map(value instanceof Map ? value : []);
  const inner = put(copy.get(first), rest, item);
  if (inner === undefined) copy.delete(first);
  else copy.set(first, inner);
  return copy;
}

/** From and to, for each path, of its value in a text, or of the nearest one around it. */
export function locate(text, paths) {
  const tree = { inner: new Map(), place: [0, 0] };
  const ways = paths.map((path) => path.reduce((way, part) => {
    const { inner } = way.at(-1);
    if (!inner.has(String(part))) inner.set(String(part), { inner: new Map() });
    return [...way, inner.get(String(part))];
  }, [tree]));
  try {
    parse(text, (here, from, to) => {
      let node = tree;
      for (const part of here) {
        node = node.inner.get(String(part));
        if (!node) return;
      }
      node.place = [from, to];
    });
  } catch (error) {
    if (!(error instanceof JsonError)) throw error;
  }
  return ways.map((way) => way.findLast((node) => node.place).place);
}

/** The path of an index: its parts are separated by dots, what is part of a name is escaped. */
export function indexPath(text) {
  return text.split(/(?<!\\)\./).map((part) => part.replace(/\\(.)/g, "$1"));
}

/** The end of a part of an index's path that stands for every element. */
const EACH = /(?<!\\)\[\]$/;

/** Whether the path of an index stands for several values. */
export const isPattern = (text) => text.split(/(?<!\\)\./).some((part) => part === "*" || EACH.test(part));

/** The values at the path of an index: `*` is every member, `[]` behind a name every element. */
export function indexed(value, text) {
  const inner = (found, name) => (found instanceof Map && found.has(name) ? [found.get(name)] : []);
  return text.split(/(?<!\\)\./).reduce((found, part) => {
    if (part === "*") return found.flatMap((item) => (item instanceof Map ? [...item.values()] : []));
    const isList = EACH.test(part);
    const name = (isList ? part.slice(0, -2) : part).replace(/\\(.)/g, "$1");
    const next = found.flatMap((item) => inner(item, name));
    return isList ? next.flatMap((item) => (Array.isArray(item) ? item : [])) : next;
  }, [value]);
}
