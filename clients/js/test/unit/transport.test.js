import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import {
  Concord, ConflictError, ExactNumber, InvalidError, NotFoundError, PreconditionFailedError, ProtocolError, RateLimitedError, UnauthorizedError, UnavailableError,
  UnknownOutcomeError, op,
} from "../../src/index.js";
import { inspect } from "node:util";
import { fakeFetch, lostConnection, refused, refusedConnection, silence, success } from "../fake.js";

const URLS = ["http://a:1", "http://b:1", "http://c:1"];
const RECORD = { config_key: "acme", data: { plan: "pro" }, created_at: "2026-01-01T00:00:00.000000Z", modified_at: "2026-01-01T00:00:00.000000Z" };
const client = (fetch, more = {}) => new Concord({ urls: URLS, key: "k", fetch, timeoutMs: 2000, ...more });

test("a read goes to the next node when one is not there, and stays where it was answered", async () => {
  const { fetch, asked } = fakeFetch(({ url }) => (url.host === "a:1" ? refusedConnection() : success(RECORD)));
  const concord = client(fetch);
  const found = await concord.configs("limits").get("acme");
  assert.deepEqual([found.key, found.data, found.revision, found.definition], ["acme", { plan: "pro" }, 7, "limits"]);
  assert.deepEqual(found.source, { kind: "live", node: "1", revision: 9, ageMs: 0 });
  await concord.configs("limits").get("acme");
  assert.deepEqual(asked.map(({ url }) => url.host), ["a:1", "b:1", "b:1"]);
  assert.equal(asked[0].headers.get("authorization"), "Bearer k");
  assert.equal(asked[1].url.pathname, "/api/v1/config_definition/limits/config/acme");
});

test("a write whose connection is lost is sent again with the same idempotency key", async () => {
  const { fetch, asked } = fakeFetch(({ count }) => (count < 2 ? lostConnection() : success({ plan: "pro" }, { status: 201 })));
  const written = await client(fetch).configs("limits").create("acme", { plan: "pro" });
  assert.deepEqual(written, { definition: "limits", key: "acme", data: { plan: "pro" }, revision: 7, created: true, warnings: [] });
  const keys = new Set(asked.map(({ headers }) => headers.get("idempotency-key")));
  assert.equal(keys.size, 1);
  assert.match([...keys][0], /^[0-9a-f]{32}$/);
});

test("a write that may have been applied is unknown, whatever comes after", async () => {
  const cases = {
    "nothing but lost connections": () => lostConnection(),
    "504": () => refused(504, "timeout_error", "outcome_unknown"),
    "500": () => refused(500, "server_error", "internal_error"),
    "a lost connection, then 503": ({ count }) => (count === 0 ? lostConnection() : refused(503, "unavailable_error", "unavailable")),
    "a lost connection, then no connection": ({ count }) => (count === 0 ? lostConnection() : refusedConnection()),
    "a lost connection, then 403": ({ count }) => (count === 0 ? lostConnection() : refused(403, "forbidden_error", "forbidden")),
    "a lost connection, then the definition is gone": ({ count }) => (count === 0 ? lostConnection() : refused(404, "not_found_error", "definition_not_found")),
    "a lost connection, then a failed test": ({ count }) => (count === 0 ? lostConnection() : refused(409, "conflict_error", "patch_test_failed")),
    "the 502 of a proxy": () => new Response("<html>", { status: 502 }),
    "the 503 of a proxy": () => new Response("<html>", { status: 503 }),
    "the 200 of a proxy": () => new Response("<html>", { status: 200 }),
    silence,
  };
  for (const [name, answer] of Object.entries(cases)) {
    const { fetch } = fakeFetch(answer);
    const error = await client(fetch, { timeoutMs: 400, attemptTimeoutMs: 50 }).configs("limits").put("acme", {}, { idempotencyKey: "mine" }).catch((thrown) => thrown);
    assert.ok(error instanceof UnknownOutcomeError, `${name}: ${error}`);
    assert.equal(error.idempotencyKey, "mine", name);
    assert.ok(error.attempts.length > 0, name);
  }
});

