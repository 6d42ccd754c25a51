// Records as the program sees them, made of what a node answers.
import { DataError, ProtocolError, messageOf } from "./errors.js";

/** @import { Answer } from "./transport.js" */
/** @import { Change, Config, Definition, JsonObject, OperationResult, Parse, Past, Source, Written } from "./types.js" */

/**
 * @param {Answer} answer
 * @returns {Source}
 */
export function liveSource(answer) {
  return { kind: "live", node: answer.node, revision: answer.stateRevision, ageMs: 0 };
}

/**
 * The value that the caller's validator makes of data.
 * @template T
 * @param {Parse<T> | undefined} parse
 * @param {any} data
 * @param {string} definition
 * @param {string} key
 * @returns {T}
 */
export function parsed(parse, data, definition, key) {
  if (!parse || data === null || data === undefined) return data;
  try {
    return parse(data);
  } catch (error) {
    throw new DataError(`the data of ${definition}/${key} are not what the program expects: ${messageOf(error)}`, { cause: error });
  }
}

/**
 * @template T
 * @param {any} found
 * @param {string} definition
 * @param {Source} source
 * @param {{ parse?: Parse<T>, revision?: number | null, variant?: string | null, redacted?: string[], warnings?: string[] }} [more]
 * @returns {Config<T>}
 */
export function config(found, definition, source, { parse, revision, variant = variantIn(found), redacted, warnings = [] } = {}) {
  return {
    definition: found.config_definition_key ?? definition,
    key: found.config_key,
    data: parsed(parse, found.data, definition, found.config_key),
    revision: variant === null ? found.revision ?? revision ?? null : 0,
    variant,
    createdAt: found.created_at,
    modifiedAt: found.modified_at,
    redacted: redacted ?? placesOf(found),
    source,
    warnings,
  };
}

/** @param {Answer} answer */
export function redactedOf(answer) {
  const text = answer.headers.get("x-concord-redacted");
  return text === null ? [] : text.split(",").map(placeOf);
}

/** The id of the change request whose candidate a record is. @param {any} found @returns {string | null} */
export function variantIn(found) { return found.variant?.change_id ?? null; }

/** The places of secret values that a record names. @param {any} found @returns {string[]} */
export function placesOf(found) { return Array.isArray(found.redacted) ? found.redacted.map(placeOf) : []; }

/** A JSON pointer, of one in the fragment of a URI. @param {string} place */
function placeOf(place) { return decodeURIComponent(place.trim().replace(/^#/, "")); }

/**
 * Refuses the answer that is of another record than what was asked for.
 * @param {Answer} answer
 * @param {Record<string, unknown>} found
 * @param {Record<string, unknown>} asked
 */
export function checkIs(answer, found, asked) {
  for (const [name, wanted] of Object.entries(asked)) {
    if (found?.[name] !== wanted) throw new ProtocolError(`${answer.url} answered with the ${name} ${found?.[name]} where ${wanted} was asked for`);
  }
}

/**
 * @param {any} found
 * @param {number | null} [revision]
 * @param {string[]} [warnings]
 * @returns {Definition}
 */
export function definition(found, revision = null, warnings = []) {
  return {
    key: found.config_definition_key,
    indexes: found.indexes ?? [],
    schema: found.json_schema ?? null,
    revision: found.revision ?? revision,
    createdAt: found.created_at,
    modifiedAt: found.modified_at,
    warnings,
  };
}

/**
 * @template T
 * @param {Answer} answer
 * @param {string} definition
 * @param {string} key
 * @param {Parse<T>} [parse]
 * @returns {Written<T>}
 */
export function written(answer, definition, key, parse) {
  return {
    definition,
    key,
    data: parsed(parse, answer.data, definition, key),
    revision: answer.recordRevision,
    created: answer.status === 201,
    warnings: answer.warnings,
  };
}

/**
 * @template T
 * @param {any} found
 * @param {(data: any) => T} data
 * @returns {Past<T>}
 */
export function past(found, data) {
  const { revision, operation, at, by, reason } = found;
  return { revision, operation, at, by, reason, data: found.data === null ? null : data(found.data) };
}

/**
 * @param {any} found
 * @param {Source} source
 * @returns {OperationResult}
 */
export function operationResult(found, source) {
  /** @type {OperationResult} */
  const result = {
    op: found.op, definition: found.config_definition_key, key: found.config_key ?? null, created: found.created ?? false,
  };
  if ("config" in found) result.config = found.config && config(found.config, result.definition, source);
  return result;
}

/**
 * @param {any} found
 * @returns {Change<JsonObject>}
 */
export function change(found) {
  /** @type {Change<JsonObject>} */
  const made = {
    type: found.type,
    definition: found.config_definition_key,
    key: found.config_key ?? null,
    data: found.data ?? null,
    createdAt: found.created_at ?? null,
    modifiedAt: found.modified_at ?? null,
    redacted: placesOf(found),
    variant: variantIn(found),
  };
  if (found.revision !== undefined) made.revision = found.revision;
  if ("prev" in found) made.previous = found.prev;
  if (found.indexes) [made.indexes, made.schema] = [found.indexes, found.json_schema ?? null];
  if (found.count !== undefined) made.count = found.count;
  return made;
}
