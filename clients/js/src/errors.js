// Why a call has no result.
//
// Invariant: a write that may have been applied ends with `UnknownOutcomeError` and nothing else. Every other error of a
// write says that it was certainly not applied.

/** @import { Violation } from "./types.js" */

/** Any error of this package, but for wrong arguments (`TypeError`) and the reason of an `AbortSignal`. */
export class ConcordError extends Error {
  /**
   * @param {string} message
   * @param {{ cause?: unknown }} [options]
   */
  constructor(message, options) {
    super(message, options);
    this.name = new.target.name;
  }
}

/** A node refused the request. Nothing was changed. */
export class ApiError extends ConcordError {
  /** @param {Refused} refused */
  constructor(refused) {
    const told = refused.violations.map((one) => (one.path ? `${one.path}: ${one.message}` : one.message)).join("; ");
    super(`${refused.status}: ${told || "the answer gives no reason"}`);
    /** The status of HTTP. */
    this.status = refused.status;
    /** The reasons, all of them. */
    this.violations = refused.violations;
    /** The id under which the node's log names the request. */
    this.requestId = refused.requestId;
    /** The URL that was asked. */
    this.url = refused.url;
    /** The revision of the state that the refusal was read from. */
    this.stateRevision = refused.stateRevision;
  }

  /** What exactly is wrong, as `config_exists`: the code of the first reason. */
  get code() { return this.violations[0]?.code ?? ""; }

  /** The class of the error, as `conflict_error`. */
  get type() { return this.violations[0]?.type ?? ""; }

  /** The places that are wrong, as JSON pointers. */
  get paths() { return this.violations.map((one) => one.path).filter((path) => path !== ""); }
}

/** 401: the key is missing or not valid. */
export class UnauthorizedError extends ApiError {}
/** 403: the key does not have the right; the same whether what was asked for exists or not. */
export class ForbiddenError extends ApiError {}
/** 404 */
export class NotFoundError extends ApiError {}
/** 409: it exists already, a unique value is taken, an index is being built. */
export class ConflictError extends ApiError {}
/** 410: the revision, the change or the cursor is no longer retained. */
export class ExpiredError extends ApiError {}
/** 412: a condition does not hold. */
export class PreconditionFailedError extends ApiError {
  /** @param {Refused} refused */
  constructor(refused) {
    super(refused);
    /** The revision that the record has; null where there is none. */
    this.currentRevision = refused.recordRevision;
  }
}
/** 409: the environment takes change requests only. It is not sent again. */
export class ChangeRequiredError extends ConflictError {}
/** 409: the environment is frozen. It is not sent again: a freeze may last for days. */
export class EnvironmentFrozenError extends ConflictError {}
/** 413 */
export class TooLargeError extends ApiError {}
/** 422: a parameter, a key, a schema or data break a rule. `violations` has all of them. */
export class InvalidError extends ApiError {}
/** 429, until the time was up: certainly not applied. */
export class RateLimitedError extends ApiError {}
/** 507: writes are refused, reads go on. */
export class StorageFullError extends ApiError {}

/**
 * What a client refuses before it sends anything.
 * @param {string} code
 * @param {string} message
 * @param {(string | number)[]} loc
 */
export function wrong(code, message, loc) {
  const path = loc.map((part) => `/${String(part).replaceAll("~", "~0").replaceAll("/", "~1")}`).join("");
  const violations = [{ type: "validation_error", code, message, loc, path }];
  return new InvalidError({ status: 422, violations, requestId: null, url: "", stateRevision: null, recordRevision: null });
}

/** No node could serve the request in time. A write was certainly not applied. */
export class UnavailableError extends ConcordError {
  /**
   * @param {string} message
   * @param {string[]} attempts
   */
  constructor(message, attempts) {
    super(message);
    /** What the attempts met, the latest last. */
    this.attempts = attempts;
  }
}

/**
 * A write may or may not have been applied. The same call with `{ idempotencyKey: error.idempotencyKey }` is safe: the
 * cluster decides both as one.
 */
