// Texts of times, numbers and values as the tables show them.
import { DOTS, Secret, print } from "./json.js";

const relative = new Intl.RelativeTimeFormat("en");
const UNITS = [["year", 31536000], ["month", 2592000], ["day", 86400], ["hour", 3600], ["minute", 60], ["second", 1]];

/** How long ago a time is. */
export function ago(text) {
  const seconds = (Date.parse(text) - Date.now()) / 1000;
  if (!Number.isFinite(seconds)) return "";
  const [unit, size] = UNITS.find(([, size]) => Math.abs(seconds) >= size) ?? ["second", 1];
  return Math.abs(seconds) < 1 ? "now" : relative.format(Math.trunc(seconds / size), unit);
}

/** A time to the second, in UTC as everywhere in Concord. */
export function time(text) {
  return text ? text.replace("T", " ").replace(/(\.\d+)?Z$/, "Z") : "";
}

/** A time in seconds, in its largest whole unit. */
export function duration(seconds) {
  const [unit, size] = UNITS.find(([unit, size]) => !["year", "month"].includes(unit) && seconds % size === 0);
  return count(seconds / size, unit);
}

export function count(number, one, many = `${one}s`) {
  return `${number.toLocaleString("en")} ${number === 1 ? one : many}`;
}

/** Characters that nobody sees, but for single blanks between words: those of `crates/model/src/unseen.rs`, and other blanks. */
const UNSEEN = /[\u0000-\u001f\u007f-\u00a0\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\u{e0000}-\u{e0fff}]/gu;
/** A text with these as they are written in JSON. */
export const escaped = (text) => text.replace(UNSEEN, (character) => character.split("").map((unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`).join(""));
/** A text that would be taken for another value, or of which something would not be seen. */
const LOOKS_OTHERWISE = /^$|^["[{–•]|^\s|\s$| {2}|^(true|false|null|undefined)$|^-?\d[\d.]*([eE][+-]?\d+)?$/;

/** A value so that no two values look alike: a text that looks like another value is in quotes, as in JSON. */
export function plain(value) {
  if (value === undefined) return "";
  if (value instanceof Secret) return DOTS;
  if (typeof value !== "string") return escaped(print(value, 0));
  return LOOKS_OTHERWISE.test(value) || value.search(UNSEEN) >= 0 ? escaped(JSON.stringify(value)) : value;
}

/** The same, on one line that is not too long. */
export function brief(value, length = 120) {
  const text = plain(value);
  return text.length > length ? `${text.slice(0, length)}…` : text;
}

/** What nobody sees in a text that is shown as it is. */
export function hints(text) {
  if (text === "") return ["empty text"];
  const found = [];
  if (/\r\n/.test(text)) found.push("lines end with CR LF");
  if (/^[^\S\n]/.test(text)) found.push("begins with a blank");
  if (/^\r?\n/.test(text)) found.push("begins with an empty line");
  if (/\n$/.test(text)) found.push("ends with a line end");
  else if (/\s$/.test(text)) found.push("ends with a blank");
  if (/[^\S\n] {2}|\S {2}\S/.test(text) && !text.includes("\n")) found.push("has several blanks in a row");
  if (text.includes("\t")) found.push("has a tab");
  const others = [...new Set(text.replace(/\r?\n|\t/g, "").match(UNSEEN) ?? [])];
  if (others.length) found.push(`has ${others.slice(0, 5).map((character) => `U+${character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`).join(", ")}`);
  return found;
}

/** A path as it is written in an index or an error. */
export function pathText(path) {
  return path.length === 0 ? "(the whole)" : path.map((part) => (typeof part === "number" ? `[${part}]` : escaped(part))).join(".");
}

export function bytes(number) {
  if (number < 1024) return `${number} B`;
  const power = Math.min(Math.floor(Math.log2(number) / 10), 4);
  return `${(number / 1024 ** power).toFixed(1)} ${["", "KiB", "MiB", "GiB", "TiB"][power]}`;
}
