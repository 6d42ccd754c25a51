// What a cache says of what it follows: that the program runs well with it, or not.
//
// A rollout goes on by what its readers report. While a config that the cache holds is a candidate, the cache reports it
// every 20 seconds: `failed` with the reason if the `parse` of a view refuses the data, at once; otherwise `healthy`. One
// report is of all configs of a change request: it has failed if one of them has.
//
// Outside rollouts, the cache reports configs that a view refuses: `failed` every 20 seconds, and `healthy` once when it no
// longer does. So a fleet that runs well sends nothing.
//
// Invariants: one report at a time is under way. Nothing is reported of what a node has not sent since the start. A key that
// may not report is told so once for each change request or definition. Nothing that the program throws at it leaves it: that
// would end the program.
import { ConflictError, ForbiddenError, NotFoundError, messageOf } from "./errors.js";
import { stringify } from "./json.js";
import { randomId } from "./random.js";

/** @import { Cache } from "./cache.js" */

/** The pause between two reports of one change request. A report counts for a minute. */
const EVERY_MS = 20_000;
/** The same of failures: a new leader knows none, and must not wait long for them. */
const EVERY_FAILED_MS = 5_000;
/** The first report of a change request comes within this time, so that not all readers report in one moment. */
const FIRST_WITHIN_MS = 5000;
const TIMEOUT_MS = 5000;
/** How often the candidates are looked for where nothing wakes the cache. */
const LOOK_MS = 1000;
const DETAIL_BYTES_MAX = 1024;
/** The most issues of a validator that a reason names, the most parts of their paths, and the most characters of a part. */
const ISSUES_MAX = 32;
const PARTS_MAX = 32;
const PART_CHARACTERS_MAX = 256;
/** The most configs outside rollouts that a cache reports as failed at one time. */
const CONFIGS_MAX = 50;
/**
 * For how long nothing is reported of the configs of a definition after a node has said that this key may not, that there is
 * no such config, or that the cluster does not know such reports yet.
 */
const SILENCE_MS = 600_000;

/**
 * What there is to say of a change request, or of a config.
 * @typedef {object} Said
 * @property {string} path Where it is said.
 * @property {string} group Whom a refusal is about: the path of a change request, or the definition of a config.
 * @property {string | null} key The key of the config; null of a change request.
 * @property {string | null} reason Why something is wrong; null for `healthy`.
 * @property {number | null} revision That of a config; null of a change request.
 */

/**
 * @typedef {object} Turn
 * @property {Said | null} said What was reported last.
 * @property {Said | null} seen What was to report at the last look.
 * @property {number} at When it is reported again.
 */

export class Reporter {
  /** @param {Cache} cache */
  constructor(cache) {
    this.cache = cache;
    /** By the paths of reports. @type {Map<string, Turn>} */
    this.turns = new Map();
    /** Of what nothing is reported, and until when. Of a change request, as long as it is there. @type {Map<string, number>} */
    this.silent = new Map();
    /** Definitions of which a refusal was told. @type {Set<string>} */
    this.told = new Set();
    /** Whether something that nobody expected was told. */
    this.hasFailed = false;
    /** Tells programs with one name apart, as those on one host. */
    this.instance = randomId();
    /** For tests. */
    this.times = { everyMs: EVERY_MS, firstWithinMs: FIRST_WITHIN_MS, lookMs: LOOK_MS };
  }

  /** Reports until the cache ends. */
  async run() {
    const { signal } = this.cache.stop;
    if (this.cache.transport.reader === null) return;
    while (!signal.aborted) {
      let isSent = false;
      try {
        const due = this.due();
        if (due) await this.send(due);
        isSent = due !== null;
      } catch (error) {
        // It may be over at the next look.
        this.failed(error);
      }
      if (!isSent) await this.cache.somethingNew(this.times.lookMs);
    }
  }

  /** Tells the first error that is none of a node's. @param {unknown} error */
  failed(error) {
    if (this.hasFailed) return;
    this.hasFailed = true;
    this.cache.problem(error);
  }

  /** What there is to say, by the paths of the reports. */
  all() {
    /** @type {Map<string, Said>} */
    const all = new Map();
    if (this.cache.origin !== "live" || this.cache.isSuperseded) return all;
    for (const [definition, configs] of this.cache.configs) {
      for (const [key, { variant }] of configs) {
        if (!variant) continue;
        const path = `/change_request/${encodeURIComponent(variant)}/report`;
        const reason = all.get(path)?.reason ?? this.reasonOf(definition, key);
        all.set(path, { path, group: path, key: null, reason, revision: null });
      }
    }
    let count = 0;
    for (const { definition, values } of this.cache.views) {
      for (const [key, { from, invalid }] of values) {
        if (!invalid || from.variant || count >= CONFIGS_MAX) continue;
        const said = this.saidOf(definition, key, this.detailOf(definition, key, invalid.error));
        if (said && !all.has(said.path)) {
          all.set(said.path, said);
          count += 1;
        }
      }
    }
    for (const [path, { said }] of this.turns) {
      // It is refused no longer.
      const more = said && said.key !== null && !all.has(path) ? this.saidOf(said.group, said.key, null) : null;
      if (more) all.set(path, more);
    }
    return all;
  }

  /**
   * What there is to say of a config that is no candidate.
   * @param {string} definition
   * @param {string} key
   * @param {string | null} reason
   * @returns {Said | null}
   */
  saidOf(definition, key, reason) {
    const held = this.cache.configs.get(definition)?.get(key);
    if (!held || held.variant) return null;
    const path = `/config_definition/${encodeURIComponent(definition)}/config/${encodeURIComponent(key)}/report`;
    return { path, group: definition, key, reason, revision: held.revision ?? 0 };
  }

