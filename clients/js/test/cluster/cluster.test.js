// The client against three real nodes.
import assert from "node:assert/strict";
import { join } from "node:path";
import { after, before, test } from "node:test";
import {
  ConflictError, ExactNumber, InvalidError, NotFoundError, PreconditionFailedError, UnauthorizedError, UnavailableError, UnknownOutcomeError, Concord, op,
} from "../../src/index.js";
import { fileStorage } from "../../src/node.js";
import { until } from "../fake.js";
import { Nodes, freePorts } from "./nodes.js";

/** @type {Nodes} */
let nodes;
/** @type {Concord} */
let concord;
before(async () => {
  nodes = await Nodes.start();
  concord = nodes.client();
  await concord.definitions.create("limits", {
    indexes: ["plan", "quota"],
    schema: { type: "object", required: ["plan"], properties: { plan: { enum: ["free", "pro"] }, quota: { type: "integer", minimum: 0 }, note: {} } },
  });
});
after(() => nodes?.end());

test("configs are created, read, replaced, patched, deleted and brought back", async () => {
  const limits = concord.configs("limits");
  const made = await limits.create("acme", { plan: "pro", quota: 10 });
  assert.deepEqual([made.created, made.data], [true, { plan: "pro", quota: 10 }]);
  await assert.rejects(limits.create("acme", { plan: "pro" }), (error) => error instanceof ConflictError && error.code === "config_exists");
  const found = await limits.get("acme");
  assert.deepEqual([found.revision, found.data, found.key, found.source.kind], [made.revision, { plan: "pro", quota: 10 }, "acme", "live"]);
  assert.match(found.createdAt, /^\d{4}-.*Z$/);

  const put = await limits.put("acme", { plan: "free" }, { ifRevision: found.revision, reason: "größer" });
  await assert.rejects(limits.put("acme", { plan: "pro" }, { ifRevision: found.revision }), (error) => error instanceof PreconditionFailedError && error.currentRevision === put.revision);
  await assert.rejects(limits.put("acme", { plan: "pro" }, { ifAbsent: true }), PreconditionFailedError);
  await assert.rejects(limits.put("none", { plan: "pro" }), NotFoundError);
  assert.equal((await limits.upsert("none", { plan: "pro" })).created, true);
  assert.equal((await limits.upsert("none", { plan: "free" })).created, false);
  assert.deepEqual((await limits.patch("acme", { quota: 5, plan: "pro" })).data, { plan: "pro", quota: 5 });
  assert.deepEqual((await limits.jsonPatch("acme", [{ op: "test", path: "/quota", value: 5 }, { op: "replace", path: "/quota", value: 6 }])).data.quota, 6);
  await assert.rejects(limits.jsonPatch("acme", [{ op: "test", path: "/quota", value: 5 }]), (error) => error.code === "patch_test_failed");

  const invalid = await limits.put("acme", { plan: "gold", quota: -1 }).catch((error) => error);
  assert.ok(invalid instanceof InvalidError);
  assert.deepEqual([invalid.code, [...invalid.paths].sort()], ["data_invalid", ["/data/plan", "/data/quota"]]);
  assert.equal((await limits.put("acme", { plan: "free" }, { dryRun: true })).revision, null);

  const history = await limits.history("acme", { pageSize: 2 }).all();
  assert.deepEqual(history.map(({ operation }) => operation), ["update", "update", "update", "create"]);
  assert.equal(history[2].reason, "größer");
  assert.deepEqual((await limits.get("acme", { revision: made.revision })).data, { plan: "pro", quota: 10 });
  assert.equal(await limits.find("acme", { revision: made.revision - 1 }), undefined, "the config did not exist");
  assert.equal(await limits.find("acme", { revision: 1 }), undefined, "nor did its definition");
  await limits.delete("acme");
  assert.equal(await limits.find("acme"), undefined);
  assert.equal((await limits.rollback("acme", made.revision)).created, true);
  assert.deepEqual((await limits.get("acme", { fields: ["quota"] })).data, { quota: 10 });
});

