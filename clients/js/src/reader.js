// Who reads: the name and the labels that a client sends of itself, by which a rollout chooses who sees its candidates.
//
// They are sent with what follows configs: get, readMany, watch and poll. Nothing else is as a reader sees it, and a node
// refuses a filtered watch of a reader, so that is sent without them and has what is proven. `clients/cases.json` has the
// requests, for all clients.
//
// Invariant: what is sent fits a header and the limits of a node. What does not is refused when the client is made, and
// never left out later.

/** @import { ConcordOptions } from "./types.js" */
/** @import { Request } from "./transport.js" */

const NAME_MAX = 255;
const LABELS_MAX = 16;
const LABELS_TEXT_MAX = 1024;
const LABEL_MAX = 255;
/** The parameters of a watch or a poll that are no filters. With any other one it has no reader. */
const UNFILTERED = new Set([
  "definition", "config_key", "from", "initial", "prev", "wait", "consistency", "max_staleness_ms", "min_revision",
]);
const READER = "X-Concord-Reader";
const LABELS = "X-Concord-Labels";

/** Whether a header has this text as its value: visible ASCII, blanks only inside. @param {unknown} text @returns {text is string} */
const isSentAsIs = (text) => typeof text === "string" && /^[!-~](?:[ -~]*[!-~])?$/.test(text);

export class Reader {
  /**
   * @param {string} name
   * @param {Record<string, string>} labels
   */
  constructor(name, labels) {
    if (!isSentAsIs(name) || name.length > NAME_MAX) {
      throw new TypeError(`${JSON.stringify(name)} is no name of a reader: expected 1 to ${NAME_MAX} visible ASCII characters`);
    }
    this.name = name;
    this.labels = labels;
    this.labelsText = textOf(labels);
  }

  /**
   * The reader of a client: by default the host, where there is one; null for none.
   * @param {ConcordOptions} options
   * @returns {Reader | null}
   */
  static of({ reader, labels = {} }) {
    const name = reader === undefined ? hostName() : reader;
    if (name !== null) return new Reader(name, { ...labels });
    if (Object.keys(labels).length > 0) throw new TypeError("labels are those of a reader: give its name too, as `reader`");
    return null;
  }

  /**
   * The headers of a request; none where the answer is not as a reader sees it.
   * @param {string} method
   * @param {string} target
   * @returns {Record<string, string>}
   */
  headers(method, target) {
    if (!isReadAsReader(method, target)) return {};
    return this.labelsText === "" ? { [READER]: this.name } : { [READER]: this.name, [LABELS]: this.labelsText };
  }
}

/** @param {Record<string, string>} labels */
function textOf(labels) {
  const all = Object.entries(labels);
  const isPart = (/** @type {unknown} */ text) => isSentAsIs(text) && text.length <= LABEL_MAX && !text.includes(",");
  for (const [name, value] of all) {
    if (!isPart(name) || name.includes("=") || !isPart(value)) {
      throw new TypeError(`${JSON.stringify(`${name}=${value}`)} is no label: expected 1 to ${LABEL_MAX} visible ASCII characters on each side, without \`,\`, and no \`=\` in the name`);
    }
  }
  const text = all.map(([name, value]) => `${name}=${value}`).sort().join(",");
  if (all.length > LABELS_MAX || text.length > LABELS_TEXT_MAX) {
    throw new TypeError(`a reader has at most ${LABELS_MAX} labels, of ${LABELS_TEXT_MAX} bytes in all`);
  }
  return text;
}

/** The name of this machine, if there is one and it can be sent. In browsers there is none. @returns {string | null} */
function hostName() {
  /** @type {any} */
  const { process, Deno } = globalThis;
  try {
    const name = process?.getBuiltinModule?.("node:os")?.hostname() ?? Deno?.hostname?.() ?? process?.env?.HOSTNAME;
    return isSentAsIs(name) && name.length <= NAME_MAX ? name : null;
  } catch {
    // A runtime that keeps it from the program.
    return null;
  }
}

/**
 * Whether a request is answered as a reader sees it.
 * @param {string} method
 * @param {string} target
 */
export function isReadAsReader(method, target) {
  const [found = "", query = ""] = target.split("?", 2);
  const path = found.replace(/\/$/, "");
  const names = query.split("&").filter((pair) => pair !== "").map((pair) => pair.split("=", 1)[0] ?? "");
  if (method === "POST") return path === "/api/v1/read";
  if (method !== "GET") return false;
  if (path === "/api/v1/watch" || path === "/api/v1/changes") return names.every((name) => UNFILTERED.has(name));
  return /^\/api\/v1\/config_definition\/[^/]+\/config\/[^/]+$/.test(path) && !names.includes("revision");
}

/**
 * The id of the change request whose candidate an answer shows; null for what is proven.
 * @param {string | null} header
 */
export function variantOf(header) {
  const [kind, ...rest] = (header ?? "").split(";").map((part) => part.trim());
  const change = rest.find((part) => part.startsWith("change="));
  return kind === "candidate" && change !== undefined ? change.slice("change=".length) : null;
}