test("a verdict of the log decides a write that was unknown", async () => {
  for (const [status, type, code, kind] of [
    [409, "conflict_error", "config_exists", ConflictError], [412, "precondition_failed", "precondition_failed", PreconditionFailedError],
    [404, "not_found_error", "config_not_found", NotFoundError],
  ]) {
    const { fetch } = fakeFetch(({ count }) => (count === 0 ? lostConnection() : refused(status, type, code, {}, { etag: '"12"' })));
    const error = await client(fetch).configs("limits").put("acme", {}).catch((thrown) => thrown);
    assert.ok(error instanceof kind, `${error}`);
    assert.equal(error.code, code);
    if (status === 412) assert.equal(error.currentRevision, 12);
  }
});

test("a write that no node took is unavailable, which is certain", async () => {
  for (const answer of [() => refusedConnection(), () => refused(503, "unavailable_error", "unavailable")]) {
    const { fetch, asked } = fakeFetch(answer);
    await assert.rejects(client(fetch, { timeoutMs: 1500 }).configs("limits").put("acme", {}), UnavailableError);
    assert.ok(asked.length >= 6, "all nodes are asked again");
  }
  const { fetch } = fakeFetch(() => refused(429, "rate_limited", "overloaded"));
  await assert.rejects(client(fetch, { timeoutMs: 1500 }).configs("limits").put("acme", {}), RateLimitedError);
});

test("Retry-After is waited for, and not beyond the time", async () => {
  const { fetch, asked } = fakeFetch(({ count }) => (count < 3 ? refused(503, "unavailable_error", "unavailable", {}, { "retry-after": "1" }) : success(RECORD)));
  const began = performance.now();
  await client(fetch, { timeoutMs: 10_000 }).configs("limits").get("acme");
  assert.ok(performance.now() - began >= 900);
  assert.equal(asked.length, 4);
  const slow = fakeFetch(() => refused(503, "unavailable_error", "unavailable", {}, { "retry-after": "60" }));
  await assert.rejects(client(slow.fetch).configs("limits").get("acme"), UnavailableError);
  assert.equal(slow.asked.length, 3);
});

test("a node that hangs takes its share of the time and no more", async () => {
  const { fetch, asked } = fakeFetch((request) => (request.url.host === "a:1" ? silence(request) : success(RECORD)));
  await client(fetch, { attemptTimeoutMs: 100, timeoutMs: 20_000 }).configs("limits").get("acme");
  assert.deepEqual(asked.map(({ url }) => url.host), ["a:1", "b:1"]);
});

test("refusals have a class, a code, and the places that are wrong", async () => {
  const body = { detail: [{ loc: ["body", "data"], msg: "missing", type: "missing" }] };
  const answers = [refused(422, "validation_error", "data_invalid", { loc: ["data", "a/b", 0] }), refused(401, "unauthorized_error", "unauthorized"), new Response(JSON.stringify(body), { status: 422 })];
  const { fetch } = fakeFetch(({ count }) => answers[count]);
  const configs = client(fetch).configs("limits");
  const invalid = await configs.put("acme", {}).catch((thrown) => thrown);
  assert.ok(invalid instanceof InvalidError);
  assert.deepEqual([invalid.code, invalid.paths, invalid.status, invalid.requestId], ["data_invalid", ["/data/a~1b/0"], 422, "r1"]);
  await assert.rejects(configs.get("acme"), UnauthorizedError);
  const detail = await configs.put("acme", {}).catch((thrown) => thrown);
  assert.deepEqual([detail.violations[0].type, detail.paths], ["missing", ["/body/data"]]);
});

