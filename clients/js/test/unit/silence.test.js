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
const MADE = { created_at: "t", modified_at: "t" };
/** How often each promise is put to the test: `SILENCE_TIMES=1000 npm run silence` for figures. */
const TIMES = Number(process.env.SILENCE_TIMES ?? 60);
const AT_ONCE = 20;
const CLOSE_MS_MAX = 100;
/** After which a watch takes its connection for dead, and how often a node says something: 25 and 10 seconds where there is no test. */
const [SILENCE_MS, HEARTBEAT_MS] = [1000, 50];
const TICK_MS = 5;

/** A node of one definition. While it `holds`, it takes requests and goes on with none of its answers, as behind a proxy that holds back. */
class Node {
  static async start(cluster) {
    const node = new Node();
    node.cluster = cluster;
    node.holds = false;
    node.streams = new Set();
    node.beating = setInterval(() => node.tell(event("heartbeat", { revision: cluster.revision })), HEARTBEAT_MS);
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
      const config = { config_definition_key: "d", config_key: "k", data: { n: revision }, revision, ...MADE };
      if (last === undefined) response.write(event("state", { revision, definitions: [], complete: true, configs: [config] }, revision));
      else if (Number(last) < revision) response.write(this.cluster.change());
      this.streams.add(response);
      response.on("close", () => this.streams.delete(response));
    } else {
      const text = JSON.stringify({ status: "SUCCESS", data: { config_key: "k", data: { of: this.url }, ...MADE } });
      response.writeHead(200, { "content-type": "application/json", etag: '"1"' });
      response.flushHeaders();
      if (this.stopsInside) response.write(text.slice(0, 20));
      else response.end(text);
    }
  }

  tell(text) { if (!this.holds) for (const stream of this.streams) stream.write(text); }

  end() {
    clearInterval(this.beating);
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
    const change = { type: "config_updated", config_definition_key: "d", config_key: "k", data: { n: this.revision }, ...MADE };
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

/** How long each of some pieces of work took, one after the other, in milliseconds. */
async function timesOf(pieces) {
  const times = [];
  for (const piece of pieces) times.push(await timed(piece));
  return times;
}

/** How long work takes, less the time for which a busy machine let nothing of this process run. */
async function timed(work) {
  const [begun, spent] = [performance.now(), process.cpuUsage()];
  let [last, lost] = [begun, 0];
  const tick = () => {
    const now = performance.now();
    lost += Math.max(0, now - last - TICK_MS);
    last = now;
  };
  const ticking = setInterval(tick, TICK_MS);
  try {
    await work();
  } finally {
    clearInterval(ticking);
  }
  tick();
  const { user, system } = process.cpuUsage(spent);
  return performance.now() - begun - Math.max(0, lost - (user + system) / 1000);
}

/** Tells the figures, and holds them to a bound. */
function judge(context, what, times, most) {
  const sorted = times.toSorted ? times.toSorted((a, b) => a - b) : [...times].sort((a, b) => a - b);
  const [median, longest] = [sorted[Math.floor(sorted.length / 2)], sorted.at(-1)];
  context.diagnostic(`${what}, ${times.length} times: median ${median.toFixed(1)} ms, longest ${longest.toFixed(1)} ms`);
  assert.ok(longest < most, `${what} took ${longest} ms`);
}

/** As many at once as are left of all. */
const atOnce = (done) => Math.min(AT_ONCE, TIMES - done);

test("a watch over a connection that goes silent is at another node in time, and ends at once", { timeout: 30_000 + 1000 * TIMES }, async (context) => {
  const [moved, ended] = [[], []];
  while (ended.length < TIMES) {
    const cluster = await Cluster.start(2);
    const watches = Array.from({ length: atOnce(ended.length) }, () => followed(cluster.client()));
    try {
      const isAt = ({ streams }) => streams.size === watches.length;
      await until(() => watches.every(({ seen }) => seen.length === 1), "the state");
      await collected();
      const holder = cluster.nodes.find(isAt);
      // A machine that stood still has made watches go to the other node already: nothing can be told by this round.
      if (!holder) continue;
      const begun = performance.now();
      holder.holds = true;
      cluster.put();
      moved.push(...await Promise.all(watches.map(async ({ second }) => (await second) - begun)));
      // And the other one goes silent, too: what ends a watch is the program, and no node.
      for (const node of cluster.nodes) node.holds = true;
      await collected();
      ended.push(...await timesOf(watches.map(({ end }) => end)));
      assert.ok(watches.every(({ seen }) => seen.join() === "5,6"));
    } finally {
      await Promise.all(watches.map(({ end }) => end()));
      await cluster.end();
    }
  }
  judge(context, "failover", moved, SILENCE_MS + 5000);
  judge(context, "the end of a watch", ended, CLOSE_MS_MAX);
});

/** A watch: the revisions that it has seen, when the second one came, and what ends it. */
function followed(concord) {
  concord.transport.silenceMs = SILENCE_MS;
  const stop = new AbortController();
  const seen = [];
  let tell;
  const second = new Promise((resolve) => { tell = resolve; });
  const done = (async () => {
    for await (const one of concord.watch({ definitions: "d", initial: true, signal: stop.signal })) {
      if (one.kind === "heartbeat") continue;
      seen.push(one.revision);
      if (seen.length === 2) tell(performance.now());
    }
  })();
  return { seen, second, end: () => { stop.abort(); return done; } };
}

test("a cache over a silent connection closes at once, and reconnects when it is told to", { timeout: 30_000 + 500 * TIMES }, async (context) => {
  const cluster = await Cluster.start(1);
  const times = [];
  for (let done = 0; done < TIMES; done += AT_ONCE) {
    const caches = await Promise.all(Array.from({ length: atOnce(done) }, () => cluster.client().cache("d").ready()));
    assert.ok(caches.every((cache) => cache.get("d", "k").n === 5));
    await collected();
    cluster.nodes[0].holds = true;
    times.push(...await timesOf(caches.map((cache) => () => cache.close())));
    cluster.nodes[0].holds = false;
  }
  judge(context, "the close of a cache", times, CLOSE_MS_MAX);
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
