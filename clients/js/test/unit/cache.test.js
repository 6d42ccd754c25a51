import assert from "node:assert/strict";
import { test } from "node:test";
import { mkdtemp, readFile, readdir, rm, stat } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Concord, DataError, ForbiddenError, NotReadyError, memoryStorage, webStorage } from "../../src/index.js";
import { fileStorage } from "../../src/node.js";
import { event, fakeFetch, refused, refusedConnection, stream, success, until } from "../fake.js";

const TIMES = { created_at: "t", modified_at: "t" };

/** A cluster of one definition that answers watches and polls; `away` takes all nodes from it. */
class FakeCluster {
  constructor(configs = {}, revision = 10) {
    this.revision = revision;
    this.configs = new Map(Object.entries(configs).map(([key, data]) => [key, { data, revision }]));
    this.events = [];
    this.away = false;
    this.mutesWatches = false;
    this.watches = new Set();
    this.polls = 0;
    this.cluster = "one";
    this.fetch = fakeFetch((request) => this.answer(request)).fetch;
  }

  client(more) { return new Concord({ urls: ["http://a:1", "http://b:1"], key: "k", fetch: this.fetch, timeoutMs: 500, ...more }); }

  put(key, data) {
    this.revision += 1;
    if (data === undefined) this.configs.delete(key);
    else this.configs.set(key, { data, revision: this.revision });
    const change = data === undefined
      ? { type: "config_deleted", config_definition_key: "limits", config_key: key }
      : { type: "config_updated", config_definition_key: "limits", config_key: key, data, ...TIMES };
    const made = { revision: this.revision, at: "t", by: "root", reason: null, changes: [change] };
    this.events.push(made);
    if (!this.mutesWatches) for (const watch of this.watches) watch(event("change", made, made.revision));
  }

  answer({ url, signal, headers }) {
    if (this.away) return refusedConnection();
    if (this.refusal) return this.refusal();
    if (url.pathname.endsWith("/changes")) {
      this.polls += 1;
      const from = Number(url.searchParams.get("from") ?? this.revision + 1);
      if (from > this.revision + 1) return refused(410, "expired_error", "revision_compacted");
      const upto = this.knownByNode ?? this.revision;
      const events = this.events.filter(({ revision }) => revision >= from && revision <= upto).slice(0, 1);
      if (this.knownByNode || events.length > 0) return this.polled(events, from, upto);
      const next = { "x-concord-next-from": String(Math.max(this.revision + 1, from)), "x-concord-cluster": this.cluster };
      const more = { "x-concord-revision": String(this.revision), "x-concord-node": "1", ...next };
      return new Response(null, { status: 304, headers: more });
    }
    if (this.hasNoWatch) return refused(503, "unavailable_error", "unavailable");
    const last = headers.get("last-event-id");
    if (last > this.revision) return refused(410, "expired_error", "revision_compacted");
    const first = last === null
      ? event("state", { revision: this.revision, definitions: [], complete: true, configs: [...this.configs].map(([key, one]) => ({ config_definition_key: "limits", config_key: key, ...one, ...TIMES })) }, this.revision)
      : this.events.filter(({ revision }) => revision > Number(last)).map((one) => event("change", one, one.revision)).join("");
    const response = stream("");
    const body = new ReadableStream({
      start: (controller) => {
        const encoder = new TextEncoder();
        const send = (text) => controller.enqueue(encoder.encode(text));
        send(`retry: 1\n\n${first}`);
        this.watches.add(send);
        const end = () => {
          if (this.watches.delete(send)) controller.error(new TypeError("terminated"));
        };
        send.end = end;
        signal.addEventListener("abort", end);
      },
    });
    response.headers.set("x-concord-cluster", this.cluster);
    return new Response(body, { status: 200, headers: response.headers });
  }

  /** A poll that has a part of the changes, or of a node that does not know the last ones yet. */
  polled(events, from, upto) {
    const next = events.length > 0 ? events.at(-1).revision + 1 : Math.max(upto + 1, from);
    const headers = { "x-concord-next-from": String(next), "x-concord-cluster": this.cluster };
    if (events.length > 0) return success({ events, from: next }, { state: next - 1, headers });
    return new Response(null, { status: 304, headers: { ...headers, "x-concord-revision": String(next - 1), "x-concord-node": "1" } });
  }

  lose() {
    this.away = true;
    for (const watch of [...this.watches]) watch.end();
  }
}

