// What a program tests itself with.
import assert from "node:assert/strict";
import { test } from "node:test";
import { MemoryCache, startNode } from "../../src/testing.js";

const parse = (data) => {
  if (typeof data.seats !== "number") throw new Error("no seats");
  return data;
};

test("a memory cache is read as a cache, and a test changes it", async () => {
  const cache = await new MemoryCache({ limits: { acme: { seats: 3 } } }).ready();
  const heard = [];
  cache.onChange(({ key, data }) => heard.push([key, data?.seats]));
  const limits = cache.view("limits", { parse });
  assert.deepEqual([limits.get("acme").seats, cache.entry("limits", "acme").source.kind, cache.entry("limits", "acme").revision], [3, "live", 1]);
  cache.put("limits", "acme", { seats: 4 });
  assert.equal(limits.get("acme").seats, 4);
  // Data that do not fit: the last value stays, as in a program that runs.
  cache.put("limits", "acme", { seats: "many" });
  assert.equal(limits.get("acme").seats, 4);
  assert.ok(limits.entry("acme").invalid);
  cache.delete("limits", "acme");
  assert.equal(cache.get("limits", "acme"), undefined);
  assert.deepEqual(heard, [["acme", 4], ["acme", "many"], ["acme", undefined]]);
  await cache.close();
});

test("a memory cache plays the loss of its nodes, and keeps the program's own data alone", () => {
  const own = { hosts: ["a"] };
  const cache = new MemoryCache({ limits: { acme: own } });
  cache.setConnected(false);
  assert.equal(cache.entry("limits", "acme").source.kind, "cache");
  cache.setConnected(true);
  assert.equal(cache.entry("limits", "acme").source.kind, "live");
  own.hosts.push("b");
  assert.deepEqual(cache.get("limits", "acme"), { hosts: ["a"] });
  assert.throws(() => cache.get("limits", "acme").hosts.push("c"), TypeError);
});

test("a node starts and ends with its test", { skip: !process.env.CONCORD_BIN && "CONCORD_BIN names no binary" }, async () => {
  const node = await startNode();
  const client = node.client({ timeoutMs: 5000 });
  await client.definitions.create("limits");
  await client.configs("limits").create("acme", { seats: 3 });
  assert.deepEqual((await client.configs("limits").get("acme")).data, { seats: 3 });
  await node.stop();
  await assert.rejects(node.client({ timeoutMs: 300 }).configs("limits").get("acme"), { name: "UnavailableError" });
});

test("a node that does not start says so", async () => {
  await assert.rejects(startNode("/bin/false"), /does not start/);
  await assert.rejects(startNode("/no/such/program"), { code: "ENOENT" });
});
