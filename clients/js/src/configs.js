// The configs of one definition.
import { ConcordError, NotFoundError, PreconditionFailedError } from "./errors.js";
import { stringify } from "./json.js";
import { checkMarkers, editable } from "./keep.js";
import { List } from "./pages.js";
import { configListing, fields, freshness, given } from "./query.js";
import * as records from "./records.js";

/** @import { ConditionalOptions, Config, ConfigListOptions, Deleted, GetOptions, HistoryOptions, JsonObject, Parse, PutOptions, WriteOptions, Written } from "./types.js" */
/** @import { Transport } from "./transport.js" */

/** How often `update` begins again while others write the same config. */
const UPDATES_MAX = 100;

/** A part of a path. @param {string} key */
export const segment = (key) => {
  if (typeof key !== "string" || key === "" || key === "." || key === "..") throw new TypeError(`${JSON.stringify(key)} is no key`);
  return encodeURIComponent(key);
};

/** @template T */
export class Configs {
  /**
   * @param {Transport} transport
   * @param {string} definition
   * @param {Parse<T>} [parse]
   */
  constructor(transport, definition, parse) {
    /** The key of the definition. */
    this.definition = definition;
    /** @internal */
    this.transport = transport;
    /** @internal */
    this.parse = parse;
    /** @internal */
    this.root = `/config_definition/${segment(definition)}/config/`;
  }

  /**
   * The config; `NotFoundError` where there is none. A reader that is in a rollout gets the candidate.
   * @param {string} key
   * @param {GetOptions} [options]
   * @returns {Promise<Config<T>>}
   */
  get(key, options = {}) { return this.read(key, options, false); }

  /**
   * @internal
   * @param {string} key
   * @param {GetOptions} options
   * @param {boolean} isProven
   * @returns {Promise<Config<T>>}
   */
  async read(key, options, isProven) {
    const query = [
      ...freshness(options),
      ...given([["revision", options.revision], ["fields", options.fields && fields(options.fields)]]),
    ];
    const answer = await this.transport.send({ method: "GET", path: this.root + segment(key), query, isProven, options });
    records.checkIs(answer, answer.data, { config_key: key });
    const [revision, variant, redacted] = [answer.recordRevision, answer.variant, records.redactedOf(answer)];
    return records.config(answer.data, this.definition, records.liveSource(answer), { parse: this.parse, revision, variant, redacted, warnings: answer.warnings });
  }

  /**
   * The config, or undefined where there is none.
   * @param {string} key
   * @param {GetOptions} [options]
   * @returns {Promise<Config<T> | undefined>}
   */
  async find(key, options = {}) {
    try {
      return await this.get(key, options);
    } catch (error) {
      const absent = ["config_not_found", "not_there", "definition_not_there"];
      if (error instanceof NotFoundError && absent.includes(error.code)) return undefined;
      throw error;
    }
  }

  /**
   * @param {ConfigListOptions} [options]
   * @returns {List<Config<T>>}
   */
  list(options = {}) {
    const request = { method: "GET", path: this.root, query: configListing(options), options };
    return new List(this.transport, request, (found, answer) => (
      records.config(found, this.definition, records.liveSource(answer), { parse: this.parse })), "$revision");
  }

  /**
   * Creates a config; `ConflictError` with the code `config_exists` where there is one.
   * @param {string} key
   * @param {T} data
   * @param {WriteOptions} [options]
   */
  create(key, data, options = {}) {
    return this.write("POST", this.root, key, { config_key: key, data }, options);
  }

  /**
   * Replaces a config. `NotFoundError` where there is none, but with `upsert`.
   * @param {string} key
   * @param {T} data
   * @param {PutOptions} [options]
   */
  put(key, data, options = {}) {
    const query = given([["upsert", options.upsert || undefined]]);
    return this.write("PUT", this.root + segment(key), key, { data }, options, { query });
  }

  /**
   * Creates a config, or replaces it.
   * @param {string} key
   * @param {T} data
   * @param {PutOptions} [options]
   */
  upsert(key, data, options = {}) {
    return this.put(key, data, { ...options, upsert: true });
  }

  /**
   * Changes a part: a JSON Merge Patch, whose nulls take members out.
   * @param {string} key
   * @param {JsonObject} patch
   * @param {ConditionalOptions} [options]
   */
  patch(key, patch, options = {}) {
    return this.write("PATCH", this.root + segment(key), key, patch, options, { contentType: "application/merge-patch+json" });
  }