test("an aborted read ends with the reason, an aborted write is unknown once it was sent", async () => {
  const reason = new Error("no longer needed");
  const { fetch, asked } = fakeFetch(silence);
  const configs = client(fetch).configs("limits");
  for (const [call, expected] of [[(signal) => configs.get("a", { signal }), (error) => error === reason], [(signal) => configs.put("a", {}, { signal }), (error) => error instanceof UnknownOutcomeError && error.cause === reason]]) {
    const stop = new AbortController();
    const done = call(stop.signal);
    setTimeout(() => stop.abort(reason), 30);
    await assert.rejects(done, expected);
  }
  const sent = asked.length;
  await assert.rejects(configs.put("a", {}, { signal: AbortSignal.abort(reason) }), (error) => error === reason);
  assert.equal(asked.length, sent, "nothing was sent");
});

test("what is no answer of Concord is said of a read", async () => {
  const { fetch } = fakeFetch(() => new Response("<html>", { status: 200 }));
  await assert.rejects(client(fetch, { timeoutMs: 1500 }).configs("limits").get("a"), ProtocolError);
});

test("headers, parameters and bodies of all kinds of calls", async () => {
  const { fetch, asked } = fakeFetch(() => success({ plan: "x", config_key: "k" }));
  const configs = client(fetch, { reason: "every day", key: () => "second" }).configs("a b");
  const last = () => asked.at(-1);
  await configs.put("k", { n: 1 }, { ifRevision: 5, reason: "größer" });
  assert.equal(last().url.pathname, "/api/v1/config_definition/a%20b/config/k");
  assert.equal(last().headers.get("if-match"), '"5"');
  assert.equal(last().headers.get("authorization"), "Bearer second");
  assert.equal(Buffer.from(last().headers.get("x-change-reason"), "latin1").toString("utf8"), "größer");
  assert.equal(last().body, '{"data":{"n":1}}');
  await configs.put("k", {}, { ifAbsent: true });
  assert.equal(last().headers.get("if-none-match"), "*");
  assert.equal(last().headers.get("x-change-reason"), "every day");
  await configs.upsert("k", {}, { dryRun: true });
  assert.equal(last().url.search, "?upsert=true&dry_run=true");
  assert.equal(last().headers.get("idempotency-key"), null, "a dry run is a read");
  await configs.patch("k", { a: null });
  assert.equal(last().headers.get("content-type"), "application/merge-patch+json");
  await configs.jsonPatch("k", [{ op: "remove", path: "/a" }]);
  assert.equal(last().headers.get("content-type"), "application/json-patch+json");
  await configs.delete("k", { ifRevision: "*" });
  assert.deepEqual([last().method, last().headers.get("if-match")], ["DELETE", "*"]);
  await configs.rollback("k", 3);
  assert.deepEqual([last().url.pathname, last().body], ["/api/v1/config_definition/a%20b/config/k/rollback", '{"revision":3}']);
  await configs.get("k", { consistency: "local", maxStalenessMs: 5, minRevision: 6, fields: ["a.b", "c,d"] });
  assert.equal(decodeURIComponent(last().url.search), "?consistency=local&max_staleness_ms=5&min_revision=6&fields=a.b,c\\,d");
  assert.throws(() => configs.put("..", {}), TypeError);
  await assert.rejects(configs.update("k", (data) => data, { idempotencyKey: "x" }), TypeError);
});

test("filters say what they mean", async () => {
  const { fetch, asked } = fakeFetch(() => success({ results: [], meta: { total: 0 } }));
  const filter = { team: ["a", "b"], tier: { gte: 2, lt: 9 }, limit: 4, tags: { in: ["x,y", "z"], exists: true }, gone: null, config_key: { prefix: "p" } };
  await client(fetch).configs("limits").list({ filter, sortBy: "tier", sortOrder: "asc", search: "s", pageSize: 3 }).all();
  assert.equal(
    decodeURIComponent(asked[0].url.search),
    '?search=s&sort_by=tier&sort_order=asc&limit=3&$include=revision&team=a&team=b&tier[gte]=2&tier[lt]=9&data.limit=4&tags=x,y&tags=z&tags[exists]=true&gone=null&config_key[prefix]=p',
  );
});

