// Texts of times, numbers and values as the tables show them.
import { print } from "./json.js";

const relative = new Intl.RelativeTimeFormat("en", { numeric: "auto", style: "narrow" });
const UNITS = [["year", 31536000], ["month", 2592000], ["day", 86400], ["hour", 3600], ["minute", 60], ["second", 1]];

/** How long ago a time is. */
export function ago(text) {
  const seconds = (Date.parse(text) - Date.now()) / 1000;
  if (!Number.isFinite(seconds)) return "";
  const [unit, size] = UNITS.find(([, size]) => Math.abs(seconds) >= size) ?? ["second", 1];
  return relative.format(Math.trunc(seconds / size), unit);
}

/** A time to the second, in UTC as everywhere in Concord. */
export function time(text) {
  return text ? text.replace("T", " ").replace(/(\.\d+)?Z$/, "Z") : "";
}

export function count(number, one, many = `${one}s`) {
  return `${number.toLocaleString("en")} ${number === 1 ? one : many}`;
}

/** A value on one line. */
export function brief(value, length = 120) {
  if (value === undefined) return "";
  const text = typeof value === "string" ? value : print(value, 0);
  return text.length > length ? `${text.slice(0, length)}…` : text;
}

/** A path as it is written in an index or an error. */
export function pathText(path) {
  return path.length === 0 ? "(the whole)" : path.map((part) => (typeof part === "number" ? `[${part}]` : part)).join(".");
}

export function bytes(number) {
  if (number < 1024) return `${number} B`;
  const power = Math.min(Math.floor(Math.log2(number) / 10), 4);
  return `${(number / 1024 ** power).toFixed(1)} ${["", "KiB", "MiB", "GiB", "TiB"][power]}`;
}
