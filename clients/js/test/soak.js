// The client beside a model, while nodes are killed and paused.
//
//   SEED=1 DURATION_S=600 CONCORD_BIN=... node test/soak.js
//
// Writers count up configs by `update`. Watches, caches and the cluster's history are compared with what was acknowledged:
//
// - no lost update: every acknowledged write is in the history once, and the counts of a config rise by one;
// - no missed change: a watch has every change of the history, once and in order;
// - no stale value called fresh: at any read from a cache, no write is missing that was acknowledged before `ageMs` ago;
//   `live` only while that is short; and no cache goes back;
// - with all nodes killed, caches answer, and a new one begins with the file.
import assert from "node:assert/strict";
import { join } from "node:path";
import { UnavailableError, UnknownOutcomeError } from "../src/index.js";
import { fileStorage } from "../src/node.js";
import { Nodes } from "./cluster/nodes.js";
import { until } from "./fake.js";

const SEED = Number(process.env.SEED ?? 1);
const DURATION_S = Number(process.env.DURATION_S ?? 600);
const KEYS = Array.from({ length: 8 }, (_, n) => `k${n}`);
const CACHE = { confirmMs: 1000, freshForMs: 3000, saveMs: 200 };
/** Time for the clocks of a timer and of an acknowledgement to differ. */
const SLACK_MS = 2;

