// Typed access to the configs of one definition in a cache.
//
// Invariant: data that the validator refuses never take the place of a value that it took. The value before stays, with
// its age growing, and `invalid` says why.
import { Moment } from "./clock.js";
import { DataError } from "./errors.js";
import { defined } from "./json.js";
import { parsed } from "./records.js";

/** @import { Cache } from "./cache.js" */
/** @import { Held } from "./held.js" */
/** @import { CacheChange, Entry, Parse } from "./types.js" */

/**
 * @template T
 * @typedef {object} Value
 * @property {T | undefined} data Undefined where no data were ever valid.
 * @property {Held} from The record that the value was made of.
 * @property {{ revision: number | null, error: unknown } | null} invalid
 * @property {Moment | null} until Until when the value was that of the cluster, where it no longer is.
 */

/** @template T */
export class View {
  /**
   * @param {Cache} cache
   * @param {string} definition
   * @param {Parse<T>} [parse]
   */
  constructor(cache, definition, parse) {
    this.definition = definition;
    /** @internal */
    this.cache = cache;
    /** @internal */
    this.parse = parse;
    /** @internal @type {Map<string, Value<T>>} */
    this.values = new Map();
    /** @internal @type {Set<(change: CacheChange<T>) => void>} */
    this.listeners = new Set();
    for (const [key, held] of cache.held(definition)) this.values.set(key, this.valueOf(key, held, undefined));
  }

  /**
   * The config's value, from memory; undefined where there is none.
   * @param {string} key
   * @returns {T | undefined}
   */
  get(key) {
    const value = this.values.get(key);
    if (value === undefined) return this.absent(key)?.data;
    if (value.data === undefined) throw value.invalid?.error;
    return value.data;
  }

  /**
   * The config's value, with where it came from and how old it may be.
   * @param {string} key
   * @returns {Entry<T> | undefined}
   */
  entry(key) {
    const value = this.values.get(key);
    if (value === undefined) return this.absent(key);
    if (value.data === undefined) throw value.invalid?.error;
    let source = this.cache.source();
    if (value.until) source = { ...source, kind: source.kind === "file" ? "file" : "cache", ageMs: value.until.ageMs() };
    return { definition: this.definition, key, data: value.data, revision: value.from.revision, variant: value.from.variant ?? null, source, redacted: value.from.redacted ?? [], invalid: value.invalid };
  }

  /** The keys that there are. */
  keys() {
    if (this.values.size === 0) this.cache.source();
    return [...this.values.keys()];
  }

  /** The keys and values; those that were never valid are left out. */
  entries() {
    /** @type {[string, T][]} */
    const found = [];
    for (const [key, value] of this.values) if (value.data !== undefined) found.push([key, value.data]);
    if (found.length === 0) this.cache.source();
    return found;
  }

  /**
   * Calls back after each change of a value; returns what ends that.
   * @param {(change: CacheChange<T>) => void} listener
   * @returns {() => void}
   */
  onChange(listener) {
    this.listeners.add(listener);
    return () => { this.listeners.delete(listener); };
  }

  /**
   * @internal
   * @param {string} key
   * @returns {Entry<T> | undefined}
   */
  absent(key) {
    const found = this.cache.builtIn(this.definition, key);
    if (!found) return undefined;
    return { ...found, data: parsed(this.parse, found.data, this.definition, key) };
  }

  /**
   * @internal
   * @param {string} key
   * @param {Held | undefined} held
   */
  changed(key, held) {
    const before = this.values.get(key);
    if (held === undefined) this.values.delete(key);
    else this.values.set(key, this.valueOf(key, held, before));
    const after = this.values.get(key);
    if (before?.data === after?.data) return;
    const change = { definition: this.definition, key, data: after?.data, previous: before?.data, revision: held?.revision ?? null, variant: held?.variant ?? null };
    for (const listener of this.listeners) this.cache.guarded(() => listener(change));
  }

  /**
   * @internal
   * @param {string} key
   * @param {Held} held
   * @param {Value<T> | undefined} before
   * @returns {Value<T>}
   */
  valueOf(key, held, before) {
    try {
      return { data: parsed(this.parse, held.data, this.definition, key), from: held, invalid: null, until: null };
    } catch (error) {
      if (!(error instanceof DataError)) throw error;
      this.cache.problem(error);
      const invalid = { revision: held.revision, error };
      if (before && before.data !== undefined) {
        const until = before.until ?? this.cache.confirmed ?? new Moment(-Infinity, -Infinity);
        held.good = defined({ data: before.from.data, revision: before.from.revision, variant: before.from.variant, untilWallMs: until.wall });
        return { data: before.data, from: before.from, invalid, until };
      }
      return this.stored(key, held, invalid);
    }
  }

  /**
   * The value before one that is not valid, of an earlier run.
   * @internal
   * @param {string} key
   * @param {Held} held
   * @param {{ revision: number | null, error: unknown }} invalid
   * @returns {Value<T>}
   */
  stored(key, held, invalid) {
    const nothing = { data: undefined, from: held, invalid, until: null };
    if (!held.good) return nothing;
    const from = { ...held, data: held.good.data, revision: held.good.revision, variant: held.good.variant };
    try {
      return { data: parsed(this.parse, from.data, this.definition, key), from, invalid, until: Moment.atWall(held.good.untilWallMs) };
    } catch (error) {
      if (error instanceof DataError) return nothing;
      throw error;
    }
  }
}