const FAST = { confirmMs: 40, freshForMs: 300, saveMs: 10 };

test("it answers from memory, follows changes, and says that it is live", async () => {
  const cluster = new FakeCluster({ acme: { n: 1 } });
  const cache = cluster.client().cache("limits", FAST);
  assert.throws(() => cache.get("limits", "acme"), NotReadyError);
  await cache.ready();
  assert.deepEqual(cache.get("limits", "acme"), { n: 1 });
  assert.equal(cache.get("limits", "none"), undefined);
  assert.equal(cache.get("other", "acme"), undefined);
  const told = [];
  cache.onChange(({ key, data, previous }) => told.push([key, data, previous]));
  cluster.put("acme", { n: 2 });
  cluster.put("new", { n: 3 });
  cluster.put("acme", undefined);
  await until(() => told.length === 3, "the changes");
  assert.deepEqual(told, [["acme", { n: 2 }, { n: 1 }], ["new", { n: 3 }, undefined], ["acme", undefined, { n: 2 }]]);
  assert.deepEqual(cache.keys("limits"), ["new"]);
  let entry;
  await until(() => {
    entry = cache.entry("limits", "new");
    return entry.source.kind === "live";
  }, "a confirmation");
  assert.ok(entry.source.ageMs <= FAST.freshForMs);
  assert.deepEqual([entry.source.revision, entry.revision], [13, 12]);
  assert.throws(() => { cache.get("limits", "new").n = 4; }, TypeError, "what is shared can't be changed");
  await cache.close();
});

test("without nodes it goes on to answer, is no longer called live, and its age grows", async () => {
  const cluster = new FakeCluster({ acme: { n: 1 } });
  const problems = [];
  const cache = cluster.client().cache("limits", { ...FAST, onProblem: (error) => problems.push(error) });
  await cache.ready();
  cluster.lose();
  cluster.put("acme", { n: 2 });
  await until(() => cache.source().kind === "cache", "the end of its freshness");
  assert.ok(cache.source().ageMs > 300);
  assert.deepEqual(cache.get("limits", "acme"), { n: 1 });
  await until(() => problems.length > 0, "a problem");
  cluster.away = false;
  await until(() => cache.source().kind === "live" && cache.get("limits", "acme").n === 2, "the cluster");
  await cache.close();
});

test("a watch that is silent although there are changes is noticed", async () => {
  const cluster = new FakeCluster({ acme: { n: 1 } });
  const cache = cluster.client().cache("limits", FAST);
  await cache.ready();
  cluster.mutesWatches = true;
  cluster.put("acme", { n: 2 });
  await until(() => cache.get("limits", "acme").n === 2, "the change, by a question");
  assert.equal(cache.source().revision, 11);
  await cache.close();
});

test("it is not live while a node that lags says that there is nothing", async () => {
  const cluster = new FakeCluster({ acme: { n: 1 } });
  const cache = cluster.client().cache("limits", FAST);
  await cache.ready();
  cluster.mutesWatches = true;
  cluster.knownByNode = cluster.revision;
  cluster.put("acme", { n: 2 });
  cluster.put("acme", { n: 3 });
  const put = performance.now();
  await until(() => cache.source().kind === "cache", "the end of its freshness");
  assert.ok(cache.source().ageMs >= performance.now() - put - 100, "no answer since the change has confirmed it");
  assert.deepEqual(cache.get("limits", "acme"), { n: 1 });
  cluster.knownByNode = undefined;
  await until(() => cache.source().kind === "live", "the changes");
  assert.deepEqual(cache.get("limits", "acme"), { n: 3 }, "not before all of them are known");
  await cache.close();
});

test("a cluster that was restored to an earlier state is taken anew", async () => {
  const cluster = new FakeCluster({ acme: { n: 1 }, gone: {} }, 50);
  const cache = cluster.client().cache("limits", FAST);
  await cache.ready();
  cluster.lose();
  Object.assign(cluster, { away: false, revision: 20, configs: new Map([["acme", { data: { n: 0 }, revision: 20 }]]), events: [] });
  await until(() => cache.get("limits", "acme").n === 0, "the earlier state");
  assert.deepEqual(cache.keys("limits"), ["acme"]);
  assert.equal(cache.source().revision, 20);
  await cache.close();
});