test("numbers keep their value", async () => {
  const limits = concord.configs("limits");
  const big = new ExactNumber("123456789012345678901234567890");
  await limits.create("exact", { plan: "pro", note: { big, huge: new ExactNumber("1e400"), many: 2n ** 64n, small: 7 } });
  const { note } = (await limits.get("exact")).data;
  assert.deepEqual([note.big.text, Number(note.huge.toNumber()), note.many.toBigInt(), note.small], [big.text, Infinity, 2n ** 64n, 7]);
  await limits.put("exact", (await limits.get("exact")).data);
  assert.equal((await limits.get("exact")).data.note.big.text, big.text);
  await limits.delete("exact");
});

test("lists are filtered, sorted, paged, of one state, of the past, and across definitions", async () => {
  await concord.definitions.create("items", { indexes: ["n", "tag", "limit"] });
  await concord.batch(Array.from({ length: 25 }, (_, n) => op.create("items", `i${n}`, { n, tag: n % 2 ? "odd,one" : "even", limit: n })));
  const items = concord.configs("items");
  const keys = async (options) => (await items.list(options).all()).map(({ key }) => key);
  assert.deepEqual(await keys({ filter: { n: { gte: 20, lt: 23 } }, sortBy: "n", sortOrder: "desc" }), ["i22", "i21", "i20"]);
  assert.deepEqual(await keys({ filter: { n: [3, 5], tag: { in: ["odd,one", "x"] } }, sortBy: "n", sortOrder: "asc" }), ["i3", "i5"]);
  assert.deepEqual(await keys({ filter: { limit: 7 } }), ["i7"], "a field that has the name of a parameter");
  const list = items.list({ pageSize: 4, sortBy: "n", sortOrder: "asc" });
  const seen = [];
  let revision = 0;
  for await (const page of list.pages()) {
    assert.equal(page.total, 25);
    revision ||= page.revision;
    assert.equal(page.revision, revision);
    seen.push(...page.items.map(({ key }) => key));
    if (seen.length === 4) await items.create("late", { n: 1 });
  }
  assert.deepEqual(seen, Array.from({ length: 25 }, (_, n) => `i${n}`));
  assert.equal((await items.list().all()).length, 26);
  assert.ok((await items.list({ pageSize: 1 }).firstPage()).items[0].revision > 0);
  assert.equal((await items.list({ revision }).all()).length, 25);
  const across = await concord.listConfigs({ definitions: ["it*"], search: "late" }).all();
  assert.deepEqual(across.map(({ definition, key }) => `${definition}/${key}`), ["items/late"]);
  await assert.rejects(keys({ filter: { other: 1 } }), (error) => error.code === "query_invalid");
});

test("definitions: indexes, schema, unique paths, history, deletion", async () => {
  const { definitions } = concord;
  const { revision } = await definitions.create("d", { indexes: ["a"], schema: { properties: { a: { type: "string" } } } });
  assert.ok(revision > 0);
  await definitions.setIndexes("d", ["a", "b"].slice(0, 1));
  await concord.configs("d").create("one", { a: "x" });
  const dry = await definitions.setSchema("d", { properties: { a: { type: "integer" } } }, { dryRun: true });
  assert.deepEqual([dry.breakingCount, dry.revision], [1, null]);
  await assert.rejects(definitions.setSchema("d", { properties: { a: { type: "integer" } } }), (error) => error.code === "config_breaks_schema");
  await definitions.setSchema("d", { properties: { a: { type: "string", maxLength: 5 } } });
  assert.equal((await definitions.schema("d")).schema.properties.a.maxLength, 5);
  await definitions.setUnique("d", ["a"]);
  assert.deepEqual(await definitions.unique("d"), ["a"]);
  await assert.rejects(concord.configs("d").create("two", { a: "x" }), (error) => error.code === "unique_taken");
  assert.deepEqual((await definitions.indexes("d")).map(({ path, state }) => [path, state]), [["a", "ready"]]);
  assert.ok((await definitions.history("d").all()).length >= 3);
  assert.equal((await definitions.get("d")).key, "d");
  assert.ok((await definitions.list({ search: "d" }).all()).every(({ revision: of }) => of > 0));
  await assert.rejects(definitions.delete("d", { restrict: true }), (error) => error.code === "definition_not_empty");
  await definitions.setProtection("d", true);
  await assert.rejects(definitions.delete("d"), (error) => error.code === "definition_protected");
  assert.equal(await definitions.protection("d"), true);
  await definitions.setProtection("d", false);
  await definitions.delete("d");
  await assert.rejects(definitions.get("d"), NotFoundError);
  const [kept] = await definitions.deleted();
  assert.ok(kept.key === "d" && kept.configs > 0 && kept.bytes > 0 && kept.revision > 0 && kept.deletedAt.endsWith("Z"));
  await definitions.undelete("d");
  assert.ok((await definitions.deleted()).every(({ key }) => key !== "d"));
  assert.deepEqual((await concord.configs("d").get("one")).data, { a: "x" });
  await definitions.delete("d", { purge: true });
  await assert.rejects(definitions.undelete("d"), NotFoundError);
  const { warnings } = await definitions.create("form", { indexes: ["fields"] });
  assert.ok(warnings.length === 1 && warnings[0].startsWith("an index has the name of a parameter"), warnings.join());
  assert.deepEqual((await definitions.setIndexes("form", [])).warnings, []);
  await definitions.delete("form");
});

