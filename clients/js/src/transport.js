// The nodes, and a request with its attempts.
//
// Invariants: a write is sent again only if it certainly was not applied, or has an idempotency key, by which the cluster
// decides all copies as one. Once an attempt may have been applied, the result is success, a verdict of the cluster's log
// or `UnknownOutcomeError`; it is never reported as a failure.
import { pause } from "./clock.js";
import { Environment } from "./environment.js";
import { ApiError, ConcordError, ProtocolError, UnavailableError, UnknownOutcomeError, refusal, violationsOf, wrong } from "./errors.js";
import { parse } from "./json.js";
import { randomId } from "./random.js";
import { Reader, variantOf } from "./reader.js";

/** @import { CallOptions, ConcordOptions } from "./types.js" */

/** The first pause between two rounds of attempts; it doubles up to the last. */
const PAUSE_MIN_MS = 100;
const PAUSE_MAX_MS = 3000;
/** No attempt after the first is begun with less time: it would end before an answer, and the outcome would be unknown for it. */
const ATTEMPT_MIN_MS = 20;
/**
 * How long after the first copy of unknown outcome was sent the request is sent again: the cluster remembers what it decided
 * for at least 45 seconds, and a node works on a request for at most 30.
 */
const RESEND_WINDOW_MS = 15_000;
/** Attempts that an error tells of. */
const TOLD_MAX = 10;
/** What says that no connection was made, so that nothing was sent. */
const NOT_SENT = new Set(["ECONNREFUSED", "ENOTFOUND", "EAI_AGAIN", "UND_ERR_CONNECT_TIMEOUT", "ERR_INVALID_URL"]);
/** Refusals that the log retains under an idempotency key: they hold for all copies of a write, but for one of a change request. `environment_frozen` is none. */
const VERDICTS = new Set([
  "config_exists", "config_not_found", "definition_exists", "definition_not_empty", "definition_protected",
  "precondition_failed", "unique_taken",
]);

/**
 * @typedef {object} Request
 * @property {string} method
 * @property {string} path Below `/api/v1`, or from the root where it begins with `/api/`.
 * @property {[string, string][]} [query]
 * @property {Record<string, string>} [headers]
 * @property {string} [body]
 * @property {string} [contentType]
 * @property {boolean} [isRead] Whether it changes nothing. `GET` does not.
 * @property {boolean} [isProven] Whether it reads what is proven, also where the reader of the client sees a candidate.
 * @property {string | null} [idempotencyKey] Without one, a write gets a key. Null for none: then it is sent once, if a node may have got it.
 * @property {string} [reason]
 * @property {CallOptions} [options]
 */

/** The answer of a node. */
export class Answer {
  /**
   * @param {string} url
   * @param {Response} response
   * @param {any} body
   * @param {Environment | null} [environment]
   */
  constructor(url, response, body, environment = null) {
    this.url = url;
    this.status = response.status;
    this.headers = response.headers;
    this.body = body;
    /** @internal */
    this.environment = environment;
  }

  /** @returns {any} */
  get data() { return this.body?.data; }

  /** The node that answered. */
  get node() { return this.headers.get("x-concord-node"); }

  /** The id of the cluster, in answers about its changes. */
  get cluster() { return this.headers.get("x-concord-cluster"); }

  /** The revision of the state that the answer is made from. */
  get stateRevision() { return integer(this.headers.get("x-concord-revision")); }

  /** The revision of the record. A candidate of a rollout has none: 0, with which no condition holds. */
  get recordRevision() { return this.variant === null ? revisionOf(this.headers) : 0; }

  /** The id of the change request whose candidate this is; null for what is proven. */
  get variant() { return variantOf(this.headers.get("x-concord-variant")); }

  /** What of the request had no effect, or is missing from the answer. */
  get warnings() { return warningsOf(this.headers.get("warning")); }

  /** The path of the next page. */
  get next() {
    // Always at this cluster, whatever the header says.
    const target = /^<(\/[^>]*)>; rel="next"/.exec(this.headers.get("link") ?? "")?.[1] ?? null;
    return target !== null && this.environment ? this.environment.left(target) : target;
  }
}

/** @param {string | null} text */
export function integer(text) {
  return text !== null && /^\d+$/.test(text) ? Number(text) : null;
}

/**
 * The texts of warnings: `299 - "a text"`, with commas between. One that is written in another way is kept as it is.
 * @param {string | null} header
 * @returns {string[]}
 */