test("what another cluster, or an earlier state, does not confirm is not live, and is replaced", async () => {
  const earlier = { revision: 20 };
  const other = { cluster: "two", revision: 50 };
  const later = { cluster: "two", revision: 70 };
  for (const change of [earlier, other, later]) {
    for (const cutsWatches of [false, true]) {
      const cluster = new FakeCluster({ acme: { n: 1 }, gone: {} }, 50);
      const problems = [];
      const options = { ...FAST, freshForMs: 3_600_000, onProblem: (error) => problems.push(error.code) };
      const cache = await cluster.client().cache("limits", options).ready();
      await until(() => cache.source().kind === "live", "a confirmation");
      const configs = new Map([["acme", { data: { n: 0 }, revision: 20 }]]);
      Object.assign(cluster, change, { configs, events: [], hasNoWatch: true });
      // Otherwise the watch stays open at a node of before.
      if (cutsWatches) for (const watch of [...cluster.watches]) watch.end();
      await until(() => cache.source().kind === "cache", "the end of its freshness");
      assert.deepEqual(cache.get("limits", "acme"), { n: 1 }, "the state can't be had yet");
      cluster.hasNoWatch = false;
      await until(() => cache.get("limits", "acme").n === 0, "the state");
      assert.deepEqual([cache.keys("limits"), cache.source().kind, cache.source().revision], [["acme"], "live", change.revision]);
      assert.ok(problems.includes("cluster_changed"), problems.join());
      cluster.put("acme", { n: 3 });
      await until(() => cache.get("limits", "acme").n === 3, "a change");
      await cache.close();
    }
  }
});

test("what an earlier run stored answers when no node does, with its age", async () => {
  const storage = memoryStorage();
  const cluster = new FakeCluster({ acme: { n: 1, big: 1 } });
  const first = await cluster.client().cache("limits", { ...FAST, storage }).ready();
  cluster.put("acme", { n: 2 });
  await until(() => first.get("limits", "acme").n === 2, "the change");
  await first.close();
  cluster.lose();
  const second = await cluster.client().cache("limits", { ...FAST, storage }).ready({ timeoutMs: 100 });
  const { data, source, revision } = second.entry("limits", "acme");
  assert.deepEqual([data, source.kind, source.revision, revision], [{ n: 2 }, "file", 11, 11]);
  assert.ok(source.ageMs >= 100 && source.ageMs < 60_000, `${source.ageMs}`);
  cluster.away = false;
  await until(() => second.source().kind === "live", "the cluster");
  await second.close();

  // A clock that was set back: nobody knows how old it is.
  storage.text = JSON.stringify({ ...JSON.parse(storage.text), confirmed_wall_ms: Date.now() + 3_600_000 });
  cluster.lose();
  const third = await cluster.client().cache("limits", { ...FAST, storage }).ready({ timeoutMs: 100 });
  assert.deepEqual([third.source().kind, third.source().ageMs], ["file", Infinity]);
  await third.close();
});

test("a store that can't be read, or is of another cache, is told and not used", async () => {
  const cluster = new FakeCluster();
  cluster.lose();
  for (const text of ["{", '{"format":"other"}', '{"format":"concord-cache-1","selection":{"definitions":["other"]}}']) {
    const problems = [];
    const cache = cluster.client().cache("limits", { ...FAST, storage: memoryStorage(text), onProblem: (error) => problems.push(String(error)) });
    await assert.rejects(cache.ready({ timeoutMs: 50 }), NotReadyError);
    assert.ok(problems.some((problem) => /JSON|kind of cache/.test(problem)), problems.join());
    await cache.close();
  }
});

test("defaults answer until something is known, and are called so", async () => {
  const cluster = new FakeCluster({ acme: { n: 1 } });
  cluster.away = true;
  const cache = await cluster.client().cache("limits", { ...FAST, defaults: { limits: { acme: { n: 0 }, other: { n: 9 } } } }).ready({ timeoutMs: 20 });
  assert.deepEqual([cache.get("limits", "acme"), cache.entry("limits", "acme").source.kind, cache.source().ageMs], [{ n: 0 }, "default", Infinity]);
  cluster.away = false;
  await until(() => cache.source().kind === "live", "the cluster");
  assert.deepEqual([cache.get("limits", "acme"), cache.get("limits", "other")], [{ n: 1 }, undefined]);
  await cache.close();
});

