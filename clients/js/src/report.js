// What a cache says of the candidates that it follows: that the program runs well with them, or not.
//
// A rollout goes on by what its readers report. While a config that the cache holds is a candidate, the cache reports it
// every 20 seconds: `failed` with the reason if the `parse` of a view refuses the data, at once; otherwise `healthy`. One
// report is of all configs of a change request: it has failed if one of them has.
//
// Invariants: one report at a time is under way. Nothing is reported of what a node has not sent since the start. A key that
// may not report is told so once for each change request.
import { ForbiddenError, NotFoundError } from "./errors.js";
import { stringify } from "./json.js";

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

/**
 * @typedef {object} Turn
 * @property {string | null} said The reason that was reported last; null for `healthy`.
 * @property {number} at When it is reported again.
 */

export class Reporter {
  /** @param {Cache} cache */
  constructor(cache) {
    this.cache = cache;
    /** @type {Map<string, Turn>} */
    this.turns = new Map();
    /** Change requests of which the key may not report. @type {Set<string>} */
    this.forbidden = new Set();
    /** For tests. */
    this.times = { everyMs: EVERY_MS, firstWithinMs: FIRST_WITHIN_MS };
  }

  /** Reports until the cache ends. */
  async run() {
    const { signal } = this.cache.stop;
    if (this.cache.transport.reader === null) return;
    while (!signal.aborted) {
      const due = this.due();
      if (due) await this.send(due.change, due.reason);
      else await this.cache.somethingNew(LOOK_MS);
    }
  }

  /** What there is to say of each change request with a candidate: why something is wrong, or null. */
  reasons() {
    /** @type {Map<string, string | null>} */
    const reasons = new Map();
    if (this.cache.origin !== "live" || this.cache.isSuperseded) return reasons;
    for (const [definition, configs] of this.cache.configs) {
      for (const [key, { variant }] of configs) {
        if (!variant) continue;
        const before = reasons.get(variant) ?? null;
        reasons.set(variant, before ?? this.reasonOf(definition, key));
      }
    }
    return reasons;
  }

  /**
   * Why a view refuses a config, or null.
   * @param {string} definition
   * @param {string} key
   */
  reasonOf(definition, key) {
    for (const view of this.cache.views) {
      const invalid = view.definition === definition ? view.values.get(key)?.invalid : undefined;
      if (invalid) return detailOf(definition, key, invalid.error);
    }
    return null;
  }

  /** The report that is due now. */
  due() {
    const reasons = this.reasons();
    for (const change of [...this.turns.keys(), ...this.forbidden]) {
      if (reasons.has(change)) continue;
      this.turns.delete(change);
      this.forbidden.delete(change);
    }
    const now = performance.now();
    for (const [change, reason] of reasons) {
      if (this.forbidden.has(change)) continue;
      let turn = this.turns.get(change);
      if (!turn) this.turns.set(change, turn = { said: null, at: now + this.times.firstWithinMs * Math.random() });
      // That something is wrong is said at once.
      if (turn.at <= now || (reason !== null && turn.said !== reason)) return { change, reason };
    }
    return null;
  }

  /**
   * @param {string} change
   * @param {string | null} reason
   */
  async send(change, reason) {
    const { transport, stop } = this.cache;
    const { reader } = transport;
    if (reader === null) return;
    const said = { reader: reader.name, labels: reader.labels, state: reason === null ? "healthy" : "failed" };
    const body = stringify(reason === null ? said : { ...said, detail: reason });
    const everyMs = reason === null ? this.times.everyMs : Math.min(this.times.everyMs, EVERY_FAILED_MS);
    this.turns.set(change, { said: reason, at: performance.now() + everyMs * (0.9 + Math.random() / 10) });
    try {
      // A copy of a report is the same report: it is sent again as a read is.
      const options = { signal: stop.signal, timeoutMs: TIMEOUT_MS };
      await transport.send({ method: "POST", path: `/change_request/${encodeURIComponent(change)}/report`, body, isRead: true, options });
    } catch (error) {
      // Who may not even know of a change request is told that there is none. Any other refusal may be none at the next turn.
      if (stop.signal.aborted || !(error instanceof ForbiddenError || error instanceof NotFoundError)) return;
      this.forbidden.add(change);
      this.cache.problem(error);
    }
  }
}

/**
 * Why data are refused, in a line that can be sent. Of a validator that tells its issues one by one, as zod does, their
 * places and texts.
 * @param {string} definition
 * @param {string} key
 * @param {any} error
 */
function detailOf(definition, key, error) {
  const issues = error?.cause?.issues;
  const told = Array.isArray(issues)
    ? `${definition}/${key}: ${issues.map((issue) => `/${(issue?.path ?? []).join("/")} ${issue?.message ?? ""}`).join("; ")}`
    : String(error?.message ?? error);
  // A node refuses characters that nobody sees.
  return cut(told.replace(/[^\p{L}\p{N}\x20-\x7e]+/gu, " "));
}

/** So many bytes of a text, and no half character. @param {string} text */
function cut(text) {
  const bytes = new TextEncoder().encode(text);
  if (bytes.length <= DETAIL_BYTES_MAX) return text;
  return new TextDecoder().decode(bytes.slice(0, DETAIL_BYTES_MAX)).replace(/\ufffd+$/, "");
}
