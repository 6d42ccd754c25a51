// JSON whose numbers keep their value. `JSON.parse` rounds 123456789012345678901234567890 and turns 1e400 into infinity,
// which is then written as null. Here a number that JavaScript can't hold is an `ExactNumber`, written back as it was
// read; all other numbers are plain ones.

/** A number that JavaScript's own can't hold, as it is written. */
export class ExactNumber {
  /** @param {string} text */
  constructor(text) {
    if (!WHOLE_NUMBER.test(text)) throw new TypeError(`\`${text}\` is no JSON number`);
    /** @readonly */
    this.text = text;
  }

  /** The nearest number of JavaScript. */
  toNumber() { return Number(this.text); }

  /** The integer; throws where it is none, or is written with an exponent. */
  toBigInt() { return BigInt(this.text); }

  toString() { return this.text; }
}

const NUMBER = /-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?/y;
const WHOLE_NUMBER = /^-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?$/;
const SPACE = /[ \t\n\r]*/y;
const STRING = /"[^"\\]*(?:\\.[^"\\]*)*"/y;
/** What a text has that holds such a number. Texts without it are read by `JSON.parse`. */
const SUSPICIOUS = /[\d.]{16}|\d[eE][+-]?\d/;

/**
 * @param {string} text
 * @returns {any}
 */
export function parse(text) {
  return SUSPICIOUS.test(text) ? new Reader(text).whole() : JSON.parse(text);
}

class Reader {
  /** @param {string} text */
  constructor(text) {
    this.text = text;
    this.at = 0;
  }

  /** @returns {any} */
  whole() {
    const found = this.value();
    if (this.at < this.text.length) this.fail();
    return found;
  }

  /** @returns {never} */
  fail() { throw new SyntaxError(`no JSON at character ${this.at}`); }

  space() {
    SPACE.lastIndex = this.at;
    SPACE.test(this.text);
    this.at = SPACE.lastIndex;
  }

  /** @returns {any} */
  value() {
    this.space();
    const found = this.one();
    this.space();
    return found;
  }

  /** @returns {any} */
  one() {
    const c = this.text[this.at];
    if (c === "{") return this.object();
    if (c === "[") return this.array();
    if (c === '"') return this.string();
    for (const [name, value] of WORDS) {
      if (this.text.startsWith(name, this.at)) {
        this.at += name.length;
        return value;
      }
    }
    const text = this.match(NUMBER);
    return isHeld(text) ? Number(text) : new ExactNumber(text);
  }

  /** @param {RegExp} pattern */
  match(pattern) {
    pattern.lastIndex = this.at;
    const found = pattern.exec(this.text);
    if (!found) this.fail();
    this.at = pattern.lastIndex;
    return found[0];
  }

  /** @returns {string} */
  string() { return JSON.parse(this.match(STRING)); }

  object() {
    /** @type {Record<string, any>} */
    const found = {};
    this.at += 1;
    this.space();
    if (this.text[this.at] === "}") {
      this.at += 1;
      return found;
    }
    for (;;) {
      this.space();
      const name = this.string();
      this.space();
      if (this.text[this.at] !== ":") this.fail();
      this.at += 1;
      // An assignment to `__proto__` would change the object instead of giving it a member.
      Object.defineProperty(found, name, { value: this.value(), writable: true, enumerable: true, configurable: true });
      const c = this.text[this.at];
      if (c !== "," && c !== "}") this.fail();
      this.at += 1;
      if (c === "}") return found;
    }
  }

  array() {
    /** @type {any[]} */
    const found = [];
    this.at += 1;
    this.space();
    if (this.text[this.at] === "]") {
      this.at += 1;
      return found;
    }
    for (;;) {
      found.push(this.value());
      const c = this.text[this.at];
      if (c !== "," && c !== "]") this.fail();
      this.at += 1;
      if (c === "]") return found;
    }
  }
}

/** @type {[string, boolean | null][]} */
const WORDS = [["true", true], ["false", false], ["null", null]];

/**
 * Whether a number of JavaScript has the value of this text.
 * @param {string} text
 */
function isHeld(text) {
  const number = Number(text);
  return Number.isFinite(number) && canonical(text) === canonical(String(number));
}

/**
 * The digits without zeros at the ends, and the power of ten.
 * @param {string} text
 */
function canonical(text) {
  const [mantissa = "", exponent = "0"] = text.replace(/^-/, "").split(/[eE]/);
  const [whole = "", fraction = ""] = mantissa.split(".");
  const digits = (whole + fraction).replace(/^0+/, "");
  const significant = digits.replace(/0+$/, "");
  if (significant === "") return "0";
  return `${text.startsWith("-")}${significant}e${BigInt(exponent) - BigInt(fraction.length) + BigInt(digits.length - significant.length)}`;
}

/**
 * The text of a value; `ExactNumber` and `bigint` with all their digits. Nothing of it is left out or changed unseen, as
 * `JSON.stringify` does: what JSON can't say is a `TypeError` that names its place. That is NaN, infinity and an invalid
 * `Date`, which would become null; `undefined` and functions, which would vanish; and an object that is neither plain nor
 * an array nor has `toJSON`, such as a `Map`, which would become `{}`.
 * @param {unknown} value
 * @returns {string}
 */
export function stringify(value) { return print(value, []); }

/**
 * An object without the members that are not given.
 * @template {object} T
 * @param {T} members
 * @returns {{ [name in keyof T]: Exclude<T[name], undefined> }}
 */
export function defined(members) {
  return /** @type {any} */ (Object.fromEntries(Object.entries(members).filter(([, value]) => value !== undefined)));
}

/**
 * @param {any} value
 * @param {(string | number)[]} path Where it is: one list for all places.
 * @returns {string}
 */
function print(value, path) {
  if (value instanceof ExactNumber) return value.text;
  switch (typeof value) {
    case "bigint": return value.toString();
    case "number":
      if (!Number.isFinite(value)) throw noJson(`${value}`, path);
      return Object.is(value, -0) ? "-0.0" : String(value);
    case "string":
    case "boolean": return JSON.stringify(value);
    case "object": return value === null ? "null" : printObject(value, path);
    case "undefined": throw noJson("undefined", path, ": leave the member out, or give it null");
    default: throw noJson(`a ${typeof value}`, path);
  }
}

/**
 * @param {any} value
 * @param {(string | number)[]} path
 * @returns {string}
 */
function printObject(value, path) {
  if (value instanceof Date && Number.isNaN(value.getTime())) throw noJson("an invalid Date", path);
  if (typeof value.toJSON === "function") return print(value.toJSON(String(path.at(-1) ?? "")), path);
  // With the holes, which `map` leaves out.
  if (Array.isArray(value)) return `[${Array.from(value, (item, place) => printInner(item, path, place)).join(",")}]`;
  if (!isPlain(value)) throw noJson(`an instance of ${value.constructor?.name || "a class"}`, path, ": give a plain object or an array, or let it have a method `toJSON`");
  return `{${Object.entries(value).map(([name, item]) => `${JSON.stringify(name)}:${printInner(item, path, name)}`).join(",")}}`;
}

/**
 * @param {any} value
 * @param {(string | number)[]} path
 * @param {string | number} part
 */
function printInner(value, path, part) {
  path.push(part);
  const text = print(value, path);
  path.pop();
  return text;
}

/**
 * Whether an object is made by braces, in this realm or in another one, or has no prototype.
 * @param {object} value
 */
function isPlain(value) {
  const prototype = Object.getPrototypeOf(value);
  return prototype === null || (Object.getPrototypeOf(prototype) === null && Object.hasOwn(prototype, "isPrototypeOf"));
}

/**
 * @param {string} what
 * @param {(string | number)[]} path
 * @param {string} [instead]
 */
function noJson(what, path, instead = "") {
  const place = path.map((part) => `/${String(part).replaceAll("~", "~0").replaceAll("/", "~1")}`).join("");
  return new TypeError(`${what} is no JSON${place && `, at \`${place}\``}${instead}`);
}
