// Nodes without a network: a `fetch` that answers as the test says, and remembers what it was asked.

/**
 * @param {((request: { url: URL, method: string, headers: Headers, body: string | undefined, signal: AbortSignal, count: number }) => any)} answer
 *   A `Response`, an error to throw, or a promise of one.
 */
export function fakeFetch(answer) {
  const asked = [];
  const fetch = async (url, init) => {
    const request = { url: new URL(url), method: init.method, headers: new Headers(init.headers), body: init.body, signal: init.signal, count: asked.length };
    asked.push(request);
    init.signal.throwIfAborted();
    const given = await answer(request);
    if (given instanceof Error) throw given;
    return given;
  };
  return { fetch, asked };
}

/** A node that does not answer, until the request is aborted. */
export const silence = (request) => new Promise((_, reject) => {
  request.signal.addEventListener("abort", () => reject(new DOMException("aborted", "AbortError")));
});

export const refusedConnection = () => Object.assign(new TypeError("fetch failed"), { cause: Object.assign(new Error("connect"), { code: "ECONNREFUSED", syscall: "connect" }) });
export const lostConnection = () => Object.assign(new TypeError("fetch failed"), { cause: Object.assign(new Error("reset"), { code: "ECONNRESET" }) });

/** An answer of success. */
export function success(data, { status = 200, revision = 7, state = 9, headers = {} } = {}) {
  return new Response(JSON.stringify({ status: "SUCCESS", message: "done", data }), {
    status,
    headers: { "content-type": "application/json", "x-concord-node": "1", "x-concord-revision": String(state), etag: `"${revision}"`, ...headers },
  });
}

/** A refusal. */
export function refused(status, type, code, more = {}, headers = {}) {
  return new Response(JSON.stringify({ status: "FAILURE", errors: [{ type, code, msg: `why ${code}`, ...more }] }), {
    status, headers: { "content-type": "application/json", "x-concord-revision": "9", "x-request-id": "r1", ...headers },
  });
}

/** A stream of server-sent events, in pieces of so many bytes. */
export function stream(text, { size = Infinity, stays = false, signal } = {}) {
  const bytes = new TextEncoder().encode(text);
  let at = 0;
  const body = new ReadableStream({
    pull(controller) {
      if (at < bytes.length) {
        controller.enqueue(bytes.slice(at, Math.min(at + size, bytes.length)));
        at += size;
      } else if (!stays) controller.close();
      else return new Promise((resolve) => signal?.addEventListener("abort", () => { controller.error(new DOMException("aborted", "AbortError")); resolve(); }));
      return undefined;
    },
  }, { highWaterMark: 0 });
  return new Response(body, { status: 200, headers: { "content-type": "text/event-stream", "x-concord-node": "2" } });
}

export const event = (name, data, id) => `event: ${name}\n${id === undefined ? "" : `id: ${id}\n`}data: ${JSON.stringify(data)}\n\n`;

/** Waits until a condition holds. */
export async function until(condition, what, ms = 60_000) {
  const end = Date.now() + ms;
  while (!(await condition())) {
    if (Date.now() > end) throw new Error(`waited in vain for ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}
