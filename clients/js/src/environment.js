// The environment of a client: put with a dot before the definition keys of requests, and taken off those of answers.
//
// It is done once, where requests go out and answers come in, so that no request can be forgotten. Without a definition,
// lists and watches are of all definitions of the environment. `default` has no prefix. `clients/cases.json` has the routes
// with their keys, for all clients.
//
// Invariants: a client with an environment reads and writes no definition outside of it. Data, schemas and patches are
// never changed.
import { parse, stringify } from "./json.js";

const DEFAULT = "default";
const DEFINITIONS = "/api/v1/config_definition";
const BELOW = `${DEFINITIONS}/`;
const CHANGE_REQUESTS = "/api/v1/change_request";
const KEY = "config_definition_key";
/** What is of all definitions without the parameter `definition`. */
const ALL = new Set(["/api/v1/deleted_definition", "/api/v1/config", "/api/v1/watch", "/api/v1/changes"]);
const RESULTS = new Set(["/api/v1/deleted_definition", "/api/v1/config", "/api/v1/read", "/api/v1/batch"]);
/** The members of bodies that are lists with keys. @type {Record<string, string[]>} */
const LISTS = { "/api/v1/read": ["configs"], "/api/v1/batch": ["operations", "if", "then", "else"] };

/** @param {string} target */
function partsOf(target) {
  const mark = target.indexOf("?");
  return mark < 0 ? { path: target, query: null } : { path: target.slice(0, mark), query: target.slice(mark + 1) };
}

/**
 * A path as it is compared: nodes take one with a slash at its end for the same one.
 * @param {string} path
 */
const plain = (path) => path.replace(/\/$/, "");

/**
 * @param {string} path
 * @param {string | null} query
 */
const joined = (path, query) => (query === null ? path : `${path}?${query}`);

/** @param {string} method */
const isRead = (method) => method === "GET" || method === "HEAD";

/**
 * @param {string} method
 * @param {string} path
 */
const isOfAll = (method, path) => ALL.has(plain(path)) || (plain(path) === DEFINITIONS && isRead(method));

/** @param {string} path */
const isAudit = (path) => plain(path) === "/api/v1/audit";

/** @param {string} path Below the definitions. */
const isOfConfig = (path) => path.slice(BELOW.length).split("/")[1] === "config";

/**
 * Whether a watch is of change requests, which are of no one definition. Any other value than this one may mean a watch of
 * definitions, and of several values the last one counts.
 * @param {string[]} pairs
 */
function isOfChangeRequests(pairs) {
  const flags = pairs.filter((pair) => pair.split("=")[0] === "change_requests");
  return flags.length > 0 && flags.every((flag) => flag === "change_requests=true");
}

/** An environment with a prefix. */
export class Environment {
  /** @param {string} name */
  constructor(name) {
    this.name = name;
    this.prefix = `${name}.`;
  }

  /**
   * Null for no environment, and for `default`, which has no prefix.
   * @param {string | undefined} name
   */
  static of(name) {
    if (name === undefined) return null;
    if (typeof name !== "string" || !/^[A-Za-z0-9][A-Za-z0-9_~-]{0,63}$/.test(name)) {
      throw new TypeError(`${JSON.stringify(name)} is not the name of an environment: expected 1 to 64 characters of A-Z, a-z, 0-9, _, ~, -, the first a letter or a digit`);
    }
    return name === DEFAULT ? null : new Environment(name);
  }

  /**
   * A path with its query, with the whole keys.
   * @param {string} method
   * @param {string} target
   */
  entered(method, target) {
    const { path, query } = partsOf(target);
    const isOne = path.startsWith(BELOW) && path !== BELOW;
    const entered = isOne ? BELOW + this.prefix + path.slice(BELOW.length) : path;
    const hasAll = isOfAll(method, path);
    // The lines of the audit log are of requests, of which many are about no definition.
    if (!hasAll && !isAudit(path)) return joined(entered, query);
    const pairs = query ? query.split("&") : [];
    const sent = pairs.map((pair) => (/^definition=./.test(pair) ? pair.replace("=", `=${this.prefix}`) : pair));
    if (hasAll && !pairs.some((pair) => /^definition=./.test(pair)) && !isOfChangeRequests(pairs)) sent.push(`definition=${this.prefix}*`);
    return joined(entered, sent.length > 0 ? sent.join("&") : null);
  }

  /**
   * A body with the whole keys.
   * @param {string} method
   * @param {string} target
   * @param {string | undefined} text
   */
  enteredBody(method, target, text) {
    const path = plain(partsOf(target).path);
    const isDefinition = method === "POST" && path === DEFINITIONS;
    let lists = method === "POST" ? LISTS[path] : undefined;
    if ((method === "POST" || method === "PUT") && path.startsWith(CHANGE_REQUESTS)) lists = ["operations"];
    if (text === undefined || (!lists && !isDefinition)) return text;
    let body;
    try {
      body = parse(text);
    } catch (error) {
      // For a node to refuse.
      if (error instanceof SyntaxError) return text;
      throw error;
    }
    if (isDefinition) this.enterKey(body);
    for (const name of lists ?? []) for (const one of listOf(body, name)) this.enterKey(one);
    return stringify(body);
  }

  /** @param {any} value */
  enterKey(value) {
    if (typeof value?.[KEY] === "string") value[KEY] = this.prefix + value[KEY];
  }

  /**
   * Makes the data of an answer those that were asked for.
   * @param {string} method
   * @param {string} target That of the request as the program made it.
   * @param {any} data
   */
  leave(method, target, data) {
    const path = plain(partsOf(target).path);
    if (RESULTS.has(path) || (path === DEFINITIONS && isRead(method))) this.leaveList(data, "results");
    else if (path === "/api/v1/changes") for (const event of listOf(data, "events")) this.leaveEvent(event);
    // The data of a config's answer are its own, except when it is deleted.
    else if (path === DEFINITIONS || (path.startsWith(BELOW) && (!isOfConfig(path) || method === "DELETE"))) this.leaveKey(data);
  }

  /**
   * The same for an event of a watch.
   * @param {any} event
   */
  leaveEvent(event) {
    for (const name of ["changes", "definitions", "configs"]) this.leaveList(event, name);
  }

  /**
   * @param {any} value
   * @param {string} name
   */
  leaveList(value, name) {
    for (const one of listOf(value, name)) this.leaveKey(one);
  }

  /** @param {any} value */
  leaveKey(value) {
    const key = value?.[KEY];
    if (typeof key === "string" && key.startsWith(this.prefix)) value[KEY] = key.slice(this.prefix.length);
  }

  /**
   * The path of a next page, as a program asks for it.
   * @param {string} target
   */
  left(target) {
    const { path, query } = partsOf(target);
    const whole = BELOW + this.prefix;
    const left = path.startsWith(whole) ? BELOW + path.slice(whole.length) : path;
    if (query === null || (!isOfAll("GET", path) && !isAudit(path))) return joined(left, query);
    // Nodes encode this one character of names in queries.
    const starts = [this.prefix, this.prefix.replaceAll("~", "%7E")].map((prefix) => `definition=${prefix}`);
    const pairs = query.split("&").map((pair) => {
      const start = starts.find((one) => pair.startsWith(one));
      return start === undefined ? pair : `definition=${pair.slice(start.length)}`;
    });
    return joined(left, pairs.join("&"));
  }
}

/**
 * @param {any} value
 * @param {string} name
 * @returns {any[]}
 */
function listOf(value, name) {
  const list = value?.[name];
  return Array.isArray(list) ? list : [];
}
