// JSON without loss. `JSON.parse` rounds long numbers, forgets that 7.0 is no 7, and moves members whose names are
// numbers to the front; what is read here is written back as it was. An object is a Map, a number a Num with its text.

/** A number as it is written. */
export class Num {
  constructor(text) { this.text = text; }
}

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
  if (value === undefined) return "";
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  const isList = Array.isArray(value);
  const parts = isList
    ? value.map((item) => print(item, indent, depth + 1))
    : [...value].map(([name, item]) => `${JSON.stringify(name)}:${indent ? " " : ""}${print(item, indent, depth + 1)}`);
  const [open, close] = isList ? "[]" : "{}";
  if (parts.length === 0) return open + close;
  const short = isList && value.every((item) => item === null || typeof item !== "object" || item instanceof Num);
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

/** From and to of the value at a path in a text, or of the nearest one around it. */
export function locate(text, path) {
  const wanted = path.map(String);
  let best = [0, 0], depth = -1;
  try {
    parse(text, (here, from, to) => {
      const fits = here.length <= wanted.length && here.every((part, i) => String(part) === wanted[i]);
      if (fits && here.length > depth) [best, depth] = [[from, to], here.length];
    });
  } catch (error) {
    if (!(error instanceof JsonError)) throw error;
  }
  return best;
}

/** The path of an index: its parts are separated by dots, a dot in a name is escaped. */
export function indexPath(text) {
  return text.split(/(?<!\\)\./).map((part) => part.replace(/\\(.)/g, "$1"));
}