function warningsOf(header) {
  if (header === null) return [];
  const found = [...header.matchAll(/\d{3} \S+ "((?:[^"\\]|\\.)*)"/g)].map(([, text = ""]) => text.replace(/\\(.)/g, "$1"));
  return found.length > 0 ? found : [header];
}

/** @param {Headers} headers */
function revisionOf(headers) {
  return integer(/^"(\d+)"$/.exec(headers.get("etag") ?? "")?.[1] ?? null);
}

export class Transport {
  /** Private: what prints a client prints no key. @type {string | (() => string)} */
  #key;

  /** @param {ConcordOptions} options */
  constructor(options) {
    const urls = (typeof options.urls === "string" ? options.urls.split(",") : options.urls).map((url) => url.trim().replace(/\/+$/, ""));
    if (urls.length === 0) throw new TypeError("no URL of a node is given");
    for (const url of urls) {
      // The text may hold a password: it is not shown.
      if (/^[^/]*\/\/[^/]*@/.test(url)) throw new TypeError("a URL of a node has no user and no password: give the access key as `key`");
      if (!/^https?:\/\/[^/]/.test(url)) throw new TypeError(`\`${url}\` is not the URL of a node: expected http[s]://host:port`);
    }
    if (typeof options.key !== "string" && typeof options.key !== "function") throw new TypeError("no access key is given");
    this.urls = urls;
    this.#key = options.key;
    this.timeoutMs = options.timeoutMs ?? 30_000;
    this.attemptTimeoutMs = options.attemptTimeoutMs ?? 5000;
    this.reason = options.reason;
    this.environment = Environment.of(options.environment);
    this.reader = Reader.of(options);
    this.fetch = options.fetch ?? ((/** @type {any} */ url, /** @type {any} */ init) => globalThis.fetch(url, init));
    /** The node that answered last. */
    this.preferred = 0;
    /** After which time of silence a stream is dead; undefined: as the service's heartbeats have it. @type {number | undefined} */
    this.silenceMs = undefined;
  }

  /** The access key of now. */
  authorization() { return `Bearer ${typeof this.#key === "function" ? this.#key() : this.#key}`; }

  /**
   * Sends a request, again where that is safe, and returns the answer.
   * @param {Request} request
   * @returns {Promise<Answer>}
   */
  async send(request) {
    const { environment } = this;
    const attempts = new Attempts(this, this.entered(request));
    for (;;) {
      const attempt = await attempts.next();
      const outcome = await attempts.attempt(attempt, async (response, url, stop) => {
        if (response.status === 304 && attempts.isRead) return new Answer(url, response, null);
        const text = await textOf(response, stop);
        const body = bodyOf(text);
        if (response.ok && body?.status === "SUCCESS") {
          environment?.leave(request.method, target(request), body.data);
          return new Answer(url, response, body, environment);
        }
        return failureOf(response, url, body, text);
      });
      if (outcome) return outcome;
    }
  }

  /**
   * The request with the client's environment before its definition keys, and with its reader.
   * @param {Request} request
   * @returns {Request}
   */
  entered(request) {
    const { environment, reader } = this;
    const [method, asked] = [request.method, target(request)];
    const headers = reader && !request.isProven ? { ...reader.headers(method, asked), ...request.headers } : request.headers;
    if (!environment) return { ...request, headers };
    const body = environment.enteredBody(method, asked, request.body);
    return { ...request, path: environment.entered(method, asked), query: [], body, headers };
  }

  /**
   * The first answer of success to a read, its body still to come. `signal` ends the body, too.
   * @param {Request} request
   * @param {AbortSignal} signal
   * @returns {Promise<{ response: Response, url: string }>}
   */
  async stream(request, signal) {
    const attempts = new Attempts(this, { ...this.entered(request), isRead: true, options: { ...request.options, signal } });
    attempts.isStream = true;
    for (;;) {
      const attempt = await attempts.next();
      const outcome = await attempts.attempt(attempt, async (response, url, stop) => {
        if (response.ok && response.body && /^text\/event-stream/.test(response.headers.get("content-type") ?? "")) return { response, url };
        const text = await textOf(response, stop);
        return failureOf(response, url, bodyOf(text), text);
      });
      if (outcome) return outcome;
    }
  }
}

