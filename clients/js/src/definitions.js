// The definitions: what configs there may be.
import { conditions, intent, segment } from "./configs.js";
import { defined, stringify } from "./json.js";
import { List } from "./pages.js";
import { freshness, given, listing } from "./query.js";
import * as records from "./records.js";

/** @import { ConditionalOptions, Definition, DefinitionWritten, Deleted, HistoryOptions, JsonObject, ListOptions, ReadOptions, WriteOptions } from "./types.js" */
/** @import { Transport } from "./transport.js" */

const ROOT = "/config_definition/";

export class Definitions {
  /** @param {Transport} transport */
  constructor(transport) {
    /** @internal */
    this.transport = transport;
  }

  /**
   * @param {ListOptions} [options]
   * @returns {List<Definition>}
   */
  list(options = {}) {
    const query = [...listing(options), ...given([["include", "revision"], ["revision", options.revision]])];
    return new List(this.transport, { method: "GET", path: ROOT, query, options }, (found) => records.definition(found), "revision");
  }

  /**
   * @param {string} key
   * @param {ReadOptions} [options]
   */
  async get(key, options = {}) {
    const answer = await this.transport.send({ method: "GET", path: ROOT + segment(key), query: freshness(options), options });
    records.checkIs(answer, answer.data, { config_definition_key: key });
    return records.definition(answer.data, answer.recordRevision, answer.warnings);
  }

  /**
   * @param {string} key
   * @param {{ indexes?: string[], schema?: JsonObject | null, formatAssertion?: boolean }} [content]
   * @param {WriteOptions} [options]
   * @returns {Promise<DefinitionWritten>}
   */
  async create(key, content = {}, options = {}) {
    const body = defined({
      config_definition_key: key, indexes: content.indexes ?? [], json_schema: content.schema ?? undefined,
      format_assertion: content.formatAssertion,
    });
    return this.change(key, "POST", ROOT, body, options);
  }

  /**
   * All indexes from now on.
   * @param {string} key
   * @param {string[]} indexes
   * @param {ConditionalOptions} [options]
   */
  async setIndexes(key, indexes, options = {}) {
    return this.change(key, "PUT", ROOT + segment(key), { indexes }, options);
  }

  /**
   * The progress of its indexes.
   * @param {string} key
   * @param {ReadOptions} [options]
   * @returns {Promise<{ path: string, state: "ready" | "building", done: number, of: number }[]>}
   */
  async indexes(key, options = {}) {
    return (await this.part(key, "indexes", options)).data.indexes;
  }

  /**
   * @param {string} key
   * @param {ReadOptions} [options]
   * @returns {Promise<{ schema: JsonObject | null, formatAssertion: boolean | null, revision: number | null }>}
   */
  async schema(key, options = {}) {
    const answer = await this.part(key, "schema", options);
    return { schema: answer.data.json_schema, formatAssertion: answer.data.format_assertion ?? null, revision: answer.recordRevision };
  }

  /**
   * Another schema; null removes it. Refused with the configs that would break, but with `force`. With `dryRun`,
   * `breaking` tells of them.
   * @param {string} key
   * @param {JsonObject | null} schema
   * @param {ConditionalOptions & { force?: boolean, formatAssertion?: boolean }} [options]
   * @returns {Promise<DefinitionWritten & { breakingCount: number, breaking: any[] }>}
   */
  async setSchema(key, schema, options = {}) {
    const query = given([["policy", options.force ? "force" : undefined], ["dry_run", options.dryRun || undefined]]);
    const body = stringify({ json_schema: schema, ...defined({ format_assertion: options.formatAssertion }) });
    const answer = await this.transport.send({
      method: "PUT", path: `${ROOT}${segment(key)}/schema`, query, headers: conditions(options), body, ...intent(options), options,
    });
    const { breaking_count: breakingCount = 0, breaking = [] } = answer.data;
    return { key, revision: answer.recordRevision, breakingCount, breaking, warnings: answer.warnings };
  }

  /**
   * @param {string} key
   * @param {ReadOptions} [options]
   * @returns {Promise<string[]>}
   */
  async unique(key, options = {}) {
    return (await this.part(key, "unique", options)).data.paths;
  }

