import assert from "node:assert/strict";
import { test } from "node:test";
import { Concord, ExpiredError, ForbiddenError } from "../../src/index.js";
import { event, fakeFetch, lostConnection, refused, silence, stream } from "../fake.js";

const client = (fetch) => new Concord({ urls: ["http://a:1", "http://b:1"], key: "k", fetch, timeoutMs: 1000 });
const change = (revision, key = "acme") => event("change", {
  revision, at: "t", by: "root", reason: null,
  changes: [{ type: "config_updated", config_definition_key: "limits", config_key: key, data: { n: revision }, created_at: "t", modified_at: "t" }],
}, revision);
const state = (revision, keys, complete) => event("state", {
  revision, complete, definitions: [],
  configs: keys.map((key) => ({ config_definition_key: "limits", config_key: key, data: {}, created_at: "t", modified_at: "t", revision: 1 })),
}, complete ? revision : undefined);

async function seen(watch, wanted) {
  const found = [];
  for await (const one of watch) {
    found.push(one.kind === "state" ? `state ${one.configs.map(({ key }) => key)}${one.complete ? "." : ""}` : `${one.kind}${one.revision ? ` ${one.revision}` : ""}`);
    if (found.length === wanted) return found;
  }
  return found;
}

test("events are found wherever the bytes are cut", async () => {
  const text = `retry: 1000\n\n${event("heartbeat", { revision: 3 }, 3)}${change(4, "größe")}${event("later", { x: 1 })}${change(5)}`;
  for (const size of [1, 2, 3, 7, 64, 10_000]) {
    const { fetch } = fakeFetch(({ signal }) => stream(text, { size, stays: true, signal }));
    assert.deepEqual(await seen(client(fetch).watch({ from: 4 }), 3), ["heartbeat 3", "change 4", "change 5"], `${size} bytes`);
  }
});

test("after a loss it goes on after the last event, at another node, and passes nothing on twice", async () => {
  const answers = [() => stream(change(4) + change(5)), () => lostConnection(), ({ signal }) => stream(change(5) + change(6), { stays: true, signal })];
  const { fetch, asked } = fakeFetch((request) => answers[request.count](request));
  assert.deepEqual(await seen(client(fetch).watch({ definitions: ["limits", "billing.*"], from: 4 }), 3), ["change 4", "change 5", "change 6"]);
  assert.equal(decodeURIComponent(asked[0].url.search), "?definition=limits&definition=billing.*&from=4");
  assert.equal(asked[0].headers.get("last-event-id"), null);
  assert.equal(asked[2].headers.get("last-event-id"), "5");
  assert.notEqual(asked[0].url.host, asked[1].url.host);
});

test("a state that is cut begins anew, after a reset", async () => {
  const answers = [() => stream(state(7, ["a"], false)), ({ signal }) => stream(state(8, ["a", "b"], false) + state(8, ["c"], true) + change(9), { stays: true, signal })];
  const { fetch, asked } = fakeFetch((request) => answers[request.count](request));
  assert.deepEqual(await seen(client(fetch).watch({ initial: true }), 5), ["state a", "reset", "state a,b", "state c.", "change 9"]);
  assert.ok(asked.every(({ url, headers }) => url.searchParams.get("initial") === "true" && headers.get("last-event-id") === null));
});

test("changes that are no longer retained: the present state, or an error", async () => {
  const gone = () => refused(410, "expired_error", "revision_compacted");
  const told = () => stream(event("error", { errors: [{ type: "expired_error", code: "revision_compacted", msg: "gone" }] }));
  for (const first of [gone, told]) {
    const { fetch } = fakeFetch(({ count, signal }) => [() => stream(state(3, ["a"], true)), first, () => stream(state(9, ["b"], true), { stays: true, signal })][count]());
    assert.deepEqual(await seen(client(fetch).watch({ initial: true }), 3), ["state a.", "reset", "state b."]);
    const strict = fakeFetch(first);
    await assert.rejects(seen(client(strict.fetch).watch({ from: 2 }), 1), ExpiredError);
  }
});

test("a right that is gone ends it, a node that stops does not", async () => {
  const stops = () => stream(change(4) + event("error", { errors: [{ type: "unavailable_error", code: "unavailable", msg: "stops" }] }));
  const ends = () => stream(change(5) + event("error", { errors: [{ type: "forbidden_error", code: "forbidden", msg: "not granted" }] }));
  const { fetch } = fakeFetch(({ count }) => [stops, ends][count]());
  const found = [];
  await assert.rejects(async () => { for await (const one of client(fetch).watch({ from: 4 })) found.push(one.revision); }, ForbiddenError);
  assert.deepEqual(found, [4, 5]);
});

test("a signal ends it, and a time without a node", async () => {
  const stop = new AbortController();
  const { fetch } = fakeFetch(silence);
  setTimeout(() => stop.abort(), 50);
  assert.deepEqual(await seen(client(fetch).watch({ signal: stop.signal }), 1), []);
  const none = fakeFetch(() => lostConnection());
  await assert.rejects(seen(client(none.fetch).watch({ giveUpAfterMs: 100 }), 1), /no answer|ECONNRESET/);
});
