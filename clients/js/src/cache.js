// A copy in memory of the configs of some definitions, kept up to date by a watch.
//
// A watch says what has changed; its silence does not say that nothing has, as the node may have lost the cluster. So the
// cluster is asked every few seconds, by a linearizable read, which revision it has. Once everything up to there is in the
// copy, all that was acknowledged before the question is known. The age of a value counts from the beginning of the last
// such question.
//
// The nodes may be those of another cluster from one moment to the next: of one that was restored from a backup. Its id is
// another one, which each answer about changes tells, or its revision is lower. Then nothing confirms the copy any more,
// and the present state is taken.
//
// Invariants: a value is never older than its age says, and `live` only while that is short. The revision never goes back
// while the cluster is the same. What is known is replaced as a whole by a new state, never by a part of one.
import { Moment, pause } from "./clock.js";
import { ExpiredError, NotReadyError, ProtocolError, otherCluster } from "./errors.js";
import { frozen, put } from "./held.js";
import { stringify } from "./json.js";
import { change } from "./records.js";
import { Reporter } from "./report.js";
import { storedIn, textOf } from "./stored.js";
import { integer } from "./transport.js";
import { View } from "./view.js";
import { Watcher, subscription } from "./watch.js";

/** @import { CacheChange, CacheOptions, Change, Config, Entry, JsonObject, Parse, Source, StateEvent, WatchEvent } from "./types.js" */
/** @import { Held } from "./held.js" */
/** @import { Answer, Transport } from "./transport.js" */

const CONFIRM_MS = 5000;
/** How often the changes up to a revision are asked for before that is left to the next question. */
const CATCH_UP_MAX = 20;
/** The age in the storage is not older than this, while the cluster is there. */
const SAVE_CONFIRMED_MS = 15_000;

export class Cache {
  /**
   * @param {Transport} transport
   * @param {string[]} definitions
   * @param {CacheOptions} options
   */
  constructor(transport, definitions, options) {
    if (definitions.length === 0) throw new TypeError("a cache needs a definition");
    /** @internal */
    this.transport = transport;
    /** @internal */
    this.definitions = definitions;
    /** @internal */
    this.options = options;
    /** @internal */
    this.confirmMs = options.confirmMs ?? CONFIRM_MS;
    /** @internal */
    this.freshForMs = options.freshForMs ?? 2 * this.confirmMs;
    /** @internal @type {Map<string, Map<string, Held>>} */
    this.configs = new Map();
    /** @internal @type {"nothing" | "file" | "live"} */
    this.origin = "nothing";
    /** Everything up to this revision is known. @internal @type {number | null} */
    this.revision = null;
    /** When everything acknowledged was known. @internal @type {Moment | null} */
    this.confirmed = null;
    /** @internal @type {string | null} */
    this.node = null;
    /** The id of the cluster that the content is of, where a node has told it. @internal @type {string | null} */
    this.cluster = null;
    /** The nodes are, or may be, those of another cluster than the content, or of an earlier state of it. @internal */
    this.isSuperseded = false;
    /** The parts of a state that is not complete yet. @internal @type {StateEvent[]} */
    this.parts = [];
    /** Counts the states: an answer to a question about another one says nothing. @internal */
    this.generation = 0;
    /** @internal @type {Set<View<any>>} */
    this.views = new Set();
    /** @internal @type {Set<(change: CacheChange) => void>} */
    this.listeners = new Set();
    /** @internal @type {Set<() => void>} */
    this.waiting = new Set();
    /** @internal */
    this.stop = new AbortController();
    /** What the store lacks. @internal @type {"nothing" | "age" | "content"} */
    this.unsaved = "nothing";
    /** @internal */
    this.savedAt = new Moment();
    /** Why the nodes refuse the watch; it is tried again. @internal @type {unknown} */
    this.failure = null;
    const { filter, keys } = options;
    /** @internal */
    this.selection = { definitions, filter, keys };
    const signal = this.stop.signal;
    const onProblem = (/** @type {unknown} */ error) => {
      // A node does not know the position, which may be that of another cluster.
      if (error instanceof ExpiredError) this.isSuperseded = true;
      this.problem(error);
    };
    /** @internal */
    this.watcher = new Watcher(transport, { ...this.selection, initial: true, onExpired: "restart", signal, onProblem });
    /** Done when what an earlier run stored is loaded. @internal */
    this.loading = this.load();
    /** @internal */
    this.reporter = new Reporter(this);
    /** @internal */
    this.running = this.run();
  }

