// Changes as they happen: server-sent events, read with `fetch`, because an `EventSource` sends no key.
//
// Invariant: an event is passed on once, in the order of revisions. After the loss of a connection the next one goes on
// after the last event, at whatever node answers; a state that was cut begins anew, after a `reset`. In another cluster,
// as one that was restored from a backup, there is no such event: the watch has expired.
import { Moment, pause } from "./clock.js";
import { ApiError, ExpiredError, ProtocolError, UnavailableError, otherCluster, refusalOfEvent } from "./errors.js";
import { parse } from "./json.js";
import { filters, freshness, given, names } from "./query.js";
import * as records from "./records.js";

/** @import { StateEvent, WatchEvent, WatchOptions } from "./types.js" */
/** @import { Transport } from "./transport.js" */

/** After which time of silence a connection is dead: two and a half heartbeats. */
const SILENCE_MS = 25_000;
const PAUSE_MS = 250;
const PAUSE_MAX_MS = 5000;
/** What is not the end of a watch: another node may do, or the same one later. */
const MOMENTARY = new Set([429, 500, 502, 503, 504]);

/**
 * @param {Transport} transport
 * @param {WatchOptions} options
 * @returns {AsyncGenerator<WatchEvent, void, undefined>}
 */
export function watch(transport, options) {
  return new Watcher(transport, options).events();
}

export class Watcher {
  /**
   * @param {Transport} transport
   * @param {WatchOptions & { onProblem?: (error: unknown) => void }} options
   */
  constructor(transport, options) {
    this.transport = transport;
    this.options = options;
    this.query = subscription(options);
    /** Everything up to this revision was passed on. @type {number | null} */
    this.position = null;
    /** When the connection that is open was asked for. */
    this.openedAt = new Moment();
    /** The node of the connection. @type {string | null} */
    this.node = null;
    /** The id of the cluster that the events are of, where a node has told it. @type {string | null} */
    this.cluster = null;
    /** Whether a part of a state was passed on, and not its end. */
    this.isInState = false;
    this.startsAnew = options.initial === true;
    /** @type {AbortController | null} */
    this.connection = null;
  }

  /** Ends the connection; the next one goes on after `position`. */
  reconnect() { this.connection?.abort(); }

  /** Begins anew, with the present state. */
  restart() {
    this.position = null;
    this.startsAnew = true;
    this.isInState = true;
    this.reconnect();
  }

  /** @returns {AsyncGenerator<WatchEvent, void, undefined>} */
  async *events() {
    const { signal, giveUpAfterMs } = this.options;
    let pauseMs = PAUSE_MS;
    let heardAt = new Moment();
    while (!signal?.aborted) {
      const connection = new AbortController();
      const abort = () => connection.abort();
      signal?.addEventListener("abort", abort, { once: true });
      this.connection = connection;
      try {
        const { response, url } = await this.open(connection.signal);
        if (this.isInState) {
          this.isInState = false;
          yield { kind: "reset" };
        }
        for await (const frame of frames(response, connection, this.transport.silenceMs)) {
          // A restart that was asked for meanwhile: what comes is of the connection that ends.
          if (connection.signal.aborted) break;
          heardAt = new Moment();
          pauseMs = PAUSE_MS;
          const event = this.event(frame, url);
          if (event) yield event;
        }
      } catch (error) {
        if (signal?.aborted) return;
        if (!connection.signal.aborted) this.judge(error, heardAt, giveUpAfterMs);
      } finally {
        signal?.removeEventListener("abort", abort);
        connection.abort();
      }
      // Another node may have what this one could not send.
      this.transport.preferred = (this.transport.preferred + 1) % this.transport.urls.length;
      try {
        await pause(pauseMs * (0.5 + Math.random() / 2), signal);
      } catch (error) {
        if (signal?.aborted) return;
        throw error;
      }
      pauseMs = Math.min(2 * pauseMs, PAUSE_MAX_MS);
    }
  }

  /** @param {AbortSignal} signal */
  async open(signal) {
    /** @type {Record<string, string>} */
    const headers = { Accept: "text/event-stream" };
    const query = [...this.query];
    if (this.position !== null) headers["Last-Event-ID"] = String(this.position);
    else if (this.startsAnew) query.push(["initial", "true"]);
    else if (this.options.from !== undefined) query.push(["from", String(this.options.from)]);
    this.openedAt = new Moment();
    const opened = await this.transport.stream({ method: "GET", path: "/watch", query, headers }, signal);
    this.node = opened.response.headers.get("x-concord-node");
    const cluster = opened.response.headers.get("x-concord-cluster");
    if (this.position !== null && this.cluster !== null && cluster !== null && cluster !== this.cluster) throw otherCluster(opened.url);
    this.cluster = cluster ?? this.cluster;
    return opened;
  }