  /**
   * Changes a part: a JSON Patch. `ConflictError` with the code `patch_test_failed` where a test does not hold.
   * @param {string} key
   * @param {{ op: string, path: string, from?: string, value?: any }[]} operations
   * @param {ConditionalOptions} [options]
   */
  jsonPatch(key, operations, options = {}) {
    return this.write("PATCH", this.root + segment(key), key, operations, options, { contentType: "application/json-patch+json" });
  }

  /**
   * Reads the config, and writes what `change` makes of its data; again while others write it meanwhile. No write of
   * others is lost. `change` may be called several times. Where the key may not see a secret value, a marker stands in its
   * place that keeps the value; it can't be moved.
   * @param {string} key
   * @param {(data: T) => T | Promise<T>} change
   * @param {WriteOptions} [options]
   * @returns {Promise<Written<T>>}
   */
  async update(key, change, options = {}) {
    if (options.idempotencyKey !== undefined) throw new TypeError("each attempt of an update is another write: it takes no idempotencyKey");
    for (let attempt = 0; attempt < UPDATES_MAX; attempt += 1) {
      // What is written back rests on what is proven: a candidate has no revision.
      const found = await this.read(key, { signal: options.signal, timeoutMs: options.timeoutMs }, true);
      // What a validator has made need not be JSON.
      const data = await change(this.parse ? found.data : editable(found.data, found.redacted));
      try {
        return await this.put(key, data, { ...options, ifRevision: found.revision ?? "*" });
      } catch (error) {
        if (!(error instanceof PreconditionFailedError)) throw error;
      }
    }
    throw new ConcordError(`${this.definition}/${key} was written by others each of ${UPDATES_MAX} times`);
  }

  /**
   * Deletes a config; its history stays.
   * @param {string} key
   * @param {ConditionalOptions} [options]
   * @returns {Promise<Deleted>}
   */
  async delete(key, options = {}) {
    const headers = conditions(options);
    const query = given([["dry_run", options.dryRun || undefined]]);
    const answer = await this.transport.send({ method: "DELETE", path: this.root + segment(key), query, headers, ...intent(options), options });
    return { key, warnings: answer.warnings };
  }

  /**
   * What happened to a config, the latest first.
   * @param {string} key
   * @param {HistoryOptions} [options]
   */
  history(key, options = {}) {
    const query = [...given([["limit", options.pageSize ?? 100], ["before", options.before]]), ...freshness(options)];
    const request = { method: "GET", path: `${this.root}${segment(key)}/history`, query, options };
    // What was stored once need not be what the program expects now.
    return new List(this.transport, request, (found) => records.past(found, (data) => /** @type {JsonObject} */ (data)));
  }

  /**
   * Writes what the config was at a revision as a new change; brings back what was deleted.
   * @param {string} key
   * @param {number} revision
   * @param {PutOptions} [options]
   */
  rollback(key, revision, options = {}) {
    return this.write("POST", `${this.root}${segment(key)}/rollback`, key, { revision }, options);
  }

  /**
   * @internal
   * @param {string} method
   * @param {string} path
   * @param {string} key
   * @param {unknown} body
   * @param {PutOptions} options
   * @param {{ contentType?: string, query?: [string, string][] }} [more]
   * @returns {Promise<Written<T>>}
   */
  async write(method, path, key, body, options, { contentType, query = [] } = {}) {
    if (body !== null && typeof body === "object" && "data" in body) checkMarkers(body.data);
    const answer = await this.transport.send({
      method,
      path,
      query: [...query, ...given([["dry_run", options.dryRun || undefined]])],
      headers: conditions(options),
      body: stringify(body),
      contentType,
      ...intent(options),
      options,
    });
    return records.written(answer, this.definition, key, this.parse);
  }
}

/**
 * @param {PutOptions} options
 * @returns {Record<string, string>}
 */
export function conditions({ ifRevision, ifAbsent }) {
  /** @type {Record<string, string>} */
  const headers = {};
  if (ifRevision !== undefined) headers["If-Match"] = ifRevision === "*" ? "*" : `"${ifRevision}"`;
  if (ifAbsent) headers["If-None-Match"] = "*";
  return headers;
}

/** @param {WriteOptions} options */
export function intent({ idempotencyKey, reason, dryRun }) {
  return { idempotencyKey, reason, isRead: dryRun === true };
}