test("a list follows the links of its pages, also with another node", async () => {
  const page = (names, next) => success({ results: names.map((name) => ({ ...RECORD, config_key: name, revision: 3 })), meta: { total: 3 } }, next ? { headers: { link: `<${next}>; rel="next"` } } : {});
  const { fetch, asked } = fakeFetch(({ count }) => [page(["a", "b"], "/api/v1/config_definition/limits/config/?cursor=x"), lostConnection(), page(["c"], null)][count]);
  const list = client(fetch).configs("limits").list({ pageSize: 2 });
  const keys = [];
  for await (const config of list) keys.push(config.key);
  assert.deepEqual(keys, ["a", "b", "c"]);
  assert.equal(asked[2].url.search, "?cursor=x");
});

test("an update reads, changes and writes until nobody else was faster", async () => {
  let revision = 1;
  const { fetch, asked } = fakeFetch(({ method, headers }) => {
    if (method === "GET") return success({ ...RECORD, data: { n: revision } }, { revision });
    if (revision < 3) {
      revision += 1;
      return refused(412, "precondition_failed", "precondition_failed");
    }
    assert.equal(headers.get("if-match"), '"3"');
    return success({ n: 4 }, { revision: 4 });
  });
  const written = await client(fetch).configs("limits").update("acme", (data) => ({ n: data.n + 1 }));
  assert.equal(written.revision, 4);
  const puts = asked.filter(({ method }) => method === "PUT");
  assert.deepEqual(puts.map(({ body }) => body), ['{"data":{"n":2}}', '{"data":{"n":3}}', '{"data":{"n":4}}']);
  assert.equal(new Set(puts.map(({ headers }) => headers.get("idempotency-key"))).size, 3, "each is another write");
});

test("wrong options are refused at once", () => {
  for (const options of [{ urls: [], key: "k" }, { urls: "localhost:8101", key: "k" }, { urls: "http://a" }]) {
    assert.throws(() => new Concord(options), TypeError);
  }
  assert.deepEqual(new Concord({ urls: "http://a:1/, http://b:1", key: "k" }).urls, ["http://a:1", "http://b:1"]);
});

// --- Cases that all clients share ---

const CASES = JSON.parse(readFileSync(new URL("../../../cases.json", import.meta.url), "utf8"));

test("a reason is sent as the history has it, or refused before anything is sent", async () => {
  for (const { reason, sent } of CASES.reasons.cases) {
    const { fetch, asked } = fakeFetch(() => success({}));
    const write = client(fetch).configs("d").put("k", {}, { reason });
    if (sent === undefined) {
      await assert.rejects(write, (error) => error instanceof InvalidError && error.code === "header_invalid", JSON.stringify(reason));
      assert.equal(asked.length, 0);
    } else {
      await write;
      assert.equal(Buffer.from(asked[0].headers.get("x-change-reason"), "latin1").toString("utf8"), sent);
    }
  }
});

test("what can't be sent is never an unknown outcome", async () => {
  const { fetch, asked } = fakeFetch(() => success({}));
  const put = (options, more) => client(fetch, more).configs("d").put("k", {}, options);
  for (const idempotencyKey of ["two words", "\u00fc", ""]) await assert.rejects(put({ idempotencyKey }), InvalidError);
  await assert.rejects(put({ reason: "half of \ud83d" }), InvalidError);
  await assert.rejects(client(fetch).request({ method: "PUT", path: "/x", headers: { "X-Y": "a\nb" } }), InvalidError);
  await assert.rejects(put({}, { key: () => "a\nkey" }), (error) => error instanceof TypeError && !error.message.includes("a\nkey"));
  await assert.rejects(put({}, { key: () => { throw new RangeError("no key"); } }), RangeError);
  assert.equal(asked.length, 0);
  // After a copy that may be applied it is.
  let calls = 0;
  const lost = fakeFetch(() => lostConnection());
  const rotated = client(lost.fetch, { key: () => { if (calls++ > 0) throw new RangeError("no key"); return "k"; } });
  await assert.rejects(rotated.configs("d").put("k", {}), UnknownOutcomeError);
});

