// Which stored element of a list the node takes an element for, whose secret value it is to keep.
//
// The node knows what is written and not how it came about: it tells elements apart by what a key may see of them. The
// editor knows which element it moved and which one it changed. Where they disagree, as when one element was changed to
// look like another one was, a secret value would go to another element.
//
// Invariant: what `strayed` finds a place in is never sent.
import { Secret, identical, print } from "./json.js";
import { isKept, marker } from "./redacted.js";
import { masked } from "./secrets.js";

export const STRAYED = "the node would keep the secret value of another element here: it tells elements apart by what you see of them. Save in several steps";

/** What a key sees of an element, and whether secret values in it are kept or given. */
function look(element) {
  const seen = { isKeeping: false, isGiving: false };
  function text(value) {
    if (isKept(value) || value instanceof Secret) {
      seen[isKept(value) ? "isKeeping" : "isGiving"] = true;
      return "null";
    }
    if (Array.isArray(value)) return `[${value.map(text).join()}]`;
    if (value instanceof Map) return `{${[...value].map(([name, item]) => `${JSON.stringify(name)}:${text(item)}`).sort().join()}}`;
    return print(value, 0);
  }
  return Object.assign(seen, { text: text(element) });
}

/** For each written element the place of the stored one that the node takes it for, undefined where that is unclear. */
function sources(stored, written) {
  const found = [];
  const left = new Set(stored.keys());
  const alike = new Map();
  for (const [side, looks] of [stored, written].entries()) {
    for (const [place, { text }] of looks.entries()) {
      if (!alike.has(text)) alike.set(text, [[], []]);
      alike.get(text)[side].push(place);
    }
  }
  for (const [were, are] of alike.values()) {
    if (were.length !== are.length || (were.length > 1 && are.some((place) => written[place].isGiving))) continue;
    for (const [turn, place] of are.entries()) {
      found[place] = were[turn];
      left.delete(were[turn]);
    }
  }
  const open = [...written.keys()].filter((place) => found[place] === undefined && written[place].isKeeping);
  if (left.size === 1 && open.length === 1) [found[open[0]]] = left;
  return found;
}

function markersOf(value, found = new Set()) {
  if (isKept(value)) found.add(value);
  else if (value instanceof Map || Array.isArray(value)) for (const item of value.values()) markersOf(item, found);
  return found;
}

export const hasMarkers = (value) => markersOf(value).size > 0;

/** The paths at which the node would keep another value of `base` than the one whose marker stands there. */
export function strayed(root, base, value) {
  const known = markersOf(base);
  const found = [];
  function walk(path, now, then) {
    if (isKept(now)) {
      if (known.has(now) && isKept(then) && now !== then) found.push(path);
    } else if (now instanceof Map) {
      for (const [name, item] of now) walk([...path, name], item, then instanceof Map ? then.get(name) : undefined);
    } else if (Array.isArray(now) && Array.isArray(then)) {
      const places = sources(then.map(look), now.map(look));
      now.forEach((item, place) => walk([...path, place], item, then[places[place]]));
    }
  }
  if (known.size) walk([], masked(root, value), base);
  return found;
}

/**
 * A value that was typed as a text over `old`, with the markers of `old`. A text does not say which element of a list one
 * is: those at the beginning and at the end that are written as before are the same, and the others are what the node
 * would take them for. Where that is unclear, a marker is that of none.
 */
export function placed(root, old, value, path = []) {
  if (old !== undefined && identical(old, value)) return old;
  if (isKept(value)) return isKept(old) ? old : marker();
  if (value instanceof Map) return new Map([...value].map(([name, item]) => [name, placed(root, old instanceof Map ? old.get(name) : undefined, item, [...path, name])]));
  if (!Array.isArray(value)) return value;
  const before = Array.isArray(old) ? old : [];
  const least = Math.min(value.length, before.length);
  let [from, tail] = [0, 0];
  while (from < least && identical(value[from], before[from])) from += 1;
  while (tail < least - from && identical(value.at(-1 - tail), before.at(-1 - tail))) tail += 1;
  const looks = (items) => items.slice(from, items.length - tail).map((item, place) => look(masked(root, item, [...path, from + place])));
  const places = sources(looks(before), looks(value));
  const source = (place) => (place < from ? place : place < value.length - tail ? places[place - from] + from : place - value.length + before.length);
  return value.map((item, place) => placed(root, before[source(place)], item, [...path, place]));
}
