// Changes as they happen: server-sent events, read with `fetch` because an `EventSource` sends no key. After a
// connection ends, the next one continues behind the last event, on whatever node answers: nothing is missed and nothing
// comes twice. A tab that is not seen holds no connection, as a browser has few of them for one host; it continues where
// it was when it is seen again. A connection that goes silent ends: no change on it is not that nothing is changed.
import { key, refused, trouble } from "./state.js";
import { Refusal, itemsOf, pause, url } from "./api.js";
import { parse } from "./json.js";
import { Listening } from "./silence.js";

/**
 * Follows changes until `signal` is aborted. `on.change(event, text)`, `on.state(text)` ("live", "waiting"), `on.gone(why)` when
 * the changes since the last event are not to be had, `on.refused(items)` when the node will not have it. `query` may be a
 * function: it is called for each connection.
 */
export async function follow(query, on, signal) {
  let last = null;
  let connection = null;
  for (let wait = 250; !signal.aborted; wait = Math.min(wait * 2, 4000)) {
    try {
      // Until there is another key, to ask again would only count as another failure.
      while (refused.value) await pause(500, signal);
      await seen(signal);
      const headers = { Authorization: `Bearer ${key.value}`, Accept: "text/event-stream" };
      if (last !== null) headers["Last-Event-ID"] = last;
      connection = new Connection(signal);
      const response = await connection.hear(fetch(url("/watch", typeof query === "function" ? query() : query), { headers, signal: connection.signal, cache: "no-store", credentials: "omit" }));
      if (response.status === 200) {
        trouble.value = null;
        on.state("live");
        for await (const event of events(connection.parts(response.body))) {
          wait = 250;
          if (event.id !== undefined) last = event.id;
          if (event.name === "change") on.change(event.data, event.text);
          const expired = event.name === "error" && event.data.errors?.find((item) => item.type === "expired_error");
          if (expired) throw new Gone(expired.msg);
        }
      } else {
        const text = await connection.text(response.body);
        if (response.status === 410) throw new Gone(itemsOf(text)[0].msg);
        if (response.status === 401) refused.value = "it is not valid";
        if (![401, 429, 503, 504].includes(response.status)) {
          on.refused(itemsOf(text));
          return;
        }
      }
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof Gone) {
        last = null;
        on.gone(error.message);
      } else if (error.name === "AbortError") wait = connection?.isSilent ? wait : 125;
      else if (!(error instanceof TypeError)) throw error;
    } finally {
      connection?.end();
    }
    if (signal.aborted) return;
    on.state("waiting");
    try {
      await pause(wait, signal);
    } catch (error) {
      if (error.name !== "AbortError") throw error;
    }
  }
}

class Gone extends Error {}

/** Waits until the tab is seen. */
function seen(signal) {
  if (!document.hidden) return undefined;
  return new Promise((resolve) => {
    const look = () => {
      if (document.hidden && !signal.aborted) return;
      document.removeEventListener("visibilitychange", look);
      resolve();
    };
    document.addEventListener("visibilitychange", look);
    signal.addEventListener("abort", look, { once: true });
  });
}

/** A connection that ends with `signal`, with silence, and when the tab is hidden. */
class Connection extends Listening {
  constructor(signal) {
    super(signal);
    this.hide = () => { if (document.hidden) this.abort(); };
    document.addEventListener("visibilitychange", this.hide);
  }

  end() {
    document.removeEventListener("visibilitychange", this.hide);
    super.end();
  }
}

/** The events of a stream, of which `texts` are the parts as they come. */
async function* events(texts) {
  let rest = "";
  for await (const text of texts) {
    const parts = (rest + text).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const event = { name: "message", id: undefined, text: "" };
      for (const line of part.split("\n")) {
        const [field, text] = [line.slice(0, line.indexOf(":")), line.slice(line.indexOf(":") + 1).replace(/^ /, "")];
        if (field === "event") event.name = text;
        else if (field === "id") event.id = text;
        else if (field === "data") event.text += text;
      }
      if (event.text) yield { ...event, data: JSON.parse(event.text) };
    }
  }
}

/** Characters of records that are read at once: what a tab holds several times over. */
const RECORDS_BYTES_MAX = 64 << 20;

/**
 * What a watch begins with: the records as they are, all of one revision, without loss: { revision, definitions, configs }.
 * At most `RECORDS_BYTES_MAX` of them.
 */
export async function recordsOf(query, signal) {
  const connection = new Listening(signal);
  try {
    const headers = { Authorization: `Bearer ${key.value}`, Accept: "text/event-stream" };
    const response = await connection.hear(fetch(url("/watch", [...query, ["initial", "true"]]), { headers, signal: connection.signal, cache: "no-store", credentials: "omit" }));
    if (response.status === 401) refused.value = "it is not valid";
    if (response.status !== 200) throw new Refusal({ status: response.status, items: itemsOf(await connection.text(response.body)), requestId: response.headers.get("x-request-id"), write: false });
    let left = RECORDS_BYTES_MAX;
    const found = { revision: null, definitions: [], configs: [] };
    for await (const event of events(connection.parts(response.body))) {
      if (event.name === "error") throw new Refusal({ status: 503, items: event.data.errors, requestId: null, write: false });
      if (event.name !== "state") continue;
      left -= event.text.length;
      if (left < 0) throw new Refusal({ status: 413, items: [{ msg: "the records are more than the console compares at once: use the command line" }], requestId: null, write: false });
      const part = parse(event.text);
      found.revision = event.data.revision;
      // One after the other: a list of many thousand is no list of arguments.
      for (const name of ["definitions", "configs"]) for (const record of part.get(name)) found[name].push(record);
      if (event.data.complete) return found;
    }
    throw new Refusal({ status: 503, items: [{ msg: "the connection ended before all records were read" }], requestId: null, write: false });
  } catch (error) {
    if (!connection.isSilent && !(error instanceof TypeError)) throw error;
    throw new Refusal({ status: 0, items: [{ msg: `no answer from ${location.host}` }], requestId: null, write: false });
  } finally {
    connection.abort();
    connection.end();
  }
}