test("batches, transactions and reads of many", async () => {
  await concord.definitions.create("bank");
  const bank = concord.configs("bank");
  const made = await concord.batch([op.create("bank", "ann", { balance: 100 }), op.put("bank", "bob", { balance: 20 }, { ifAbsent: true })]);
  assert.deepEqual(made.results.map(({ key, created }) => [key, created]), [["ann", true], ["bob", true]]);
  const at0 = (await bank.get("ann")).revision ?? 0;
  const stale = concord.batch([op.patch("bank", "ann", { balance: 1 }, { ifRevision: at0 - 1 }), op.delete("bank", "bob", { ifRevision: at0 })]);
  await assert.rejects(stale, (error) => error instanceof PreconditionFailedError && error.violations[0].loc[1] === 0);
  await concord.batch([
    op.patch("bank", "ann", { balance: 100 }, { ifRevision: at0 }), op.put("bank", "bob", { balance: 20 }, { ifRevision: "*" }), op.setIndexes("bank", ["balance"], { ifRevision: "*" }),
    op.createDefinition("short", { indexes: ["a"] }), op.deleteDefinition("short", { restrict: true }),
  ]);
  const failed = await concord.batch([op.patch("bank", "ann", { balance: 0 }), op.delete("bank", "none")]).catch((error) => error);
  assert.ok(failed instanceof NotFoundError);
  assert.deepEqual(failed.violations[0].loc, ["operations", 1]);
  const transaction = {
    if: [op.check("bank", "ann", { pointer: "/balance", equals: 100 })],
    then: [op.put("bank", "ann", { balance: 70 }), op.patch("bank", "bob", { balance: 50 })],
    else: [op.get("bank", "ann")],
  };
  assert.equal((await concord.transaction(transaction)).succeeded, true);
  const second = await concord.transaction(transaction);
  assert.deepEqual([second.succeeded, second.results[0].config?.data], [false, { balance: 70 }]);
  const { revision: at, results } = await concord.readMany([{ definition: "bank", key: "bob" }, { definition: "bank", key: "none" }, { definition: "bank", key: "ann", ifRevisionIsNot: (await bank.get("ann")).revision ?? 0 }]);
  assert.ok(at >= (made.revision ?? 0));
  assert.deepEqual(results.map(({ status }) => status), ["found", "absent", "not_modified"]);
  assert.deepEqual(results[0].status === "found" && results[0].config.data, { balance: 50 });
  await concord.batch([op.rollback("bank", "ann", made.revision ?? 0)]);
  assert.equal((await bank.get("ann")).data.balance, 100);
});

test("a wrong key, a wrong node, a request that is done once", async () => {
  await assert.rejects(nodes.client({ key: "wrong" }).configs("limits").get("x"), UnauthorizedError);
  const [port] = await freePorts(1);
  const none = new Concord({ urls: [`http://127.0.0.1:${port}`], key: "k", timeoutMs: 500 });
  await assert.rejects(none.configs("limits").put("x", { plan: "pro" }), UnavailableError);
  const limits = concord.configs("limits");
  const first = await limits.create("once", { plan: "pro" }, { idempotencyKey: "this-intent" });
  assert.deepEqual(await limits.create("once", { plan: "pro" }, { idempotencyKey: "this-intent" }), first);
  assert.equal((await concord.whoami()).key_id ?? "root", "root");
});

