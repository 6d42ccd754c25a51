// Parameters of reads, lists and watches.

import { ExactNumber } from "./json.js";

/** @import { AcrossOptions, ConfigListOptions, Filter, ListOptions, ReadOptions } from "./types.js" */

/** @typedef {[string, string][]} Query */

/** Names of parameters: a path with such a name is filtered by as `data.<path>`. */
const RESERVED = new Set([
  "page", "limit", "sort_by", "sort_order", "search", "consistency", "max_staleness_ms", "min_revision", "cursor", "include",
  "fields", "revision", "pretty", "raw", "definition", "config_key", "from", "initial", "prev", "wait",
]);

/**
 * @param {ReadOptions} options
 * @returns {Query}
 */
export function freshness(options) {
  return given([
    ["consistency", options.consistency],
    ["max_staleness_ms", options.maxStalenessMs],
    ["min_revision", options.minRevision],
  ]);
}

/**
 * @param {ListOptions} options
 * @returns {Query}
 */
export function listing(options) {
  return given([
    ["search", options.search],
    ["sort_by", options.sortBy],
    ["sort_order", options.sortOrder],
    ["limit", options.pageSize ?? 100],
    ["page", options.page],
  ]).concat(freshness(options));
}

/**
 * @param {ConfigListOptions} options
 * @returns {Query}
 */
export function configListing(options) {
  return [
    ...listing(options),
    // With the sign no index takes them for a filter.
    .../** @type {Query} */ ([["$include", "revision"]]),
    ...given([["$fields", options.fields && fields(options.fields)], ["$revision", options.revision]]),
    ...filters(options.filter ?? {}),
  ];
}

/**
 * A list over several definitions: it takes neither parts nor a revision.
 * @param {AcrossOptions} options
 * @returns {Query}
 */
export function acrossListing(options) {
  return [...listing(options), ...filters(options.filter ?? {})];
}

/** @param {string[]} names */
export function fields(names) {
  return names.map((name) => name.replaceAll(",", "\\,")).join(",");
}

/**
 * @param {Filter} filter
 * @returns {Query}
 */
export function filters(filter) {
  /** @type {Query} */
  const query = [];
  for (const [path, wanted] of Object.entries(filter)) {
    const name = RESERVED.has(path) && path !== "config_key" ? `data.${path}` : path;
    if (Array.isArray(wanted)) query.push(...anyOf(name, wanted));
    else if (!isConditions(wanted)) query.push([name, text(name, wanted)]);
    else {
      const conditions = Object.entries(wanted);
      if (conditions.length === 0) throw new TypeError(`the filter of \`${path}\` has no condition`);
      for (const [operator, value] of conditions) {
        // Not `[in]`: there a comma in a text would part it.
        if (operator === "in" && Array.isArray(value)) query.push(...anyOf(name, value));
        else query.push([`${name}[${operator}]`, text(name, value)]);
      }
    }
  }
  return query;
}

/**
 * Any of these values; none of them selects nothing.
 * @param {string} name
 * @param {unknown[]} values
 * @returns {Query}
 */
function anyOf(name, values) {
  if (values.length === 0) return [[`${name}[exists]`, "true"], [`${name}[exists]`, "false"]];
  return values.map((value) => [name, text(name, value)]);
}

/**
 * @param {unknown} value
 * @returns {value is Record<string, unknown>}
 */
function isConditions(value) {
  if (value === null || typeof value !== "object") return false;
  const prototype = Object.getPrototypeOf(value);
  return prototype === null || prototype === Object.prototype;
}

/**
 * A value as text. What is none is an error: left out, it would select everything.
 * @param {string} name
 * @param {unknown} value
 */
function text(name, value) {
  if (typeof value === "number" ? Number.isFinite(value) : ["string", "boolean", "bigint"].includes(typeof value)) return String(value);
  if (value === null || value instanceof ExactNumber) return String(value);
  if (value instanceof Date) return value.toISOString();
  throw new TypeError(`the filter of \`${name}\` has a value that is none of JSON's: ${String(value)}`);
}

/**
 * The names that a call selects. An empty list would select everything in place of nothing.
 * @param {string} parameter
 * @param {string | string[] | undefined} given
 * @returns {Query}
 */
export function names(parameter, given) {
  if (given === undefined) return [];
  const listed = typeof given === "string" ? [given] : given;
  if (listed.length === 0) throw new TypeError(`an empty list of \`${parameter}\` selects nothing: leave it out to select all`);
  return listed.map((name) => [parameter, name]);
}

/**
 * The parameters that have a value.
 * @param {[string, string | number | boolean | undefined][]} all
 * @returns {Query}
 */
export function given(all) {
  /** @type {Query} */
  const query = [];
  for (const [name, value] of all) if (value !== undefined) query.push([name, String(value)]);
  return query;
}
