// What a cache stores: one text with everything that it knows.
import { Moment } from "./clock.js";
import { ConcordError } from "./errors.js";
import { defined, parse, stringify } from "./json.js";

/** @import { Cache } from "./cache.js" */
/** @import { Held } from "./held.js" */

const FORMAT = "concord-cache-1";

/** @param {Cache} cache */
export function textOf(cache) {
  return stringify({
    format: FORMAT,
    // The keys are the same in every environment, and the values are not.
    ...(cache.transport.environment ? { environment: cache.transport.environment.name } : {}),
    selection: defined(cache.selection),
    revision: cache.revision,
    node: cache.node,
    confirmed_wall_ms: cache.confirmed?.wall ?? null,
    configs: Object.fromEntries([...cache.configs].map(([definition, configs]) => [definition, Object.fromEntries([...configs].map(([key, held]) => [key, defined(held)]))])),
  });
}

/**
 * What a text has that a cache of the same selection stored; else an error.
 * @param {string} text
 * @param {Cache["selection"]} selection
 * @param {string} [environment]
 * @returns {{ configs: [string, string, Held][], revision: number | null, node: string | null, confirmed: Moment | null }}
 */
export function storedIn(text, selection, environment) {
  const stored = parse(text);
  if (stored?.environment !== environment) {
    throw new ConcordError("what is stored is of another environment: it is not used");
  }
  if (stored?.format !== FORMAT || stringify(stored.selection) !== stringify(defined(selection))) {
    throw new ConcordError("what is stored is of another kind of cache: it is not used");
  }
  /** @type {[string, string, Held][]} */
  const configs = [];
  for (const [definition, held] of Object.entries(stored.configs)) {
    for (const [key, one] of Object.entries(held)) configs.push([definition, key, one]);
  }
  const confirmed = stored.confirmed_wall_ms === null ? null : Moment.atWall(stored.confirmed_wall_ms);
  return { configs, revision: stored.revision, node: stored.node, confirmed };
}