  /**
   * Why a view refuses a config, or null.
   * @param {string} definition
   * @param {string} key
   */
  reasonOf(definition, key) {
    for (const view of this.cache.views) {
      const invalid = view.definition === definition ? view.values.get(key)?.invalid : undefined;
      if (invalid) return this.detailOf(definition, key, invalid.error);
    }
    return null;
  }

  /**
   * Why data are refused, in a line that can be sent. The error is the program's: reading it may throw.
   * @param {string} definition
   * @param {string} key
   * @param {any} error
   */
  detailOf(definition, key, error) {
    let told = `${definition}/${key}: the validator refuses it, and its reason can't be read`;
    try {
      const issues = error?.cause?.issues;
      told = Array.isArray(issues) ? `${definition}/${key}: ${issues.slice(0, ISSUES_MAX).map(issueText).join("; ")}` : messageOf(error);
    } catch (thrown) {
      this.failed(thrown);
    }
    // A node refuses characters that nobody sees.
    return cut(told.slice(0, DETAIL_BYTES_MAX).replace(/[^\p{L}\p{N}\x20-\x7e]+/gu, " "));
  }

  /** The report that is due now. */
  due() {
    const [all, now] = [this.all(), performance.now()];
    for (const path of this.turns.keys()) if (!all.has(path)) this.turns.delete(path);
    for (const [group, until] of this.silent) if (until <= now || (until === Infinity && !all.has(group))) this.silent.delete(group);
    for (const said of all.values()) {
      if (this.silent.has(said.group)) continue;
      const soon = now + this.times.firstWithinMs * Math.random();
      const turn = this.turns.get(said.path) ?? { said: null, seen: null, at: soon };
      this.turns.set(said.path, turn);
      if (said.revision !== null && !isSame(turn.seen, said)) {
        // Many readers refuse one config in one moment: nobody waits for a report of it.
        turn.at = Math.min(turn.at, soon);
        turn.seen = said;
      }
      // That something is wrong in a rollout is said at once: the rollout ends by it.
      const isNews = said.revision === null && said.reason !== null && !isSame(turn.said, said);
      if (turn.at <= now || isNews) return said;
    }
    return null;
  }

  /** @param {Said} said */
  async send(said) {
    const { transport, stop } = this.cache;
    const { reader } = transport;
    if (reader === null) return;
    const { path, group, reason, revision } = said;
    const isOfConfig = revision !== null;
    const state = reason === null ? { state: "healthy" } : { state: "failed", detail: reason };
    const body = stringify({ reader: reader.name, labels: reader.labels, instance: this.instance, ...state, ...(isOfConfig ? { revision } : {}) });
    const everyMs = reason === null || isOfConfig ? this.times.everyMs : Math.min(this.times.everyMs, EVERY_FAILED_MS);
    if (isOfConfig && reason === null) this.turns.delete(path);
    else this.turns.set(path, { said, seen: said, at: performance.now() + everyMs * (0.9 + Math.random() / 10) });
    try {
      // A copy of a report is the same report: it is sent again as a read is.
      const options = { signal: stop.signal, timeoutMs: TIMEOUT_MS };
      await transport.send({ method: "POST", path, body, isRead: true, options });
    } catch (error) {
      // Who may not even know of a change request is told that there is none. Any other refusal may be none at the next turn.
      const isTold = error instanceof ForbiddenError || error instanceof NotFoundError;
      const isEarly = isOfConfig && error instanceof ConflictError;
      if (stop.signal.aborted || !(isTold || isEarly)) return;
      this.turns.delete(path);
      this.silent.set(group, isOfConfig ? performance.now() + SILENCE_MS : Infinity);
      if (isOfConfig && this.told.has(group)) return;
      if (isOfConfig) this.told.add(group);
      this.cache.problem(error);
    }
  }
}

/**
 * Whether there is the same to say.
 * @param {Said | null} one
 * @param {Said} other
 */
function isSame(one, other) {
  return one !== null && one.reason === other.reason && one.revision === other.revision;
}

/**
 * The place of an issue of a validator, as zod, valibot and others of Standard Schema tell it, and its kind where it has
 * one. Not its message: that may have values of the data, which may be secret.
 * @param {any} issue
 */
function issueText(issue) {
  const path = issue?.path;
  const parts = Array.isArray(path) ? path.slice(0, PARTS_MAX).map(partText) : path ? [null] : [];
  const kind = [issue?.code, issue?.type, issue?.kind].find((each) => typeof each === "string" && /^\w[\w.-]{0,63}$/.test(each));
  // Without a part that can't be read, it would be the path of something else.
  const place = parts.includes(null) ? "" : parts.map((part) => `/${part}`).join("") || "/";
  return [place, kind].filter(Boolean).join(" ") || "an issue";
}

/** A part of a path: a key, or an object with one. Null for anything else. @param {any} part @returns {string | null} */
function partText(part) {
  const key = typeof part === "object" && part !== null ? part.key : part;
  if (typeof key === "symbol") return (key.description ?? "").slice(0, PART_CHARACTERS_MAX);
  return typeof key === "string" || typeof key === "number" ? String(key).slice(0, PART_CHARACTERS_MAX) : null;
}

/** So many bytes of a text, and no half character. @param {string} text */
function cut(text) {
  const bytes = new TextEncoder().encode(text);
  if (bytes.length <= DETAIL_BYTES_MAX) return text;
  return new TextDecoder().decode(bytes.slice(0, DETAIL_BYTES_MAX)).replace(/\ufffd+$/, "");
}