test("data that the validator refuses never take the place of a good value, also over a restart", async () => {
  const parse = (data) => {
    if (typeof data.n !== "number") throw new Error("n is no number");
    return { twice: 2 * data.n };
  };
  const storage = memoryStorage();
  const cluster = new FakeCluster({ acme: { n: 1 }, bad: { n: "x" } });
  const cache = await cluster.client().cache("limits", { ...FAST, storage }).ready();
  const view = cache.view("limits", { parse });
  assert.deepEqual(view.get("acme"), { twice: 2 });
  assert.throws(() => view.get("bad"), DataError);
  const told = [];
  view.onChange(({ key, data }) => told.push([key, data]));
  cluster.put("acme", { n: "y" });
  cluster.put("bad", { n: 3 });
  await until(() => told.length === 1, "the change of the other");
  assert.deepEqual(told, [["bad", { twice: 6 }]]);
  assert.deepEqual(view.get("acme"), { twice: 2 });
  const entry = view.entry("acme");
  assert.deepEqual([entry.source.kind, entry.revision, entry.invalid.revision, entry.invalid.error instanceof DataError], ["cache", 10, 11, true]);
  assert.deepEqual(view.entries(), [["acme", { twice: 2 }], ["bad", { twice: 6 }]]);
  await cache.close();
  cluster.lose();
  const again = (await cluster.client().cache("limits", { ...FAST, storage }).ready({ timeoutMs: 50 })).view("limits", { parse });
  assert.deepEqual([again.get("acme"), again.entry("acme").invalid.revision, again.entry("acme").source.kind], [{ twice: 2 }, 11, "file"]);
  cluster.away = false;
  await until(() => again.cache.source().kind === "live", "the cluster");
  assert.deepEqual([again.get("acme"), again.entry("acme").source.kind], [{ twice: 2 }, "cache"]);
  cluster.put("acme", { n: 5 });
  await until(() => again.get("acme").twice === 10, "the mended value");
  assert.equal(again.entry("acme").invalid, null);
  await again.cache.close();
});

test("a listener that throws ends nothing", async () => {
  const cluster = new FakeCluster({ acme: { n: 1 } });
  const problems = [];
  const cache = await cluster.client().cache("limits", { ...FAST, onProblem: (error) => problems.push(error.message) }).ready();
  cache.onChange(() => { throw new Error("mine"); });
  cluster.put("acme", { n: 2 });
  cluster.put("acme", { n: 3 });
  await until(() => cache.get("limits", "acme").n === 3, "the changes");
  assert.deepEqual(problems, ["mine", "mine"]);
  await cache.close();
});

test("a key without the right fails at once, and the cache goes on when it has it", async () => {
  const cluster = new FakeCluster();
  cluster.put("acme", { n: 1 });
  const none = cluster.refusal;
  cluster.refusal = () => refused(403, "forbidden_error", "forbidden");
  const cache = cluster.client().cache("limits", FAST);
  await assert.rejects(cache.ready({ timeoutMs: 30_000 }), ForbiddenError);
  cluster.refusal = none;
  await until(() => cache.failure === null && cache.get("limits", "acme")?.n === 1, "the value");
  await cache.ready();
  await cache.close();
});

test("a file is its owner's, and replaced as a whole", async () => {
  const home = await mkdtemp(join(tmpdir(), "concord-js-"));
  try {
    const storage = fileStorage(join(home, "deep", "cache.json"));
    assert.equal(await storage.load(), null);
    await storage.save("one");
    await storage.save("two");
    assert.equal(await storage.load(), "two");
    assert.equal((await stat(join(home, "deep", "cache.json"))).mode & 0o777, 0o600);
    // Two caches of one process may keep the same file: none takes the draft of the other away.
    const other = fileStorage(join(home, "deep", "cache.json"));
    const long = "x".repeat(200_000);
    await Promise.all(Array.from({ length: 20 }, (_, n) => (n % 2 ? storage : other).save(`${n}${long}`)));
    assert.match(await storage.load(), /^\d+x{200000}$/);
    await storage.save("two");
    assert.deepEqual(await readdir(join(home, "deep")), ["cache.json"]);
    const store = new Map();
    const web = webStorage("concord", { getItem: (name) => store.get(name) ?? null, setItem: (name, text) => store.set(name, text) });
    await web.save("three");
    assert.equal(await web.load(), "three");
    await assert.rejects(fileStorage(join(home, "deep", "cache.json", "below")).save("x"));
    assert.equal(await readFile(join(home, "deep", "cache.json"), "utf8"), "two");
  } finally {
    await rm(home, { recursive: true });
  }
});
