// Data to change and write back where the key may not see all of them.
//
// In place of each secret value stands a marker that keeps it: `{"$concord-keep": true}`. Which value that is, the service
// knows by the place alone. So a marker remembers its place, and is not written at another one.
//
// Invariant: a secret value that nobody saw stays where it is, or the write is refused before it is sent.
import { wrong } from "./errors.js";

const NAME = "$concord-keep";
/** The place of each marker that was handed out. @type {WeakMap<object, string>} */
const PLACES = new WeakMap();

/** The parts of a JSON pointer. @param {string} pointer */
const parts = (pointer) => pointer.split("/").slice(1).map((part) => part.replaceAll("~1", "/").replaceAll("~0", "~"));
/** @param {string} name */
const escaped = (name) => name.replaceAll("~", "~0").replaceAll("/", "~1");

/** @param {string} place */
function marker(place) {
  const made = Object.freeze({ [NAME]: true });
  PLACES.set(made, place);
  return made;
}

/**
 * Puts a marker at each place of a value that the key may not see.
 * @template T
 * @param {T} data Nobody else's: it is changed.
 * @param {string[]} redacted
 * @returns {T}
 */
export function editable(data, redacted) {
  for (const pointer of redacted) {
    const names = parts(pointer);
    const last = names.pop();
    // There may be more places than an answer names (`...`). Their nulls are refused by the service.
    if (last === undefined) {
      if (pointer === "") return /** @type {any} */ (marker(""));
      continue;
    }
    const at = names.reduce((/** @type {any} */ value, name) => value[name], data);
    at[last] = marker(pointer);
  }
  return data;
}

/**
 * Refuses data in which a marker is at another place than that of its value.
 * @param {any} value
 * @param {string} [place]
 * @param {boolean} [isInList]
 */
export function checkMarkers(value, place = "", isInList = false) {
  if (value === null || typeof value !== "object") return;
  const known = PLACES.get(value);
  if (known !== undefined) {
    if (known !== place) throw moved(place, `the secret value of ${known} can't be moved by a key that may not see it`);
  } else if (Array.isArray(value)) value.forEach((one, index) => checkMarkers(one, `${place}/${index}`, true));
  else if (Object.hasOwn(value, NAME) && isInList) {
    // A list may have been changed since it was copied: which value is meant is not known any more.
    throw moved(place, "a copy of a marker does not tell which secret value of a list it keeps");
  } else for (const [name, member] of Object.entries(value)) checkMarkers(member, `${place}/${escaped(name)}`, isInList);
}

/**
 * @param {string} place
 * @param {string} message
 */
function moved(place, message) {
  return wrong("data_invalid", `${message}: change the data that you were given in place, or use a JSON Patch`, ["data", ...parts(place)]);
}
