// A client of one cluster.
import { Cache } from "./cache.js";
import { Configs, intent } from "./configs.js";
import { Definitions } from "./definitions.js";
import { violationsOf } from "./errors.js";
import { defined, stringify } from "./json.js";
import { List } from "./pages.js";
import { acrossListing, freshness, given, names } from "./query.js";
import * as records from "./records.js";
import { Transport } from "./transport.js";
import { watch } from "./watch.js";

/** @import { AcrossOptions, BatchResult, CacheOptions, CallOptions, ClusterStatus, ConcordOptions, Config, JsonObject, Operation, Parse, ReadOptions, ReadResult, Transaction, TransactionResult, WatchEvent, WatchOptions, WriteOptions } from "./types.js" */
/** @import { Answer, Request } from "./transport.js" */

export class Concord {
  /** @param {ConcordOptions} options */
  constructor(options) {
    /** @internal */
    this.transport = new Transport(options);
    /** The definitions: what configs there may be. */
    this.definitions = new Definitions(this.transport);
  }

  /** The environment; undefined where definition keys have no prefix. */
  get environment() { return this.transport.environment?.name; }

  /** The name of the reader; null where the client sends none. */
  get reader() { return this.transport.reader?.name ?? null; }

  /** The URLs of the nodes. */
  get urls() { return [...this.transport.urls]; }

  /**
   * The configs of a definition. `parse` makes a value of the program of their data, or throws.
   * @template [T=JsonObject]
   * @param {string} definition
   * @param {{ parse?: Parse<T> }} [options]
   * @returns {Configs<T>}
   */
  configs(definition, options = {}) {
    return new Configs(this.transport, definition, options.parse);
  }

  /**
   * The configs of several definitions.
   * @param {AcrossOptions} [options]
   * @returns {List<Config>}
   */
  listConfigs(options = {}) {
    const query = [...names("definition", options.definitions), ...acrossListing(options)];
    const request = { method: "GET", path: "/config", query, options };
    return new List(this.transport, request, (found, answer) => (
      records.config(found, found.config_definition_key, records.liveSource(answer))));
  }

  /**
   * Up to 1000 configs of any definitions, all of one revision. With `ifRevisionIsNot`, the revision of a config or the
   * `variant` of a candidate, what is still that is not sent again.
   * @param {{ definition: string, key: string, ifRevisionIsNot?: number | string }[]} configs
   * @param {ReadOptions & { revision?: number }} [options]
   * @returns {Promise<{ revision: number, results: ReadResult[] }>}
   */
  async readMany(configs, options = {}) {
    const body = stringify(defined({
      configs: configs.map(({ definition, key, ifRevisionIsNot }) => defined(
        { config_definition_key: definition, config_key: key, if_none_match: ifRevisionIsNot === undefined ? undefined : `"${ifRevisionIsNot}"` })),
      revision: options.revision,
    }));
    const answer = await this.transport.send({ method: "POST", path: "/read", query: freshness(options), body, isRead: true, options });
    const results = answer.data.results.map((/** @type {any} */ found, /** @type {number} */ place) => {
      const [status, definition, key] = [found.status, found.config_definition_key, found.config_key];
      records.checkIs(answer, { definition, key }, { definition: configs[place]?.definition, key: configs[place]?.key });
      if (status === "found") {
        return { status, definition, key, config: records.config(found.config, definition, records.liveSource(answer), { revision: found.revision, variant: records.variantIn(found) }) };
      }
      if (status === "not_modified") return { status, definition, key, revision: records.variantIn(found) === null ? found.revision : 0 };
      return { status, definition, key, violations: violationsOf(found) ?? [] };
    });
    return { revision: answer.data.revision, results };
  }

  /**
   * Several operations as one: all are done, or none. `op` makes them.
   * @param {Operation[]} operations
   * @param {WriteOptions} [options]
   * @returns {Promise<BatchResult>}
   */
  async batch(operations, options = {}) {
    return batchResult(await this.sendBatch({ operations }, options));
  }

  /**
   * Operations that rest on conditions.
   * @param {Transaction} transaction
   * @param {WriteOptions} [options]
   * @returns {Promise<TransactionResult>}
   */
  async transaction(transaction, options = {}) {
    const answer = await this.sendBatch(transaction, options);
    return { succeeded: answer.data.succeeded, ...batchResult(answer) };
  }

  /**
   * Makes a change request of operations that write; nothing is changed before others have approved it and it is applied.
   * The change request has its `change_id`, and the whole keys of its definitions.
   * @param {string} title
   * @param {Operation[]} operations
   * @param {CallOptions & { description?: string, reason?: string, idempotencyKey?: string }} [options]
   * @returns {Promise<JsonObject>}
   */
  async propose(title, operations, options = {}) {
    const body = stringify(defined({ title, description: options.description, operations }));
    return (await this.transport.send({ method: "POST", path: "/change_request/", body, ...intent(options), options })).data;
  }

  /**
   * The changes as they happen: each once, in order, over the loss of any node. Ends with `signal`, or when the iteration
   * is left.
   * @param {WatchOptions} [options]
   * @returns {AsyncGenerator<WatchEvent, void, undefined>}
   */
  watch(options = {}) {
    return watch(this.transport, options);
  }

  /**
   * A copy in memory of the configs of some definitions, kept up to date. Answers without asking anybody, also when no
   * node is left.
   * @param {string | string[]} definitions Keys, or beginnings with `*`.
   * @param {CacheOptions} [options]
   */
  cache(definitions, options = {}) {
    return new Cache(this.transport, typeof definitions === "string" ? [definitions] : definitions, options);
  }

  /**
   * Who the key is, and what it may do.
   * @param {CallOptions} [options]
   * @returns {Promise<JsonObject>}
   */
  async whoami(options = {}) {
    return (await this.transport.send({ method: "GET", path: "/whoami", options })).data;
  }

  /**
   * What the node that answers knows of the cluster.
   * @param {CallOptions} [options]
   * @returns {Promise<ClusterStatus>}
   */
  async cluster(options = {}) {
    return (await this.transport.send({ method: "GET", path: "/cluster", options })).data;
  }

  /**
   * Any other request of the interface, with the same failover and retries: the answer with its `data`.
   * @param {Request} request
   * @returns {Promise<Answer>}
   */
  request(request) {
    return this.transport.send(request);
  }

  /**
   * @internal
   * @param {object} body
   * @param {WriteOptions} options
   */
  sendBatch(body, options) {
    const query = given([["dry_run", options.dryRun || undefined]]);
    return this.transport.send({ method: "POST", path: "/batch", query, body: stringify(defined(body)), ...intent(options), options });
  }
}

/**
 * @param {Answer} answer
 * @returns {BatchResult}
 */
function batchResult(answer) {
  const results = answer.data.results.map((/** @type {any} */ found) => records.operationResult(found, records.liveSource(answer)));
  return { revision: answer.data.revision, results, warnings: answer.warnings };
}