/** Numbers from 0 to 1, the same for the same seed (mulberry32). */
function random(seed) {
  let a = seed;
  return () => {
    a = (a + 0x6d2b79f5) | 0;
    let t = Math.imul(a ^ (a >>> 15), 1 | a);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}
const sleep = (ms) => new Promise((resolve) => { setTimeout(resolve, ms); });
const count = { writes: 0, unknown: 0, unavailable: 0, kills: 0, pauses: 0, blackouts: 0, watched: 0, starts: 0, reads: {}, ageMax: 0, liveAgeMax: 0 };

/** What was acknowledged of a config, in the order of time. */
class Model {
  constructor() {
    this.ids = new Map();
    this.acknowledged = new Map(KEYS.map((key) => [key, []]));
  }

  wrote(key, id, revision, at) {
    this.ids.set(id, revision);
    const all = this.acknowledged.get(key);
    // The largest revision that was acknowledged up to a moment is what must be seen after it.
    all.push({ at, revision: Math.max(revision, all.at(-1)?.revision ?? 0) });
  }

  /** The revision that every reader must have who knows all that was acknowledged at a moment. */
  least(key, at) {
    const all = this.acknowledged.get(key);
    let [low, high] = [0, all.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (all[middle].at < at) low = middle + 1;
      else high = middle;
    }
    return low === 0 ? 0 : all[low - 1].revision;
  }
}

const model = new Model();
const rng = random(SEED);
let isOver = false;
let ids = 0;

async function writer(nodes, name) {
  const next = random(SEED * 1000 + name);
  // Half of them have little patience: they end with unknown outcomes.
  const patience = name % 2 ? { timeoutMs: 20_000 } : { timeoutMs: 1200, attemptTimeoutMs: 400 };
  const configs = nodes.client(patience).configs("soak");
  while (!isOver) {
    const key = KEYS[Math.floor(next() * KEYS.length)];
    ids += 1;
    const id = ids;
    try {
      const written = await configs.update(key, (data) => ({ n: data.n + 1, id }));
      model.wrote(key, id, written.revision, performance.now());
      count.writes += 1;
    } catch (error) {
      if (error instanceof UnknownOutcomeError) count.unknown += 1;
      else if (error instanceof UnavailableError) count.unavailable += 1;
      else throw error;
    }
    await sleep(next() * 40);
  }
}

/** Compares an entry with the model. */
function judge(cache, key, seen) {
  const entry = cache.entry("soak", key);
  const now = performance.now();
  assert.ok(entry, `${key} is gone`);
  const { source, revision } = entry;
  count.reads[source.kind] = (count.reads[source.kind] ?? 0) + 1;
  const least = model.least(key, now - source.ageMs - SLACK_MS);
  assert.ok(revision >= least, `stale: ${key} has revision ${revision} with an age of ${source.ageMs} ms as ${source.kind}, and ${least} was acknowledged before`);
  if (source.kind === "live") {
    assert.ok(source.ageMs <= CACHE.freshForMs);
    count.liveAgeMax = Math.max(count.liveAgeMax, source.ageMs);
  }
  count.ageMax = Math.max(count.ageMax, source.ageMs);
  assert.ok(revision >= (seen.get(key) ?? 0), `${key} went back from ${seen.get(key)} to ${revision}`);
  seen.set(key, revision);
}

async function reader(cache) {
  const seen = new Map();
  while (!isOver) {
    for (const key of KEYS) judge(cache, key, seen);
    await sleep(3);
  }
}

async function watcher(nodes, from, found, stop) {
  for await (const event of nodes.client().watch({ definitions: "soak", from, signal: stop })) {
    if (event.kind === "change") for (const change of event.changes) found.push(`${event.revision} ${change.key} ${change.data.n} ${change.data.id}`);
  }
}

async function chaos(nodes) {
  const end = performance.now() + DURATION_S * 1000;
  while (performance.now() < end - 5000) {
    await sleep(1000 + rng() * 3000);
    const what = rng();
    const n = rng() < 0.5 ? await nodes.leader() : Math.floor(rng() * 3);
    if (what < 0.4) {
      count.kills += 1;
      await nodes.kill(n);
      await sleep(rng() * 3000);
      nodes.run(n);
    } else if (what < 0.9) {
      count.pauses += 1;
      nodes.pause(n);
      await sleep(500 + rng() * 7500);
      nodes.resume(n);
    } else await blackout(nodes);
    await nodes.ready();
  }
  await sleep(Math.max(end - performance.now(), 0));
}

async function blackout(nodes) {
  count.blackouts += 1;
  await Promise.all([0, 1, 2].map((n) => nodes.kill(n)));
  const cache = nodes.client().cache("soak", { ...CACHE, storage: fileStorage(join(nodes.home, "cache.json")) });
  await cache.ready({ timeoutMs: 100 });
  assert.equal(cache.source().kind, "file");
  count.starts += 1;
  const seen = new Map();
  for (let i = 0; i < 100; i += 1) {
    for (const key of KEYS) judge(cache, key, seen);
    await sleep(20);
  }
  for (const n of [0, 1, 2]) nodes.run(n);
  await until(() => cache.source().kind === "live", "the cache that began with the file");
  for (const key of KEYS) judge(cache, key, seen);
  // The file stays that of the long-lived cache: this one only reads it.
  cache.options.storage = undefined;
  await cache.close();
}

async function compare(nodes, start, watched) {
  const configs = nodes.client().configs("soak");
  const changes = [];
  for (const key of KEYS) {
    let n = null;
    for await (const past of configs.history(key, { pageSize: 1000 })) {
      if (n !== null) assert.equal(past.data.n, n - 1, `${key}: an update was lost before ${n}`);
      n = past.data.n;
      if (past.revision >= start) changes.push([past.revision, `${past.revision} ${key} ${past.data.n} ${past.data.id}`, past.data.id]);
    }
    assert.equal(n, 0, `${key} begins with 0`);
  }
  changes.sort((a, b) => a[0] - b[0]);
  const inHistory = new Map();
  for (const [revision, , id] of changes) {
    assert.ok(!inHistory.has(id), `the write ${id} was done twice`);
    inHistory.set(id, revision);
  }
  for (const [id, revision] of model.ids) assert.equal(inHistory.get(id), revision, `the acknowledged write ${id}`);
  const unacknowledged = changes.length - model.ids.size;
  assert.ok(unacknowledged <= count.unknown, `${unacknowledged} writes that nobody acknowledged, ${count.unknown} unknown`);
  for (const found of watched) {
    await until(() => found.length >= changes.length, "the end of a watch");
    assert.deepEqual(found, changes.map(([, text]) => text));
    count.watched += found.length;
  }
  return changes.length;
}

function speed(cache) {
  const view = cache.view("soak");
  const measure = (call) => {
    const began = performance.now();
    let done = 0;
    for (; performance.now() - began < 500; done += 10_000) for (let i = 0; i < 10_000; i += 1) call(KEYS[i & 7]);
    return Math.round(done / (performance.now() - began) * 1000);
  };
  const [values, entries] = [measure((key) => view.get(key)), measure((key) => view.entry(key))];
  return { values_per_s: values, entries_with_source_per_s: entries };
}

const nodes = await Nodes.start();
try {
  const first = nodes.client();
  await first.definitions.create("soak");
  for (const key of KEYS) await first.configs("soak").create(key, { n: 0, id: 0 });
  const start = ((await first.configs("soak").get(KEYS.at(-1))).revision ?? 0) + 1;
  const caches = [0, 1, 2].map((n) => nodes.client().cache("soak", { ...CACHE, storage: n === 0 ? fileStorage(join(nodes.home, "cache.json")) : undefined }));
  for (const cache of caches) await cache.ready({ timeoutMs: 60_000 });
  await sleep(500);
  const stop = new AbortController();
  const watched = [[], []];
  const watches = watched.map((found) => watcher(nodes, start, found, stop.signal));
  const work = [...[1, 2, 3, 4].map((name) => writer(nodes, name)), ...caches.map(reader)];
  await Promise.race([chaos(nodes), Promise.all(work)]);
  await nodes.ready();
  isOver = true;
  await Promise.all(work);
  const changes = await compare(nodes, start, watched);
  for (const cache of caches) {
    await until(() => KEYS.every((key) => cache.entry("soak", key).revision >= model.least(key, Infinity)), "the caches");
    for await (const config of first.configs("soak").list()) assert.deepEqual(cache.get("soak", config.key), config.data);
  }
  const reads = speed(caches[1]);
  stop.abort();
  await Promise.all(watches);
  for (const cache of caches) await cache.close();
  const report = { seed: SEED, duration_s: DURATION_S, changes, ...count, age_max_ms: Math.round(count.ageMax), live_age_max_ms: Math.round(count.liveAgeMax), ...reads };
  delete report.ageMax;
  delete report.liveAgeMax;
  console.log(JSON.stringify(report));
  assert.ok(count.writes > 0 && count.reads.live > 0);
} catch (error) {
  // Said before the end: what goes on meanwhile may fail, too.
  console.error(`seed ${SEED}:`, error);
  process.exitCode = 1;
} finally {
  isOver = true;
  await nodes.end();
  if (process.exitCode) process.exit();
}
