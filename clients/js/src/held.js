// The configs that a cache holds, by definition and key.

/** @import { JsonObject } from "./types.js" */

/**
 * @typedef {object} Held
 * @property {JsonObject} data
 * @property {number | null} revision
 * @property {string} [variant] The id of the change request whose candidate it is.
 * @property {string[]} [redacted] The places of secret values that the key may not see.
 * @property {{ data: JsonObject, revision: number | null, variant?: string, untilWallMs: number }} [good] What there was before data that are not valid.
 */

/**
 * @param {Map<string, Map<string, Held>>} configs
 * @param {string} definition
 * @param {string} key
 * @param {Held} held
 */
export function put(configs, definition, key, held) {
  const of = configs.get(definition);
  if (of) of.set(key, held);
  else configs.set(definition, new Map([[key, held]]));
}

/**
 * Data that all readers share: nobody may change them.
 * @template V
 * @param {V} value
 * @returns {V}
 */
export function frozen(value) {
  if (value !== null && typeof value === "object") {
    Object.freeze(value);
    Object.values(value).forEach(frozen);
  }
  return value;
}
