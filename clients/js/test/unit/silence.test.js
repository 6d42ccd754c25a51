// Connections that go silent, with the `fetch` of Node.js over real ones, also after garbage collections: what `fetch` holds
// of a signal is gone then.
import assert from "node:assert/strict";
import { createServer } from "node:http";
import { test } from "node:test";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import { Concord } from "../../src/index.js";
import { event, until } from "../fake.js";

setFlagsFromString("--expose-gc");
const collect = runInNewContext("gc");
const TIMES = { created_at: "t", modified_at: "t" };

/** A node of one definition. While it `holds`, it takes requests and goes on with none of its answers, as behind a proxy that holds back. */
class Node {
  static async start(cluster) {
    const node = new Node();
    node.cluster = cluster;
    node.holds = false;
    node.streams = new Set();
    node.server = createServer((request, response) => node.answer(request, response));
    await new Promise((done) => { node.server.listen(0, "127.0.0.1", done); });
    node.url = `http://127.0.0.1:${node.server.address().port}`;
    return node;
  }

  answer(request, response) {
    if (this.holds) return;
    const { revision } = this.cluster;
    const url = new URL(request.url, "http://x");
    response.setHeader("x-concord-node", "1");
    response.setHeader("x-concord-revision", String(revision));
    if (url.pathname.endsWith("/changes")) {
      response.setHeader("x-concord-next-from", String(revision + 1));
      response.writeHead(304).end();
    } else if (url.pathname.endsWith("/watch")) {
      response.writeHead(200, { "content-type": "text/event-stream" });
      const last = request.headers["last-event-id"];
      const config = { config_definition_key: "d", config_key: "k", data: { n: revision }, revision, ...TIMES };
      if (last === undefined) response.write(event("state", { revision, definitions: [], complete: true, configs: [config] }, revision));
      else if (Number(last) < revision) response.write(this.cluster.change());
      this.streams.add(response);
      response.on("close", () => this.streams.delete(response));
    } else {
      const text = JSON.stringify({ status: "SUCCESS", data: { config_key: "k", data: { of: this.url }, ...TIMES } });
      response.writeHead(200, { "content-type": "application/json", etag: '"1"' });
      response.flushHeaders();
      if (this.stopsInside) response.write(text.slice(0, 20));
      else response.end(text);
    }
  }

  tell(text) { if (!this.holds) for (const stream of this.streams) stream.write(text); }

  end() {
    this.server.closeAllConnections();
    return new Promise((done) => { this.server.close(done); });
  }
}

class Cluster {
  static async start(count) {
    const made = new Cluster();
    made.revision = 5;
    made.nodes = await Promise.all(Array.from({ length: count }, () => Node.start(made)));
    return made;
  }

  change() {
    const change = { type: "config_updated", config_definition_key: "d", config_key: "k", data: { n: this.revision }, ...TIMES };
    return event("change", { revision: this.revision, at: "t", by: "root", reason: null, changes: [change] }, this.revision);
  }

  put() {
    this.revision += 1;
    for (const node of this.nodes) node.tell(this.change());
  }

  client(more) { return new Concord({ urls: this.nodes.map(({ url }) => url), key: "k", timeoutMs: 5000, ...more }); }

  async end() { await Promise.all(this.nodes.map((node) => node.end())); }
}

/** Collects what is garbage while nothing runs. */
async function collected(times = 1) {
  for (let time = 0; time < times; time += 1) {
    await new Promise((go) => { setTimeout(go, 20); });
    collect();
  }
}

test("a watch over a connection that goes silent is at another node in time", { timeout: 120_000 }, async () => {
  const cluster = await Cluster.start(2);
  const concord = cluster.client();
  concord.transport.silenceMs = 300;
  const stop = new AbortController();
  const seen = [];
  const done = (async () => {
    for await (const one of concord.watch({ definitions: "d", initial: true, signal: stop.signal })) if (one.kind !== "heartbeat") seen.push(one.revision);
  })();
  await until(() => seen.length === 1, "the state");
  await collected();
  const [holder] = cluster.nodes.filter(({ streams }) => streams.size > 0);
  holder.holds = true;
  cluster.put();
  await until(() => seen.length === 2, "the change, from the other node", 5000);
  stop.abort();
  await done;
  assert.deepEqual(seen, [5, 6]);
  await cluster.end();
});

test("a cache closes at once, a thousand times, and reconnects when it is told to", { timeout: 240_000 }, async () => {
  const cluster = await Cluster.start(1);
  let [longest, all] = [0, 0];
  for (let round = 0; round < 50; round += 1) {
    const caches = await Promise.all(Array.from({ length: 20 }, () => cluster.client().cache("d").ready()));
    assert.ok(caches.every((cache) => cache.get("d", "k").n === 5));
    await collected();
    const begun = performance.now();
    await Promise.all(caches.map((cache) => cache.close()));
    const took = performance.now() - begun;
    [longest, all] = [Math.max(longest, took), all + took];
  }
  // A machine that does other work as well may be slow once; without an end by the program it is seconds each time.
  assert.ok(longest < 2000 && all < 20 * 1000, `${longest} ms, ${all} in all`);
  const cache = await cluster.client().cache("d").ready();
  await collected();
  const [first] = cluster.nodes[0].streams;
  cache.watcher.reconnect();
  await until(() => cluster.nodes[0].streams.size === 1 && !cluster.nodes[0].streams.has(first), "another connection", 5000);
  await cache.close();
  await cluster.end();
});

test("an answer that stops in the middle does not hold a call longer than an attempt", { timeout: 120_000 }, async () => {
  const cluster = await Cluster.start(2);
  const concord = cluster.client({ attemptTimeoutMs: 500 });
  const [first, second] = cluster.nodes;
  first.stopsInside = true;
  for (let round = 0; round < 3; round += 1) {
    concord.transport.preferred = 0;
    const found = concord.configs("d").get("k", { timeoutMs: 20_000 });
    await collected(10);
    assert.equal((await found).data.of, second.url);
  }
  first.holds = true;
  concord.transport.preferred = 0;
  assert.equal((await concord.configs("d").get("k", { timeoutMs: 20_000 })).data.of, second.url);
  await cluster.end();
});