export class UnknownOutcomeError extends ConcordError {
  /**
   * @param {string} message
   * @param {{ idempotencyKey: string | null, attempts: string[], refusal?: ApiError | null, cause?: unknown }} more
   */
  constructor(message, { idempotencyKey, attempts, refusal = null, cause }) {
    super(`the outcome is unknown: ${message}`, cause === undefined ? undefined : { cause });
    /** The key of the write, for sending it again. */
    this.idempotencyKey = idempotencyKey;
    /** What the attempts met, the latest last. */
    this.attempts = attempts;
    /** What a later copy was answered, where that does not decide the first one. */
    this.refusal = refusal;
  }
}

/** The answer to a read is none of a node of Concord. */
export class ProtocolError extends ConcordError {}

/** The cache has nothing yet: no node has answered, and there is no stored state. */
export class NotReadyError extends ConcordError {}

/** Data that the validator of the caller does not take. */
export class DataError extends ConcordError {}

/**
 * The text of what a program has thrown: anything, also what has none or throws when it is asked for it.
 * @param {unknown} thrown
 */
export function messageOf(thrown) {
  try {
    return String(thrown instanceof Error ? thrown.message : thrown);
  } catch {
    return "an error without a text";
  }
}

/**
 * @typedef {object} Refused
 * @property {number} status
 * @property {Violation[]} violations
 * @property {string | null} requestId
 * @property {string} url
 * @property {number | null} stateRevision
 * @property {number | null} recordRevision
 */

/**
 * What a client says itself of nodes that are now those of another cluster, or of one that was restored to an earlier
 * state: there is nothing to go on from, as where changes are no longer kept.
 * @param {string} url
 */
export function otherCluster(url) {
  const message = "the nodes are of another cluster than before, or of an earlier state of it";
  const violations = [{ type: "expired_error", code: "cluster_changed", message, path: "", loc: [] }];
  return new ExpiredError({ status: 410, violations, requestId: null, url, stateRevision: null, recordRevision: null });
}

/** @type {Record<number, typeof ApiError>} */
const BY_STATUS = {
  401: UnauthorizedError,
  403: ForbiddenError,
  404: NotFoundError,
  409: ConflictError,
  410: ExpiredError,
  412: PreconditionFailedError,
  413: TooLargeError,
  422: InvalidError,
  429: RateLimitedError,
  507: StorageFullError,
};

/** @type {Map<string, typeof ApiError>} */
const BY_CODE = new Map([["change_required", ChangeRequiredError], ["environment_frozen", EnvironmentFrozenError]]);

/** @type {Record<string, number>} */
const STATUS_OF_TYPE = {
  unauthorized_error: 401,
  forbidden_error: 403,
  not_found_error: 404,
  conflict_error: 409,
  expired_error: 410,
  precondition_failed: 412,
  validation_error: 422,
  rate_limited: 429,
  server_error: 500,
  unavailable_error: 503,
  timeout_error: 504,
};

/**
 * The reasons in the body of a refusal; null when the body is none of Concord's.
 * @param {any} body
 * @returns {Violation[] | null}
 */
export function violationsOf(body) {
  const listed = body?.errors ?? body?.detail;
  if (!Array.isArray(listed) || listed.length === 0) return null;
  return listed.map((item) => {
    const loc = Array.isArray(item?.loc) ? item.loc : [];
    return {
      type: String(item?.type ?? ""),
      code: String(item?.code ?? ""),
      message: String(item?.msg ?? ""),
      loc,
      path: loc.map((/** @type {string | number} */ part) => `/${String(part).replaceAll("~", "~0").replaceAll("/", "~1")}`).join(""),
    };
  });
}

/**
 * @param {Refused} refused
 * @returns {ApiError}
 */
export function refusal(refused) {
  return new (BY_CODE.get(refused.violations[0]?.code ?? "") ?? BY_STATUS[refused.status] ?? ApiError)(refused);
}

/**
 * The refusal in an `error` event, which ends a watch.
 * @param {any} body
 * @param {string} url
 * @returns {ApiError}
 */
export function refusalOfEvent(body, url) {
  const violations = violationsOf(body) ?? [];
  const status = STATUS_OF_TYPE[violations[0]?.type ?? ""] ?? 422;
  return refusal({ status, violations, requestId: null, url, stateRevision: null, recordRevision: null });
}
