// Parameters of reads, lists and watches.

/** @import { AcrossOptions, ConfigListOptions, Filter, ListOptions, ReadOptions, Scalar } from "./types.js" */

/** @typedef {[string, string][]} Query */

/** Names of parameters: a path with such a name is filtered by as `data.<path>`. */
const RESERVED = new Set([
  "page", "limit", "sort_by", "sort_order", "search", "consistency", "max_staleness_ms", "min_revision", "cursor", "include",
  "fields", "revision", "pretty", "definition", "config_key", "from", "initial", "prev", "wait",
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
    if (Array.isArray(wanted)) {
      for (const value of wanted) query.push([name, text(value)]);
    } else if (wanted !== null && typeof wanted === "object") {
      for (const [operator, value] of Object.entries(wanted)) {
        if (value === undefined) continue;
        query.push([`${name}[${operator}]`, Array.isArray(value) ? value.map(listed).join(",") : text(value)]);
      }
    } else query.push([name, text(wanted)]);
  }
  return query;
}

/** @param {Scalar | undefined} value */
function text(value) {
  return value === null || value === undefined ? "null" : String(value);
}

/**
 * A value between commas.
 * @param {Scalar} value
 */
function listed(value) {
  return typeof value === "string" && /[,"]/.test(value) ? JSON.stringify(value) : text(value);
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
