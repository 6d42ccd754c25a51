// Secret values that the key may not see. The node sends null for them and names their places; written back, a marker in
// their place says that the value stays as it is.
import { at, put } from "./json.js";

const KEEP = "$concord-keep";

/** The marker; each is one of its own, and goes with its element. */
export const marker = () => new Map([[KEEP, true]]);
export const isKept = (value) => value instanceof Map && value.size === 1 && value.get(KEEP) === true;

/** The places of an answer: { paths, more }, `more` where the node named not all of them. */
export function hiddenPlaces(answer) {
  const texts = (answer.header("x-concord-redacted") ?? "").split(",").map((text) => text.trim()).filter(Boolean);
  const paths = texts.filter((text) => text !== "...").map((text) => text.replace(/^#/, "").split("/").slice(1)
    .map((part) => decodeURIComponent(part).replaceAll("~1", "/").replaceAll("~0", "~")));
  return { paths, more: texts.includes("...") };
}

/** The data with the marker at each hidden place. */
export function keeping(data, { paths }) {
  return paths.reduce((value, path) => {
    const typed = path.map((part, depth) => (Array.isArray(at(value, path.slice(0, depth))) ? Number(part) : part));
    return put(value, typed, marker());
  }, data);
}

export const hiddenText = ({ paths, more }) =>
  paths.map((path) => (path.length ? path.join(".") : "all of it")).join(", ") + (more ? " and more" : "");