  /**
   * Waits until the cluster has answered; after `timeoutMs` (3,000) what an earlier run stored is enough, or a default.
   * Without any of it: `NotReadyError`.
   * @param {{ timeoutMs?: number, signal?: AbortSignal }} [options]
   * @returns {Promise<this>}
   */
  async ready({ timeoutMs = 3000, signal } = {}) {
    const until = performance.now() + timeoutMs;
    await this.loading;
    while (this.origin !== "live" && !this.failure && performance.now() < until) {
      await this.somethingNew(Math.min(until - performance.now(), 1000), signal);
    }
    if (this.failure) throw this.failure;
    if (this.origin === "nothing" && !this.options.defaults) throw this.notReady();
    return this;
  }

  /**
   * The data of a config, from memory; undefined where there is none.
   * @param {string} definition
   * @param {string} key
   * @returns {JsonObject | undefined}
   */
  get(definition, key) {
    return this.configs.get(definition)?.get(key)?.data ?? this.builtIn(definition, key)?.data;
  }

  /**
   * A config, with where it came from and how old it may be.
   * @param {string} definition
   * @param {string} key
   * @returns {Entry | undefined}
   */
  entry(definition, key) {
    const held = this.configs.get(definition)?.get(key);
    if (!held) return this.builtIn(definition, key);
    return { definition, key, data: held.data, revision: held.revision, variant: held.variant ?? null, source: this.source(), redacted: held.redacted ?? [], invalid: null };
  }

  /**
   * The keys of a definition's configs.
   * @param {string} definition
   */
  keys(definition) {
    this.source();
    return [...(this.configs.get(definition)?.keys() ?? [])];
  }

  /**
   * Where what is known came from, and how old it may be. `NotReadyError` where nothing is known.
   * @returns {Source}
   */
  source() {
    if (this.origin === "nothing") {
      if (this.options.defaults) return { kind: "default", node: null, revision: null, ageMs: Infinity };
      throw this.notReady();
    }
    const ageMs = this.confirmed?.ageMs() ?? Infinity;
    const isLive = ageMs <= this.freshForMs && !this.isSuperseded;
    const kind = this.origin === "file" ? "file" : isLive ? "live" : "cache";
    return { kind, node: this.node, revision: this.revision, ageMs };
  }

  /**
   * Typed access to the configs of a definition. Data that `parse` refuses do not take the place of those that it took.
   * @template [T=JsonObject]
   * @param {string} definition
   * @param {{ parse?: Parse<T> }} [options]
   * @returns {View<T>}
   */
  view(definition, options = {}) {
    const view = new View(this, definition, options.parse);
    this.views.add(view);
    return view;
  }

  /**
   * Calls back after each change; returns what ends that.
   * @param {(change: CacheChange) => void} listener
   * @returns {() => void}
   */
  onChange(listener) {
    this.listeners.add(listener);
    return () => { this.listeners.delete(listener); };
  }

  /** Ends the cache; what is known is stored. */
  async close() {
    this.stop.abort();
    this.wake();
    await this.running;
  }

  /** @internal @param {string} definition */
  held(definition) { return this.configs.get(definition) ?? new Map(); }

  /**
   * The default of a config, while nothing else is known.
   * @internal
   * @param {string} definition
   * @param {string} key
   * @returns {Entry | undefined}
   */
  builtIn(definition, key) {
    const source = this.source();
    const data = source.kind === "default" ? this.options.defaults?.[definition]?.[key] : undefined;
    return data && { definition, key, data, revision: null, variant: null, source, redacted: [], invalid: null };
  }

