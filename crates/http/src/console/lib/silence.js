// A connection that goes silent ends. The browser waits for minutes, or for ever, where a node stands still or a proxy
// holds back; a page that waited with it would say *Live*, or *Saving…*, for as long.
//
// What is bounded is the silence and not the whole: an answer of which a part comes now and then is never cut.

/** A node sends something on each stream at least every ten seconds, and answers within ten. */
export const SILENCE = 25000;

/** Listens to one connection: `signal` is for `fetch`, and is aborted with `outer` or by silence. */
export class Listening {
  constructor(outer, milliseconds = SILENCE) {
    const stop = new AbortController();
    const abort = () => stop.abort();
    Object.assign(this, { signal: stop.signal, isSilent: false, milliseconds, outer, abort });
    if (outer?.aborted) abort();
    outer?.addEventListener("abort", abort, { once: true });
  }

  /** What a promise of the connection becomes; the silence begins anew. */
  async hear(promise) {
    const timer = setTimeout(() => { this.isSilent = true; this.abort(); }, this.milliseconds);
    try {
      return await promise;
    } finally {
      clearTimeout(timer);
    }
  }

  /** The parts of a body, as text. */
  async *parts(body) {
    if (!body) return;
    const reader = body.getReader();
    const decoder = new TextDecoder();
    for (; ;) {
      const { value, done } = await this.hear(reader.read());
      if (done) break;
      yield decoder.decode(value, { stream: true });
    }
    yield decoder.decode();
  }

  /** The whole of a body. */
  async text(body) {
    let text = "";
    for await (const part of this.parts(body)) text += part;
    return text;
  }

  /** Ends the connection, if it is still there. */
  end() {
    this.outer?.removeEventListener("abort", this.abort);
    this.abort();
  }
}

/** What a promise becomes, or an error when nothing is heard of it. What comes later is told to nobody. */
export function timely(promise, milliseconds = SILENCE) {
  let timer;
  const late = new Promise((_, reject) => { timer = setTimeout(() => reject(new Error(`no answer from ${location.host}`)), milliseconds); });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}