test("a filter that can't be expressed is an error and never everything", async () => {
  const { fetch, asked } = fakeFetch(() => success({ results: [], meta: { total: 0 } }));
  const list = async (filter) => client(fetch).configs("d").list({ filter }).all();
  for (const value of [new Map(), new Set(["a"]), /x/, undefined, {}, Symbol("s"), () => "a", NaN, Infinity, { gte: undefined }, [{}], { in: [undefined] }, [[]], new ExactNumberless()]) {
    await assert.rejects(list({ plan: value }), TypeError, inspect(value));
  }
  const concord = client(fetch);
  await assert.rejects(async () => concord.listConfigs({ definitions: [] }).all(), TypeError);
  await assert.rejects(async () => concord.watch({ keys: [] }).next(), TypeError);
  await assert.rejects(async () => concord.watch({ definitions: [] }).next(), TypeError);
  assert.throws(() => concord.cache("d", { keys: [] }), TypeError);
  assert.equal(asked.length, 0);
  await list({ a: [], b: { in: [] }, c: new ExactNumber("1e400"), d: 7n, e: new Date(0) });
  assert.equal(
    decodeURIComponent(asked[0].url.search).replace(/^.*revision&/, ""),
    "a[exists]=true&a[exists]=false&b[exists]=true&b[exists]=false&c=1e400&d=7&e=1970-01-01T00:00:00.000Z",
  );
});

class ExactNumberless {}

test("what prints a client prints no key", async () => {
  const { fetch } = fakeFetch(() => success({}));
  const concord = client(fetch, { key: "very-secret" });
  const cache = concord.cache("d");
  const told = [];
  for (const one of [concord, concord.configs("d"), concord.definitions, cache, cache.view("d"), concord.listConfigs(), concord.watch()]) {
    told.push(inspect(one), inspect(one, { depth: Infinity, showHidden: true }), JSON.stringify(one, (_, value) => (value instanceof Set || value instanceof Map ? [...value].length : value === cache && told.length > 8 ? null : value)));
  }
  await cache.close();
  assert.ok(!told.join().includes("very-secret"));
});

test("data that would lose something are not sent", async () => {
  const { fetch, asked } = fakeFetch(() => success({}));
  const concord = client(fetch);
  const limits = concord.configs("limits");
  const cases = {
    "/data/plans": () => limits.put("k", { plans: new Map([["a", 1]]) }),
    "/data/quota": () => limits.create("k", { quota: undefined }),
    "/data": () => limits.upsert("k", undefined),
    "/quota": () => limits.patch("k", { quota: undefined }),
    "/0/value": () => limits.jsonPatch("k", [{ op: "add", path: "/a", value: undefined }]),
    "/operations/1/data/a": () => concord.batch([op.get("limits", "k"), op.put("limits", "k", { a: new Set() })]),
    "/operations/0/patch/a": () => concord.batch([op.patch("limits", "k", { a: undefined })]),
    "/if/0/equals": () => concord.transaction({ if: [op.check("limits", "k", { pointer: "/a", equals: undefined })], else: undefined }),
  };
  for (const [place, call] of Object.entries(cases)) {
    await assert.rejects(call, (error) => error instanceof TypeError && error.message.includes(`\`${place}\``), place);
  }
  assert.equal(asked.length, 0);
});