  /** @internal @param {unknown} error */
  problem(error) {
    try {
      this.options.onProblem?.(error);
    } catch {
      // What the program throws at a problem has nobody else to be told to, and must not end what follows.
    }
  }

  /** Calls what is not the cache's: its error is told and ends nothing. @internal @param {() => void} call */
  guarded(call) {
    try {
      call();
    } catch (error) {
      this.problem(error);
    }
  }

  /** @internal */
  notReady() {
    return new NotReadyError(`nothing is known of ${this.definitions.join(", ")}: no node has answered, and nothing is stored`);
  }

  /** Keeps the cache until the end. @internal */
  async run() {
    await Promise.all([this.follow(), this.confirmAlways(), this.keep(), this.reporter.run()]);
  }

  /** Follows the changes until the end. @internal */
  async follow() {
    do {
      try {
        for await (const event of this.watcher.events()) {
          this.failure = null;
          this.take(event);
        }
      } catch (error) {
        // The key was rotated or lost its right, for example: it may be good again, or another take its place.
        this.failure = error;
        this.problem(error);
        this.wake();
      }
    } while (await this.sleeps(this.confirmMs * (0.5 + Math.random() / 2)));
  }

  /** @internal @param {WatchEvent} event */
  take(event) {
    if (event.kind === "reset") this.parts = [];
    if (event.kind === "state") {
      this.parts.push(event);
      if (event.complete) this.replace();
    }
    if (this.origin !== "live" || this.isSuperseded) return;
    if (event.kind === "change") this.apply(event.revision, event.changes);
    if (event.kind === "change" || event.kind === "heartbeat") this.advance(event.revision);
  }

  /** Takes a complete state for what was known. @internal */
  replace() {
    const parts = this.parts;
    this.parts = [];
    /** @type {Map<string, Map<string, Held>>} */
    const fresh = new Map();
    for (const part of parts) {
      for (const found of part.configs) {
        const known = this.configs.get(found.definition)?.get(found.key);
        const held = known && isSame(known, found) && this.origin === "live" ? known : { ...heldOf(found, found.revision), good: known?.good };
        put(fresh, found.definition, found.key, held);
      }
    }
    const old = this.configs;
    this.configs = fresh;
    this.generation += 1;
    this.origin = "live";
    this.revision = parts.at(-1)?.revision ?? null;
    this.confirmed = this.watcher.openedAt;
    this.node = this.watcher.node;
    this.cluster = this.watcher.cluster;
    this.isSuperseded = false;
    for (const [definition, configs] of old) {
      for (const [key, held] of configs) if (!fresh.get(definition)?.has(key)) this.tell(definition, key, undefined, held);
    }
    for (const [definition, configs] of fresh) {
      for (const [key, held] of configs) {
        const before = old.get(definition)?.get(key);
        if (before !== held) this.tell(definition, key, held, before);
      }
    }
    this.unsaved = "content";
    this.wake();
  }

  /**
   * @internal
   * @param {number} revision
   * @param {Change[]} changes
   */
  apply(revision, changes) {
    if (this.revision !== null && revision <= this.revision) return;
    for (const one of changes) {
      const configs = this.configs.get(one.definition);
      if (one.key === null) {
        if (one.type !== "definition_deleted") continue;
        this.configs.delete(one.definition);
        for (const [key, held] of configs ?? []) this.tell(one.definition, key, undefined, held);
        continue;
      }
      const before = configs?.get(one.key);
      if (one.data !== null && (one.type === "config_created" || one.type === "config_updated")) {
        const held = heldOf({ ...one, data: one.data }, one.revision ?? revision);
        put(this.configs, one.definition, one.key, held);
        this.tell(one.definition, one.key, held, before);
      } else if (before) {
        configs?.delete(one.key);
        this.tell(one.definition, one.key, undefined, before);
      }
    }
    this.unsaved = "content";
  }

  /** @internal @param {number} revision */
  advance(revision) { this.revision = Math.max(revision, this.revision ?? 0); }

