// Requests to the node that the console came from: the public interface and nothing else.
//
// What may be sent again is sent again. A read always may. A write answered 429 or 503 was certainly not applied. 504, or
// no answer at all, leaves a write unknown: it is called so, never failed, and a person decides whether to send it once
// more, under the same idempotency key where the interface takes one. A connection that goes silent is no answer.
import { key, node, refused, trouble, members } from "./state.js";
import { parse } from "./json.js";
import { Listening, SILENCE } from "./silence.js";

const ROOT = `${location.pathname.replace(/\/ui(\/.*)?$/, "")}/api/v1`;
/** How long the console tries by itself, in milliseconds. */
const PATIENCE = 30000;
/** Silence of requests for which a node goes through all configs, or waits for a member: it gives itself 50 seconds. */
const LONG_SILENCE = 60000;
const LONG = [/^\/config_definition\/[^/]+(\/(schema|unique))?$/, /^\/cluster\//];
/** Of a body that is sent nothing is heard: a slow line has this many bytes a millisecond for it. */
const SENT_BYTES = 32;
/** Statuses that say nothing of the request itself. */
const UNANSWERED = [0, 429, 503, 504];

/** A refusal, or the lack of an answer (status 0). */
export class Refusal extends Error {
  constructor({ status, items, requestId, write }) {
    super(items.map((item) => item.msg).join("\n") || `status ${status}`);
    Object.assign(this, { status, items, requestId });
    /** Whether it may have been applied all the same. */
    this.unknown = write && (status === 0 || status === 504 || status === 500);
  }
}

/** An answer with its body as text, as plain JSON and as JSON without loss. */
class Answer {
  constructor(response, text) { Object.assign(this, { response, text, status: response.status }); }
  header(name) { return this.response.headers.get(name); }
  get etag() { return this.header("etag"); }
  get revision() { return Number(this.header("x-concord-revision")); }
  get data() { return (this.plain ??= JSON.parse(this.text)).data; }
  get exact() { return (this.lossless ??= parse(this.text)).get("data"); }
}

export const url = (path, query) => {
  const text = new URLSearchParams(query ?? []).toString();
  return `${ROOT}${path}${text ? `?${text}` : ""}`;
};
export const segment = encodeURIComponent;
export const definitionPath = (name) => `/config_definition/${segment(name)}`;
export const configPath = (name, config) => `${definitionPath(name)}/config/${segment(config)}`;
export const newIdempotencyKey = () => `console-${Array.from(crypto.getRandomValues(new Uint32Array(4)), (n) => n.toString(16)).join("-")}`;

/**
 * Sends a request and waits for a good answer. Options: `query`, `headers`, `body` (JSON text), `signal`, `once` (is not
 * tried again), `plain` (takes no idempotency key), `safe` (a POST or PUT that stores nothing), `idempotencyKey`, `key` (instead of the one that was typed in).
 */
export async function call(method, path, options = {}) {
  const write = method !== "GET" && !options.safe;
  const headers = { Authorization: `Bearer ${options.key ?? key.value}`, ...options.headers };
  if (options.body !== undefined) headers["Content-Type"] ??= "application/json";
  if (write && !options.plain) headers["Idempotency-Key"] = options.idempotencyKey ?? newIdempotencyKey();
  // A header is bytes: each character of the string that `fetch` takes stands for one byte.
  for (const name of Object.keys(headers)) headers[name] = String.fromCharCode(...new TextEncoder().encode(headers[name]));
  const until = Date.now() + PATIENCE;
  if (refused.value && options.key === undefined) {
    // Known to be refused: to ask again would only count as another failure.
    throw new Refusal({ status: 401, items: [{ msg: refused.value }], requestId: null, write: false });
  }
  for (let wait = 250; ; wait = Math.min(wait * 2, 2000)) {
    const { answer, refusal } = await attempt(method, path, headers, options, write);
    if (answer) {
      if (trouble.value) trouble.value = null;
      return answer;
    }
    const again = [429, 503].includes(refusal.status) || (!write && [0, 504].includes(refusal.status));
    if (!again) {
      if (trouble.value && refusal.status !== 0) trouble.value = null;
      throw refusal;
    }
    if (options.once) throw refusal;
    trouble.value = { status: refusal.status, text: describe(refusal), members: others() };
    if (Date.now() + wait > until) throw refusal;
    const asked = Number(refusal.retryAfter ?? 0) * 1000;
    await pause(Math.max(wait, Math.min(asked, 5000)), options.signal);
  }
}

/** Whether an error is none about what was asked: nobody knows yet what the node thinks of it. */
export const isUnanswered = (error) => UNANSWERED.includes(error?.status);

function silenceOf(method, path, body) {
  const isLong = method !== "GET" && LONG.some((pattern) => pattern.test(path));
  return (isLong ? LONG_SILENCE : SILENCE) + (body?.length ?? 0) / SENT_BYTES;
}

async function attempt(method, path, headers, options, write) {
  const connection = new Listening(options.signal, silenceOf(method, path, options.body));
  try {
    const response = await connection.hear(fetch(url(path, options.query), {
      method, headers, body: options.body, signal: connection.signal, cache: "no-store", credentials: "omit",
    }));
    const text = await connection.text(response.body);
    const id = Number(response.headers.get("x-concord-node"));
    const revision = Number(response.headers.get("x-concord-revision"));
    if (revision) node.value = { id, revision: Math.max(revision, node.value.id === id ? node.value.revision : 0) };
    if (response.ok || response.status === 304) return { answer: new Answer(response, text) };
    const refusal = new Refusal({
      status: response.status, items: itemsOf(text), requestId: response.headers.get("x-request-id"), write,
    });
    refusal.retryAfter = response.headers.get("retry-after");
    refusal.breaking = Number(response.headers.get("x-concord-breaking-configs") ?? 0);
    if (response.status === 401 && options.key === undefined) refused.value = refusal.message;
    return { refusal };
  } catch (error) {
    if (error.name === "AbortError" && !connection.isSilent) throw error;
    const items = [{ msg: `no answer from ${location.host}` }];
    return { refusal: new Refusal({ status: 0, items, requestId: null, write }) };
  } finally {
    connection.end();
  }
}

/** The errors in a body of either shape. */
export function itemsOf(text) {
  try {
    const body = JSON.parse(text);
    const items = body.errors ?? body.detail ?? [{ msg: text }];
    // A schema may be wrong at one place for several reasons that read the same.
    const seen = new Set();
    return items.filter((item) => !seen.has(JSON.stringify(item)) && seen.add(JSON.stringify(item)));
  } catch (error) {
    if (error instanceof SyntaxError) return [{ msg: text }];
    throw error;
  }
}

function describe(refusal) {
  if (refusal.status === 0) return `This node (${location.host}) does not answer.`;
  if (refusal.status === 429) return "This node has too much to do.";
  if (refusal.status === 504) return "The node did not get an answer in time.";
  return `Not available at the moment: ${refusal.message}.`;
}

/** The consoles of the other members. */
function others() {
  return members.value.filter((member) => member.id !== node.value.id)
    .map((member) => ({ id: member.id, url: `${location.protocol}//${member.api_addr}/ui/` }));
}

export function pause(milliseconds, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, milliseconds);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(new DOMException("stopped", "AbortError"));
    }, { once: true });
  });
}

export const get = (path, query, options) => call("GET", path, { query, ...options });
export const dryRun = (method, path, options) =>
  call(method, path, { ...options, safe: true, query: [...(options.query ?? []), ["dry_run", "true"]] });