/**
 * The whole body; an abort ends it. `fetch` of Node.js holds the signal of a body weakly: after a garbage collection an
 * abort ends nothing by itself.
 * @param {Response} response
 * @param {AbortSignal} stop
 */
async function textOf(response, stop) {
  if (!response.body) return "";
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  const end = () => { reader.cancel().catch(() => {}); };
  stop.addEventListener("abort", end, { once: true });
  try {
    let text = "";
    for (;;) {
      const { value, done } = await reader.read();
      stop.throwIfAborted();
      if (done) return text + decoder.decode();
      text += decoder.decode(value, { stream: true });
    }
  } finally {
    stop.removeEventListener("abort", end);
  }
}

/**
 * What a promise becomes, or the reason of the signal when that comes first.
 * @param {Promise<Response>} sent
 * @param {AbortSignal} stop
 * @returns {Promise<Response>}
 */
async function orStopped(sent, stop) {
  /** @type {() => void} */
  let end = () => {};
  const stopped = new Promise((_, reject) => {
    end = () => reject(stop.reason);
    stop.addEventListener("abort", end, { once: true });
  });
  try {
    return /** @type {Response} */ (await Promise.race([sent, stopped]));
  } catch (error) {
    // An answer that comes all the same is read by nobody.
    if (stop.aborted) sent.then((late) => late.body?.cancel()).catch(() => {});
    throw error;
  } finally {
    stop.removeEventListener("abort", end);
  }
}

/** @param {string} text */
function bodyOf(text) {
  try {
    return parse(text);
  } catch (error) {
    if (error instanceof SyntaxError) return null;
    throw error;
  }
}

/** How an attempt ended that was not answered with success. */
class Failure {
  /**
   * @param {"not sent" | "unclear" | "refused"} kind
   * @param {string} text
   * @param {{ refusal?: ApiError, pauseMs?: number }} [more]
   */
  constructor(kind, text, more = {}) {
    this.kind = kind;
    this.text = text;
    this.refusal = more.refusal ?? null;
    this.pauseMs = more.pauseMs ?? 0;
  }
}

/**
 * @param {Response} response
 * @param {string} url
 * @param {any} body
 * @param {string} text
 */
function failureOf(response, url, body, text) {
  const violations = violationsOf(body);
  // A proxy that answers in place of a node knows nothing of the outcome.
  if (!violations) return new Failure("unclear", `${url}: ${response.status}, which is no answer of Concord: ${text.slice(0, 200)}`);
  const [status, headers] = [response.status, response.headers];
  const error = refusal({
    status, violations, url, requestId: headers.get("x-request-id"),
    stateRevision: integer(headers.get("x-concord-revision")), recordRevision: revisionOf(headers),
  });
  if ([500, 502, 504].includes(status)) return new Failure("unclear", `${url}: ${error.message}`, { refusal: error });
  return new Failure("refused", `${url}: ${error.message}`, { refusal: error, pauseMs: 1000 * (integer(headers.get("retry-after")) ?? 0) });
}

/**
 * What an error of `fetch` says of what became of the request.
 * @param {any} error
 * @param {string} url
 */
function failureOfFetch(error, url) {
  const causes = [error?.cause, ...(error?.cause?.errors ?? [])].filter((one) => one);
  const wasNotSent = causes.length > 0 && causes.every((one) => NOT_SENT.has(one.code) || one.syscall === "connect" || one.errors);
  const told = causes.map((one) => one.code ?? one.message).filter((one) => one).join(", ");
  return new Failure(wasNotSent ? "not sent" : "unclear", `${url}: ${told || error?.message || error}`);
}

/** The attempts of one request. */
class Attempts {
  /**
   * @param {Transport} transport
   * @param {Request} request
   */
  constructor(transport, request) {
    this.transport = transport;
    this.request = request;
    this.isRead = request.isRead ?? request.method === "GET";
    this.isStream = false;
    this.signal = request.options?.signal;
    this.key = this.isRead ? null : request.idempotencyKey === undefined ? randomId() : request.idempotencyKey;
    /** Whether it may be sent again after a copy that a node may have got. */
    this.mayRepeat = this.isRead || this.key !== null;
    this.deadline = performance.now() + (request.options?.timeoutMs ?? transport.timeoutMs);
    this.first = transport.preferred;
    this.made = 0;
    this.pauseMs = PAUSE_MIN_MS;
    this.askedPauseMs = 0;
    this.wasSent = false;
    /** When the last copy was sent. */
    this.sentAt = 0;
    /** Until when another copy may be sent. */
    this.resendUntil = Infinity;
    /** Whether an attempt may have been applied. */
    this.isUnknown = false;
    /** @type {string[]} */
    this.told = [];
    /** @type {ApiError | null} */
    this.last = null;
    this.headers = headersOf(request, this.key, this.isRead ? undefined : request.reason ?? transport.reason);
    this.signal?.throwIfAborted();
  }