  /**
   * All unique paths from now on.
   * @param {string} key
   * @param {string[]} paths
   * @param {ConditionalOptions} [options]
   */
  async setUnique(key, paths, options = {}) {
    return this.change(key, "PUT", `${ROOT}${segment(key)}/unique`, { paths }, options);
  }

  /**
   * Whether its deletion is rejected.
   * @param {string} key
   * @param {ReadOptions} [options]
   * @returns {Promise<boolean>}
   */
  async protection(key, options = {}) {
    return (await this.part(key, "protection", options)).data.protected;
  }

  /**
   * Protects it from deletion, or no longer.
   * @param {string} key
   * @param {boolean} isProtected
   * @param {ConditionalOptions} [options]
   */
  async setProtection(key, isProtected, options = {}) {
    return this.change(key, "PUT", `${ROOT}${segment(key)}/protection`, { protected: isProtected }, options);
  }

  /**
   * Deletes it **with its configs**; with `restrict` only if it has none, with `purge` for good.
   * @param {string} key
   * @param {ConditionalOptions & { restrict?: boolean, purge?: boolean }} [options]
   * @returns {Promise<Deleted>}
   */
  async delete(key, options = {}) {
    const query = given([
      ["mode", options.restrict ? "restrict" : undefined], ["purge", options.purge || undefined], ["dry_run", options.dryRun || undefined],
    ]);
    const path = ROOT + segment(key);
    const answer = await this.transport.send({ method: "DELETE", path, query, headers: conditions(options), ...intent(options), options });
    return { key, warnings: answer.warnings };
  }

  /**
   * Undoes its deletion: it returns with its configs, as of a revision or a time (RFC 3339), or as it was deleted.
   * @param {string} key
   * @param {WriteOptions & { revision?: number, time?: string }} [options]
   */
  async undelete(key, options = {}) {
    const { revision, time } = options;
    return this.change(key, "POST", `${ROOT}${segment(key)}/undelete`, defined({ revision, time }), options);
  }

  /**
   * The deleted definitions that are kept, so that their deletion can be undone; the last deletion first.
   * @param {ReadOptions} [options]
   * @returns {Promise<{ key: string, revision: number, deletedAt: string, configs: number, bytes: number }[]>}
   */
  async deleted(options = {}) {
    const request = { method: "GET", path: "/api/v1/deleted_definition/", query: freshness(options), options };
    const { results } = (await this.transport.send(request)).data;
    return results.map((/** @type {Record<string, any>} */ kept) => (
      { key: kept.config_definition_key, revision: kept.deleted_revision, deletedAt: kept.deleted_at, configs: kept.configs, bytes: kept.bytes }));
  }

  /**
   * @param {string} key
   * @param {HistoryOptions} [options]
   */
  history(key, options = {}) {
    const query = [...given([["limit", options.pageSize ?? 100], ["before", options.before]]), ...freshness(options)];
    const request = { method: "GET", path: `${ROOT}${segment(key)}/history`, query, options };
    return new List(this.transport, request, (found) => records.past(found, (data) => (
      { indexes: /** @type {string[]} */ (data.indexes), schema: /** @type {JsonObject | null} */ (data.json_schema ?? null) })));
  }

  /**
   * @internal
   * @param {string} key
   * @param {string} name
   * @param {ReadOptions} options
   */
  part(key, name, options) {
    return this.transport.send({ method: "GET", path: `${ROOT}${segment(key)}/${name}`, query: freshness(options), options });
  }

  /**
   * @internal
   * @param {string} key
   * @param {string} method
   * @param {string} path
   * @param {unknown} body
   * @param {ConditionalOptions} options
   * @returns {Promise<DefinitionWritten>}
   */
  async change(key, method, path, body, options) {
    const query = given([["dry_run", options.dryRun || undefined]]);
    const answer = await this.transport.send({
      method, path, query, headers: conditions(options), body: stringify(body), ...intent(options), options,
    });
    return { key, revision: answer.recordRevision, warnings: answer.warnings };
  }
}