  /**
   * Decides whether a watch goes on after an error; throws the error where not.
   * @param {unknown} error
   * @param {Moment} heardAt
   * @param {number | undefined} giveUpAfterMs
   */
  judge(error, heardAt, giveUpAfterMs) {
    if (error instanceof ExpiredError) {
      const restarts = (this.options.onExpired ?? (this.options.initial ? "restart" : "throw")) === "restart";
      if (!restarts) throw error;
      this.options.onProblem?.(error);
      this.position = null;
      this.startsAnew = true;
      this.isInState = true;
      return;
    }
    if (error instanceof ApiError && !MOMENTARY.has(error.status)) throw error;
    if (giveUpAfterMs !== undefined && heardAt.ageMs() > giveUpAfterMs) {
      throw error instanceof Error && !(error instanceof TypeError) ? error : new UnavailableError(String(error), [String(error)]);
    }
    this.options.onProblem?.(error);
  }

  /**
   * @param {{ name: string, id: number | null, data: string }} frame
   * @param {string} url
   * @returns {WatchEvent | null}
   */
  event(frame, url) {
    let found;
    try {
      found = parse(frame.data);
    } catch (error) {
      throw new ProtocolError(`an event of ${url} is no JSON`, { cause: error });
    }
    if (frame.name === "error") throw refusalOfEvent(found, url);
    this.transport.environment?.leaveEvent(found);
    const isOld = frame.id !== null && this.position !== null && frame.id <= this.position && frame.name === "change";
    if (frame.id !== null) this.position = Math.max(frame.id, this.position ?? 0);
    if (isOld) return null;
    if (frame.name === "heartbeat") return { kind: "heartbeat", revision: found.revision };
    if (frame.name === "change") {
      const { revision, at, by, reason } = found;
      return { kind: "change", revision, at, by, reason, changes: found.changes.map(records.change) };
    }
    if (frame.name !== "state") return null; // Kinds that a later version adds.
    this.isInState = !found.complete;
    return this.state(found);
  }

  /**
   * @param {any} found
   * @returns {StateEvent}
   */
  state(found) {
    const source = { kind: /** @type {const} */ ("live"), node: this.node, revision: found.revision, ageMs: this.openedAt.ageMs() };
    return {
      kind: "state",
      revision: found.revision,
      definitions: found.definitions.map((/** @type {any} */ one) => records.definition(one)),
      configs: found.configs.map((/** @type {any} */ one) => records.config(one, one.config_definition_key, source)),
      complete: found.complete,
    };
  }
}

/**
 * The parameters that say what is watched.
 * @param {WatchOptions} options
 * @returns {[string, string][]}
 */
export function subscription(options) {
  return [
    ...names("definition", options.definitions),
    ...names("config_key", options.keys),
    ...filters(options.filter ?? {}),
    ...given([["search", options.search], ["prev", options.previous || undefined]]),
    ...freshness(options),
  ];
}

/**
 * The events in a body, wherever its bytes are cut. Silence ends the connection.
 * @param {Response} response
 * @param {AbortController} connection
 * @param {number} [silenceMs]
 * @returns {AsyncGenerator<{ name: string, id: number | null, data: string }, void, undefined>}
 */
export async function* frames(response, connection, silenceMs = SILENCE_MS) {
  if (!response.body) return;
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  /** The text since the last end of an event, in pieces. @type {string[]} */
  let pieces = [];
  // `fetch` of Node.js holds the signal of a body weakly: after a garbage collection an abort ends nothing by itself.
  const end = () => { reader.cancel().catch(() => {}); };
  connection.signal.addEventListener("abort", end, { once: true });
  try {
    for (;;) {
      if (connection.signal.aborted) return;
      const timer = setTimeout(() => connection.abort(), silenceMs);
      const { value, done } = await reader.read().finally(() => clearTimeout(timer));
      if (done) return;
      const text = decoder.decode(value, { stream: true });
      const last = pieces.at(-1) ?? "";
      // A large event comes in many pieces: it is put together once, when its end is there.
      if (!text.includes("\n\n") && !(last.endsWith("\n") && text.startsWith("\n"))) {
        if (text) pieces.push(text);
        continue;
      }
      const blocks = (pieces.join("") + text).split("\n\n");
      const rest = blocks.pop() ?? "";
      pieces = rest ? [rest] : [];
      for (const block of blocks) {
        const frame = frameOf(block);
        if (frame) yield frame;
      }
    }
  } finally {
    connection.signal.removeEventListener("abort", end);
    // The connection may be gone already, and what it would say about that was said.
    await reader.cancel().catch(() => {});
  }
}

/** @param {string} block */
function frameOf(block) {
  /** @type {string[]} */
  const data = [];
  let name = "message";
  let id = null;
  for (const line of block.split("\n")) {
    const end = line.indexOf(":");
    const [field, value] = end < 0 ? [line, ""] : [line.slice(0, end), line.slice(end + 1).replace(/^ /, "")];
    if (field === "event") name = value;
    else if (field === "id") id = Number(value);
    else if (field === "data") data.push(value);
  }
  return data.length > 0 ? { name, id, data: data.join("\n") } : null;
}