  /** The node to ask now, and the time for that. Between two rounds over all nodes there is a pause. */
  async next() {
    const nodes = this.transport.urls.length;
    if (this.made > 0 && this.made % nodes === 0) {
      const jittered = Math.max(this.pauseMs * (0.5 + Math.random() / 2), this.askedPauseMs);
      if (performance.now() + jittered + ATTEMPT_MIN_MS >= Math.min(this.deadline, this.resendUntil)) throw this.givenUp();
      await this.orAborted(pause(jittered, this.signal));
      this.pauseMs = Math.min(2 * this.pauseMs, PAUSE_MAX_MS);
      this.askedPauseMs = 0;
    }
    const left = this.deadline - performance.now();
    if (left <= 0 || (this.made > 0 && left < ATTEMPT_MIN_MS) || performance.now() >= this.resendUntil) throw this.givenUp();
    const round = Math.floor(this.made / nodes);
    const place = (this.first + this.made) % nodes;
    this.made += 1;
    // A node that hangs may not take the time that the others need.
    const most = this.transport.attemptTimeoutMs * 2 ** round;
    // The last copy of a write that may be sent has the time that is left.
    const isLast = performance.now() + most >= this.resendUntil;
    const share = nodes > 1 && this.mayRepeat && !isLast ? Math.min(left, most) : left;
    return { place, share };
  }

  /**
   * Sends a copy. The result, or undefined when there has to be another attempt.
   * @template R
   * @param {{ place: number, share: number }} attempt
   * @param {(response: Response, url: string, stop: AbortSignal) => Promise<R | Failure>} read
   * @returns {Promise<R | undefined>}
   */
  async attempt({ place, share }, read) {
    const { request, transport } = this;
    const base = transport.urls[place] ?? "";
    const url = base + target(request);
    const stop = new AbortController();
    const init = this.init(stop.signal);
    const abort = () => stop.abort(this.signal?.reason);
    let isLate = false;
    const timer = setTimeout(() => {
      isLate = true;
      stop.abort();
    }, share);
    this.signal?.addEventListener("abort", abort, { once: true });
    let isOpen = false;
    try {
      this.signal?.throwIfAborted();
      this.wasSent = true;
      this.sentAt = performance.now();
      const response = await orStopped(transport.fetch(url, init), stop.signal);
      const outcome = await read(response, url, stop.signal);
      if (outcome instanceof Failure) return this.failed(outcome);
      isOpen = this.isStream;
      transport.preferred = place;
      return outcome;
    } catch (error) {
      if (error instanceof ConcordError) throw error;
      if (this.signal?.aborted) throw this.aborted();
      return this.failed(isLate ? new Failure("unclear", `${url}: no answer in ${Math.round(share)} ms`) : failureOfFetch(error, url));
    } finally {
      clearTimeout(timer);
      // The body of a stream ends with the signal, too.
      if (!isOpen) this.signal?.removeEventListener("abort", abort);
    }
  }

  /**
   * @param {AbortSignal} signal
   * @returns {RequestInit}
   */
  init(signal) {
    const { request, transport } = this;
    /** @type {Headers} */
    let headers;
    try {
      headers = new Headers({ Authorization: transport.authorization(), ...this.headers });
    } catch (error) {
      // Of this attempt nothing is sent: what is known of those before stays.
      if (this.isUnknown) throw this.unknown(null, error);
      // The texts of `Headers` show the value, which is the key.
      throw error instanceof TypeError ? new TypeError("the access key has characters that no header has") : error;
    }
    return { method: request.method, headers, body: request.body, signal, redirect: "error", cache: "no-store", credentials: "omit" };
  }