  /**
   * @internal
   * @param {string} definition
   * @param {string} key
   * @param {Held | undefined} held
   * @param {Held | undefined} before
   */
  tell(definition, key, held, before) {
    for (const view of this.views) if (view.definition === definition) view.changed(key, held);
    const told = { definition, key, data: held?.data, previous: before?.data, revision: held?.revision ?? null, variant: held?.variant ?? null };
    for (const listener of this.listeners) this.guarded(() => listener(told));
  }

  /** Asks every few seconds whether what is known is all. @internal */
  async confirmAlways() {
    /** How many questions in a row had changes that the watch had not told. */
    let behind = 0;
    while (await this.sleeps(this.confirmMs * (0.75 + Math.random() / 4))) {
      if (this.origin !== "live" || this.failure || this.isSuperseded) continue;
      try {
        behind = (await this.confirm()) ? behind + 1 : 0;
        if (behind > 1) this.watcher.reconnect();
      } catch (error) {
        if (this.stop.signal.aborted) return;
        if (error instanceof ExpiredError) this.supersede(error);
        // Whatever it is, it does not end what asks.
        else this.problem(error);
      }
    }
  }

  /**
   * Asks which revision the cluster has, by a linearizable read: it has every write that was acknowledged before. When
   * everything up to there is known, the cache is as old as the question. Whether there were changes that were not known.
   * @internal
   */
  async confirm() {
    const [generation, known, asked] = [this.generation, this.revision ?? 0, new Moment()];
    // Without `from`, a poll tells the revision that a linearizable read sees. It returns no earlier changes.
    const [answer, next] = await this.poll([["wait", "0"]]);
    const wanted = next - 1;
    if (generation !== this.generation) return false;
    if (this.isOfOther(answer) || wanted < known) {
      this.supersede(otherCluster(answer.url));
      return false;
    }
    let wasBehind = false;
    // The watch may not have said yet that there is nothing: what is of other definitions, it says every ten seconds.
    for (let attempt = 0; (this.revision ?? 0) < wanted && attempt < CATCH_UP_MAX; attempt += 1) {
      if (await this.catchUp(attempt === 0 ? 0 : 1)) wasBehind = true;
      if (generation !== this.generation) return false;
    }
    if ((this.revision ?? 0) >= wanted) this.confirmedAt(asked, answer.node);
    return wasBehind;
  }

  /**
   * Takes the next changes from a node. Whether there were some that were not known.
   * @internal
   * @param {number} waitS
   */
  async catchUp(waitS) {
    const generation = this.generation;
    const [answer, next] = await this.poll([["from", String((this.revision ?? 0) + 1)], ["wait", String(waitS)]]);
    if (generation !== this.generation) return false;
    if (this.isOfOther(answer)) {
      this.supersede(otherCluster(answer.url));
      return false;
    }
    const before = this.revision ?? 0;
    const events = answer.data?.events ?? [];
    for (const event of events) {
      this.apply(event.revision, event.changes.map(change));
      this.advance(event.revision);
    }
    this.advance(next - 1);
    return events.some((/** @type {any} */ event) => event.revision > before);
  }

  /**
   * The answer to a poll of what is followed, and from where the next one goes on.
   * @internal
   * @param {[string, string][]} more
   * @returns {Promise<[Answer, number]>}
   */
  async poll(more) {
    const query = /** @type {[string, string][]} */ ([...subscription(this.selection), ...more]);
    const answer = await this.transport.send({ method: "GET", path: "/changes", query, options: this.patience() });
    const next = integer(answer.headers.get("x-concord-next-from"));
    if (next === null) throw new ProtocolError(`${answer.url}: the answer has no X-Concord-Next-From`);
    return [answer, next];
  }

  /** @internal @param {Answer} answer */
  isOfOther(answer) { return this.cluster !== null && answer.cluster !== null && answer.cluster !== this.cluster; }

  /** What is known may be of a cluster that the nodes are no longer of: the present state is asked for. @internal @param {ExpiredError} error */
  supersede(error) {
    this.isSuperseded = true;
    // An answer to an earlier question says nothing of what comes.
    this.generation += 1;
    this.problem(error);
    this.watcher.restart();
    this.wake();
  }