test("increments of four clients, while the leader is killed, are all there", async () => {
  await concord.configs("limits").create("count", { plan: "pro", quota: 0 });
  let told = 0;
  /** How often a write was unknown: it may be there once, and is not counted twice. */
  let unknown = 0;
  const worker = async () => {
    const limits = nodes.client({ timeoutMs: 60_000 }).configs("limits");
    for (let i = 0; i < 10; i += 1) {
      try {
        await limits.update("count", (data) => ({ ...data, quota: data.quota + 1 }));
        told += 1;
      } catch (error) {
        if (!(error instanceof UnknownOutcomeError)) throw error;
        unknown += 1;
      }
    }
  };
  const leader = await nodes.leader();
  const done = Promise.all([worker(), worker(), worker(), worker()]);
  await until(() => told >= 8, "the first increments");
  await nodes.kill(leader);
  await done;
  nodes.run(leader);
  await nodes.ready();
  const { quota } = (await concord.configs("limits").get("count")).data;
  assert.ok(quota >= told && quota <= told + unknown, `${quota} of ${told} and ${unknown} unknown`);
});

test("a watch tells each change once and in order, over the death of the node that it is at", async () => {
  const watching = nodes.client();
  const start = (await concord.configs("limits").upsert("w", { plan: "pro", quota: 0 })).revision ?? 0;
  const seen = [];
  const stop = new AbortController();
  const done = (async () => {
    for await (const event of watching.watch({ definitions: "limits", from: start + 1, signal: stop.signal })) {
      if (event.kind !== "change") continue;
      for (const change of event.changes) if (change.key === "w") seen.push([event.revision, change.data?.quota]);
      if (seen.at(-1)?.[1] === 30) return;
    }
  })();
  const wrote = [];
  for (let quota = 1; quota <= 30; quota += 1) {
    wrote.push([(await concord.configs("limits").put("w", { plan: "pro", quota })).revision, quota]);
    if (quota === 15) {
      await until(() => seen.length > 0, "the watch");
      await nodes.kill(watching.transport.preferred);
    }
  }
  await done;
  stop.abort();
  assert.deepEqual(seen, wrote);
  for (const n of [0, 1, 2]) if (!nodes.isRunning(n)) nodes.run(n);
  await nodes.ready();
});

test("a cache answers when all nodes are killed, says how old it is, and a later run begins with its file", async () => {
  const limits = concord.configs("limits");
  await limits.upsert("cached", { plan: "pro", quota: 1 });
  const file = join(nodes.home, "cache", "limits.json");
  const open = () => nodes.client().cache("limits", { storage: fileStorage(file), confirmMs: 300, freshForMs: 2000, saveMs: 20 });
  const first = await open().ready({ timeoutMs: 60_000 });
  const { revision } = await limits.put("cached", { plan: "pro", quota: 2 });
  await until(() => first.get("limits", "cached")?.quota === 2, "the change");
  assert.equal(first.entry("limits", "cached")?.revision, revision);
  await until(() => first.source().kind === "live", "a live cache");
  await first.close();

  const second = await open().ready({ timeoutMs: 60_000 });
  const gone = Date.now();
  await Promise.all([0, 1, 2].map((n) => nodes.kill(n)));
  await until(() => second.source().kind === "cache", "the end of its freshness");
  assert.deepEqual(second.get("limits", "cached"), { plan: "pro", quota: 2 });
  const { ageMs } = second.source();
  assert.ok(ageMs > 2000 && ageMs <= Date.now() - gone + 2000, `${ageMs}`);
  await second.close();

  const third = await open().ready({ timeoutMs: 200 });
  const entry = third.entry("limits", "cached");
  assert.deepEqual([entry?.data, entry?.source.kind, entry?.revision], [{ plan: "pro", quota: 2 }, "file", revision]);
  assert.ok((entry?.source.ageMs ?? 0) >= ageMs);
  for (const n of [0, 1, 2]) nodes.run(n);
  await nodes.ready();
  await limits.put("cached", { plan: "free" });
  await until(() => third.get("limits", "cached")?.plan === "free" && third.source().kind === "live", "the cluster");
  await third.close();
  
});
