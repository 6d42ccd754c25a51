// What differs between two contents, and what comes of two people's changes to the same one.
import { at, put, same } from "./json.js";

/** The places where two values differ: { path, old, new }, undefined where there is none. Lists of one length are compared element by element. */
export function differences(a, b, path = []) {
  if (same(a, b)) return [];
  if (a instanceof Map && b instanceof Map) {
    const names = new Set([...a.keys(), ...b.keys()]);
    return [...names].flatMap((name) => differences(a.get(name), b.get(name), [...path, name]));
  }
  if (Array.isArray(a) && Array.isArray(b) && a.length === b.length) {
    return a.flatMap((item, place) => differences(item, b[place], [...path, place]));
  }
  return [{ path, old: a, new: b }];
}

/**
 * The places that either side has changed since `base`: { path, base, mine, theirs, conflict }. There is a conflict where
 * both changed one place, or one a part of what the other replaced, to different ends.
 */
export function threeWay(base, mine, theirs) {
  const [ours, others] = [differences(base, mine), differences(base, theirs)];
  const within = (inner, outer) => outer.length <= inner.length && outer.every((part, i) => part === inner[i]);
  const paths = [...ours, ...others].map((change) => change.path);
  // The outermost places: what lies inside another one is decided with it.
  const outer = paths.filter((path, place) => !paths.some((other, i) => i !== place && within(path, other)
    && (other.length < path.length || i < place)));
  return outer.map((path) => {
    const place = { path, base: at(base, path), mine: at(mine, path), theirs: at(theirs, path) };
    const touched = (changes) => changes.some((change) => within(change.path, path) || within(path, change.path));
    const [byMe, byThem] = [touched(ours), touched(others)];
    return { ...place, byMe, byThem, conflict: byMe && byThem && !same(place.mine, place.theirs) };
  });
}

/** Their content with my side of the places for which `choices` says "mine". */
export function merged(theirs, places, choices) {
  // From the last to the first, so that a place taken out of a list moves none that is still to be done.
  return places.reduceRight((value, place, i) => (choices[i] === "mine" ? put(value, place.path, place.mine) : value), theirs);
}