  /** @internal */
  patience() { return { signal: this.stop.signal, timeoutMs: Math.max(2 * this.confirmMs, 2000) }; }

  /**
   * @internal
   * @param {Moment} asked
   * @param {string | null} node
   */
  confirmedAt(asked, node) {
    if (this.confirmed && !asked.isAfter(this.confirmed)) return;
    this.confirmed = asked;
    this.node = node;
    if (this.unsaved === "nothing") this.unsaved = "age";
    this.wake();
  }

  /** Loads what an earlier run stored. @internal */
  async load() {
    const { storage } = this.options;
    if (storage) await this.storing(async () => this.restore(await storage.load()));
  }

  /** Stores what is known, until the end. @internal */
  async keep() {
    if (!this.options.storage) return;
    await this.loading;
    while (await this.sleeps(this.options.saveMs ?? 1000)) {
      if (this.unsaved === "content" || (this.unsaved === "age" && this.savedAt.ageMs() > SAVE_CONFIRMED_MS)) await this.save();
    }
    if (this.unsaved !== "nothing") await this.save();
  }

  /** @internal */
  async save() {
    const { storage } = this.options;
    if (!storage || this.origin !== "live") return;
    const before = this.unsaved;
    this.unsaved = "nothing";
    const text = textOf(this);
    if (!(await this.storing(async () => storage.save(text)))) this.unsaved = before;
    this.savedAt = new Moment();
  }

  /** Whether it succeeded. @internal @param {() => Promise<void>} call */
  async storing(call) {
    try {
      await call();
      return true;
    } catch (error) {
      this.problem(error);
      return false;
    }
  }

  /** @internal @param {string | null} text */
  restore(text) {
    if (text === null || this.origin !== "nothing") return;
    const stored = storedIn(text, this.selection, this.transport.environment?.name);
    for (const [definition, key, held] of stored.configs) put(this.configs, definition, key, { ...held, data: frozen(held.data) });
    this.origin = "file";
    this.revision = stored.revision;
    this.node = stored.node;
    this.confirmed = stored.confirmed;
    for (const [definition, configs] of this.configs) for (const [key, held] of configs) this.tell(definition, key, held, undefined);
    this.wake();
  }

  /** Whether the cache goes on after a pause. @internal @param {number} ms */
  async sleeps(ms) {
    try {
      await pause(ms, this.stop.signal);
      return true;
    } catch (error) {
      if (this.stop.signal.aborted) return false;
      throw error;
    }
  }

  /** @internal */
  wake() {
    for (const resolve of this.waiting) resolve();
    this.waiting.clear();
  }

  /**
   * @internal
   * @param {number} ms
   * @param {AbortSignal} [signal]
   */
  async somethingNew(ms, signal) {
    const stop = new AbortController();
    const end = () => stop.abort();
    signal?.addEventListener("abort", end, { once: true });
    this.waiting.add(end);
    try {
      await pause(Math.max(ms, 0), stop.signal);
    } catch (error) {
      if (!stop.signal.aborted) throw error;
    } finally {
      this.waiting.delete(end);
      signal?.removeEventListener("abort", end);
    }
    signal?.throwIfAborted();
  }
}

/**
 * A config as it is held. A candidate has no revision.
 * @param {{ data: JsonObject, redacted: string[], variant: string | null }} found
 * @param {number | null} revision
 * @returns {Held}
 */
function heldOf({ data, redacted, variant }, revision) {
  const held = { data: frozen(data), revision: variant === null ? revision : 0, redacted };
  return variant === null ? held : { ...held, variant };
}

/**
 * Whether a config is still what is held. Two editions of a change request have the same id, so the data decide.
 * @param {Held} held
 * @param {Config} found
 */
function isSame(held, found) {
  if ((held.variant ?? null) !== found.variant || held.revision !== found.revision) return false;
  return found.variant === null || stringify(held.data) === stringify(found.data);
}
