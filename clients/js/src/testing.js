// For the tests of programs: a cache without a cluster, and a node of one's own.
import { Cache } from "./cache.js";
import { Concord } from "./client.js";
import { Moment } from "./clock.js";
import { parse, stringify } from "./json.js";
import { change } from "./records.js";
import { Transport } from "./transport.js";

/** @import { ConcordOptions, JsonObject } from "./types.js" */

const START_TRIES = 5;
const END_MS = 20_000;

/**
 * A cache of the given configs, by definition and key. It is read as a cache is, with views and listeners, and a test
 * changes it.
 */
export class MemoryCache extends Cache {
  /** @param {Record<string, Record<string, JsonObject>>} [configs] */
  constructor(configs = {}) {
    super(new Transport({ urls: "http://memory", key: "", reader: null }), ["*"], {});
    Object.assign(this, { origin: "live", revision: 0, confirmed: new Moment(), node: "memory" });
    this.setConnected(true);
    for (const [definition, byKey] of Object.entries(configs)) {
      for (const [key, data] of Object.entries(byKey)) this.put(definition, key, data);
    }
  }

  /**
   * Creates or replaces a config, as somebody else would do in the cluster. Returns its revision.
   * @param {string} definition
   * @param {string} key
   * @param {JsonObject} data
   */
  put(definition, key, data) {
    const type = this.held(definition).has(key) ? "config_updated" : "config_created";
    return this.happens({ type, config_definition_key: definition, config_key: key, data: parse(stringify(data)) });
  }

  /**
   * Deletes a config.
   * @param {string} definition
   * @param {string} key
   */
  delete(definition, key) {
    return this.happens({ type: "config_deleted", config_definition_key: definition, config_key: key });
  }

  /**
   * Whether nodes confirm the values. If not, their source is `cache`.
   * @param {boolean} isConnected
   */
  setConnected(isConnected) { this.freshForMs = isConnected ? Infinity : -1; }

  /** There is nothing to follow. @internal @override */
  async run() {}

  /** @internal @param {JsonObject} found */
  happens(found) {
    const revision = (this.revision ?? 0) + 1;
    this.apply(revision, [change(found)]);
    this.advance(revision);
    return revision;
  }
}

/**
 * Starts a node without data, for Node.js. It ends with `stop`, and with this process.
 * @param {string} [binary] The program `concord`; by default that of `CONCORD_BIN`, or of the `PATH`.
 * @returns {Promise<{ urls: string[], key: string, client: (options?: Partial<ConcordOptions>) => Concord, stop: () => Promise<void> }>}
 */
export async function startNode(binary = process.env.CONCORD_BIN ?? "concord") {
  const { spawn } = await import("node:child_process");
  for (let attempt = 0; attempt < START_TRIES; attempt += 1) {
    // Other tests look for ports at the same time.
    const port = String(20_000 + Math.floor(Math.random() * 40_000));
    const started = spawn(binary, ["demo", "--nodes", "1", "--no-sample", "--output", "json", "--port", port], { stdio: ["pipe", "pipe", "inherit"] });
    const ended = new Promise((resolve, reject) => {
      started.once("exit", resolve);
      started.once("error", reject);
    });
    const line = await Promise.race([firstLine(started.stdout), ended.then(() => null)]);
    if (line === null) continue;
    const { urls, key } = JSON.parse(line);
    return {
      urls,
      key,
      client: (options) => new Concord({ urls, key, ...options }),
      async stop() {
        const timer = setTimeout(() => started.kill("SIGKILL"), END_MS);
        started.stdin.end();
        await ended;
        clearTimeout(timer);
      },
    };
  }
  throw new Error(`\`${binary} demo\` does not start: it said why to stderr`);
}

/**
 * The first line of a stream; null where it ends without one.
 * @param {AsyncIterable<Buffer>} stream
 */
async function firstLine(stream) {
  let text = "";
  for await (const part of stream) {
    text += part;
    if (text.includes("\n")) return text;
  }
  return null;
}