  /**
   * Decides what follows from an attempt: another one (undefined), or the end.
   * @param {Failure} failure
   * @returns {undefined}
   */
  failed(failure) {
    this.told.push(failure.text);
    if (this.told.length > TOLD_MAX) this.told.splice(0, 1);
    this.last = failure.refusal ?? this.last;
    if (failure.kind === "not sent") return undefined;
    if (failure.kind === "unclear") {
      // From the sending on: by the time that a loss is noticed, the cluster may have forgotten.
      if (!this.isRead && !this.isUnknown) this.resendUntil = this.sentAt + RESEND_WINDOW_MS;
      this.isUnknown ||= !this.isRead;
      if (!this.mayRepeat) throw this.unknown(null);
      return undefined;
    }
    const refused = failure.refusal;
    if (!refused || refused.status === 503 || refused.status === 429) {
      this.askedPauseMs = Math.max(this.askedPauseMs, failure.pauseMs);
      return undefined;
    }
    if (this.isUnknown && !this.isVerdict(refused)) throw this.unknown(refused);
    throw refused;
  }

  /**
   * Whether a refusal holds for all copies of the write.
   * @param {ApiError} refused
   */
  isVerdict(refused) {
    const path = target(this.request);
    if (path.startsWith("/api/v1/change_request/")) return false;
    if (refused.code === "definition_not_found") return this.request.method === "PATCH" || path.startsWith("/api/v1/batch");
    return VERDICTS.has(refused.code);
  }

  givenUp() {
    if (this.isUnknown) return this.unknown(null);
    const last = this.last;
    if (last && [429, 500].includes(last.status)) return last;
    const told = this.told.at(-1) ?? "the time was up before a node was asked";
    if (this.isRead && last === null && told.includes("no answer of Concord")) return new ProtocolError(told);
    return new UnavailableError(told, this.told);
  }

  /**
   * @param {ApiError | null} refused
   * @param {unknown} [cause]
   */
  unknown(refused, cause) {
    const told = this.told.at(-1) ?? "the call was aborted after it was sent";
    return new UnknownOutcomeError(told, { idempotencyKey: this.key, attempts: this.told, refusal: refused, cause });
  }

  /** What an aborted call ends with: a write that was sent may be applied. */
  aborted() {
    return this.isRead || !this.wasSent ? this.signal?.reason : this.unknown(null, this.signal?.reason);
  }

  /**
   * @param {Promise<void>} waiting
   */
  async orAborted(waiting) {
    try {
      await waiting;
    } catch (error) {
      throw this.signal?.aborted && this.isUnknown ? this.unknown(null, error) : error;
    }
  }
}

/** @param {Request} request */
function target(request) {
  const path = request.path.startsWith("/api/") ? request.path : `/api/v1${request.path}`;
  const query = (request.query ?? []).map(([name, value]) => `${encodeURIComponent(name)}=${encodeURIComponent(value)}`).join("&");
  return query ? `${path}${path.includes("?") ? "&" : "?"}${query}` : path;
}

/**
 * The headers of all copies of a request. What can't be sent is refused here: later it would look like a lost connection.
 * @param {Request} request
 * @param {string | null} key
 * @param {string | undefined} reason
 */
function headersOf(request, key, reason) {
  /** @type {Record<string, string>} */
  const headers = { ...request.headers };
  if (request.body !== undefined) headers["Content-Type"] = request.contentType ?? "application/json";
  if (key !== null) {
    if (!/^[!-~]{1,255}$/.test(key)) throw wrong("header_invalid", "an idempotency key is 1 to 255 visible ASCII characters", ["header"]);
    headers["Idempotency-Key"] = key;
  }
  const told = reason === undefined ? "" : headerText(reason);
  if (told !== "") headers["X-Change-Reason"] = told;
  try {
    new Headers(headers);
  } catch (error) {
    throw wrong("header_invalid", `a header can't be sent: ${error instanceof Error ? error.message : error}`, ["header"]);
  }
  return headers;
}

/**
 * A header has bytes and no characters: `fetch` takes each byte of UTF-8 as one character. Blanks at its ends are no part
 * of it, so they are not sent.
 * @param {string} given
 */
function headerText(given) {
  const text = given.replace(/^[ \t]+|[ \t]+$/g, "");
  if (/[\0-\x08\x0a-\x1f\x7f]/.test(text)) throw wrong("header_invalid", "a reason has no line ends or other control characters", ["header"]);
  try {
    encodeURIComponent(text);
  } catch {
    throw wrong("header_invalid", "a reason is a text of Unicode: half a character can't be sent", ["header"]);
  }
  return Array.from(new TextEncoder().encode(text), (byte) => String.fromCharCode(byte)).join("");
}