test("what was not given is left out of a request, whatever the program passes for it", async () => {
  const { fetch, asked } = fakeFetch(() => success({ results: [], revision: 3 }));
  const concord = client(fetch);
  await concord.definitions.create("d", { indexes: undefined, schema: undefined, formatAssertion: undefined });
  await concord.definitions.setSchema("d", null, { formatAssertion: undefined });
  await concord.definitions.undelete("d", { revision: undefined, time: "2026-01-01T00:00:00Z" });
  await concord.readMany([{ definition: "d", key: "k", ifRevisionIsNot: undefined }], { revision: undefined }).catch(() => {});
  await concord.batch([op.put("d", "k", {}, { ifRevision: undefined }), op.deleteDefinition("d"), op.delete("d", "k", { ifRevision: 4 }), op.put("d", "k", {}, { ifAbsent: true })]);
  assert.deepEqual(asked.map(({ body }) => body), [
    '{"config_definition_key":"d","indexes":[]}',
    '{"json_schema":null}',
    '{"time":"2026-01-01T00:00:00Z"}',
    '{"configs":[{"config_definition_key":"d","config_key":"k"}]}',
    '{"operations":[{"op":"put_config","config_definition_key":"d","config_key":"k","data":{}},{"op":"delete_definition","config_definition_key":"d"},'
      + '{"op":"delete_config","config_definition_key":"d","config_key":"k","if_match":"4"},{"op":"put_config","config_definition_key":"d","config_key":"k","data":{},"if_none_match":"*"}]}',
  ]);
});

test("the warnings of an answer are in what each call returns", async () => {
  const warning = '299 - "without effect: unknown query parameter `a`, unknown member `b`", 299 - "an index has \\"a\\" name"';
  const told = ["without effect: unknown query parameter `a`, unknown member `b`", 'an index has "a" name'];
  const answers = { results: [], meta: { total: 0 }, revision: 3, succeeded: true, config_definition_key: "d", ...RECORD };
  const given = (header) => client(fakeFetch(() => success(answers, { headers: header === null ? {} : { warning: header } })).fetch);
  const calls = {
    create: (concord) => concord.configs("d").create("acme", {}),
    put: (concord) => concord.configs("d").put("acme", {}),
    patch: (concord) => concord.configs("d").patch("acme", {}),
    rollback: (concord) => concord.configs("d").rollback("acme", 3),
    delete: (concord) => concord.configs("d").delete("acme"),
    get: (concord) => concord.configs("d").get("acme"),
    page: (concord) => concord.configs("d").list().firstPage(),
    history: (concord) => concord.configs("d").history("acme").firstPage(),
    batch: (concord) => concord.batch([]),
    transaction: (concord) => concord.transaction({ if: [] }),
    "create a definition": (concord) => concord.definitions.create("d"),
    "set indexes": (concord) => concord.definitions.setIndexes("d", []),
    "set a schema": (concord) => concord.definitions.setSchema("d", null),
    "set unique": (concord) => concord.definitions.setUnique("d", []),
    protect: (concord) => concord.definitions.setProtection("d", true),
    "delete a definition": (concord) => concord.definitions.delete("d"),
    undelete: (concord) => concord.definitions.undelete("d"),
    "get a definition": (concord) => concord.definitions.get("d"),
    request: (concord) => concord.request({ method: "GET", path: "/usage" }),
  };
  for (const [name, call] of Object.entries(calls)) {
    assert.deepEqual((await call(given(warning))).warnings, told, name);
    assert.deepEqual((await call(given(null))).warnings, [], name);
  }
  assert.deepEqual((await calls.put(given("299 of another shape"))).warnings, ["299 of another shape"]);
});

test("a URL of a node that can't be used is refused, and shows no password", () => {
  for (const urls of CASES.urls.refused) {
    assert.throws(() => new Concord({ urls, key: "k" }), (error) => error instanceof TypeError && !error.message.includes("hunter2"), urls);
  }
});

test("an answer of another record is no answer", async () => {
  const { fetch } = fakeFetch(() => success({ ...RECORD, config_key: "other", config_definition_key: "other", indexes: [] }));
  const concord = client(fetch);
  await assert.rejects(concord.configs("limits").get("acme"), ProtocolError);
  await assert.rejects(concord.definitions.get("limits"), ProtocolError);
  const many = fakeFetch(() => success({ revision: 3, results: [{ config_definition_key: "d", config_key: "x", status: "absent", errors: [] }] }));
  await assert.rejects(client(many.fetch).readMany([{ definition: "d", key: "k" }]), ProtocolError);
});
