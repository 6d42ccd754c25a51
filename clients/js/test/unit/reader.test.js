// Readers and candidates: the cases that all clients share, and what a cache reports, without a network.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { hostname } from "node:os";
import { test } from "node:test";
import { Concord, memoryStorage } from "../../src/index.js";
import { isReadAsReader, variantOf } from "../../src/reader.js";
import { event, fakeFetch, refused, success, until } from "../fake.js";

const CASES = JSON.parse(readFileSync(new URL("../../../cases.json", import.meta.url), "utf8")).readers;
const TIMES = { created_at: "t", modified_at: "t" };
const FOUND = { config_key: "acme", data: { n: 1 }, ...TIMES };

function client(options, answer = () => success(FOUND)) {
  const { fetch, asked } = fakeFetch(answer);
  return { concord: new Concord({ urls: ["http://a:1"], key: "k", fetch, timeoutMs: 500, ...options }), asked };
}

test("a reader is sent as it is, or the client is not made", async () => {
  assert.ok(CASES.sent.length > 4 && CASES.refused.length > 10);
  for (const { reader, labels, reader_header: name = null, labels_header: text = null } of CASES.sent) {
    const { concord, asked } = client({ reader, labels });
    await concord.configs("limits").get("acme");
    assert.equal(asked[0].headers.get("x-concord-reader"), name);
    assert.equal(asked[0].headers.get("x-concord-labels"), text);
  }
  for (const { reader, labels } of CASES.refused) assert.throws(() => client({ reader, labels }), TypeError, JSON.stringify({ reader, labels }));
  for (const reader of [7, {}]) assert.throws(() => client({ reader }), TypeError);
  assert.equal(client({}).concord.reader, process.getBuiltinModule ? hostname() : process.env.HOSTNAME ?? null);
});

test("what follows configs has the reader", () => {
  for (const { method, path, is_sent: isSent } of CASES.requests) assert.equal(isReadAsReader(method, path), isSent, `${method} ${path}`);
  for (const { header, change } of CASES.variants) assert.equal(variantOf(header), change);
  assert.equal(variantOf(null), null);
});

test("a candidate says whose it is, has no revision, and an update rests on what is proven", async () => {
  const { concord, asked } = client({ reader: "h" }, ({ headers, method }) => {
    if (method === "PUT") return success({ n: 2 }, { revision: 8 });
    if (!headers.get("x-concord-reader")) return success(FOUND, { revision: 7 });
    return success({ ...FOUND, data: { n: 9 } }, { headers: { etag: '"change-1"', "x-concord-variant": "candidate; change=change-1" } });
  });
  const found = await concord.configs("limits").get("acme");
  assert.deepEqual([found.variant, found.revision, found.data], ["change-1", 0, { n: 9 }]);
  await concord.configs("limits").update("acme", (data) => ({ n: data.n + 1 }));
  assert.equal(asked.at(-1).headers.get("if-match"), '"7"');
  assert.equal(asked.at(-1).body, '{"data":{"n":2}}');
});

/** A node that sends a state with a candidate, what a test sends afterwards, and takes reports. */
function following({ mayReport = true, data = { n: 1 }, variant = { change_id: "change-1" } } = {}) {
  const node = { revision: 5, send: () => {}, reports: [], watches: [] };
  const answer = ({ url, method, headers, body, signal }) => {
    if (method === "POST") {
      node.reports.push({ path: url.pathname, ...JSON.parse(body) });
      return mayReport ? success({}) : refused(403, "forbidden_error", "forbidden");
    }
    if (url.pathname.endsWith("/changes")) {
      const more = { "x-concord-next-from": String(node.revision + 1), "x-concord-revision": String(node.revision) };
      return new Response(null, { status: 304, headers: more });
    }
    node.watches.push(headers.get("x-concord-reader"));
    const body2 = new ReadableStream({
      start(controller) {
        const write = (text) => controller.enqueue(new TextEncoder().encode(text));
        node.send = (revision, change) => {
          node.revision = revision;
          const made = { type: "config_updated", config_definition_key: "limits", config_key: "acme", ...TIMES, ...change };
          write(event("change", { revision, at: "t", by: "root", reason: null, changes: [made] }, revision));
        };
        const config = { config_definition_key: "limits", config_key: "acme", data, revision: 3, ...(variant ? { variant } : {}), ...TIMES };
        write(event("state", { revision: 5, definitions: [], configs: [config], complete: true }, 5));
        signal.addEventListener("abort", () => controller.error(new TypeError("terminated")));
      },
    });
    return new Response(body2, { headers: { "content-type": "text/event-stream" } });
  };
  return { node, answer };
}

/** A cache whose reports are not waited for. */
function cacheOf(answer, options, more = { reader: "h", labels: { ring: "canary" } }) {
  const cache = client(more, answer).concord.cache("limits", { confirmMs: 50, ...options });
  cache.reporter.times = { everyMs: 20, firstWithinMs: 0, lookMs: 20 };
  return cache;
}

test("a candidate is reported healthy until the validator refuses it, and stays the good one", async () => {
  const { node, answer } = following();
  const storage = memoryStorage();
  const cache = cacheOf(answer, { storage, saveMs: 10 });
  const view = cache.view("limits", { parse: (data) => { if (data.n > 1) throw new Error(`${data.n} is too many`); return data; } });
  await cache.ready();
  assert.equal(view.entry("acme").variant, "change-1");
  await until(() => node.reports.length > 1, "reports");
  const labels = { ring: "canary" };
  const { instance, ...second } = node.reports[1];
  assert.match(instance, /^[0-9a-f]{32}$/);
  assert.equal(node.reports[0].instance, instance);
  assert.deepEqual(second, { path: "/api/v1/change_request/change-1/report", reader: "h", labels, state: "healthy" });
  node.send(6, { data: { n: 2 }, revision: 3, variant: { change_id: "change-1" } });
  await until(() => node.reports.at(-1).state === "failed", "the failure");
  assert.match(node.reports.at(-1).detail, /limits\/acme.*2 is too many/);
  assert.deepEqual([view.get("acme"), view.entry("acme").variant], [{ n: 1 }, "change-1"]);
  await until(() => storage.text?.includes('"variant":"change-1"'), "the stored variant");
  // The rollout is taken back: the config has an earlier revision than what came before.
  node.send(7, { data: { n: 0 }, revision: 3 });
  await until(() => view.get("acme").n === 0, "what is proven");
  assert.deepEqual([cache.entry("limits", "acme").revision, cache.entry("limits", "acme").variant], [3, null]);
  const count = node.reports.length;
  await new Promise((resolve) => setTimeout(resolve, 100));
  assert.equal(node.reports.length, count, "there is nothing to report of any more");
  await cache.close();
});

test("a config that a validator refuses is reported outside rollouts until it does not", async () => {
  const { node, answer } = following({ variant: null });
  const cache = cacheOf(answer);
  const view = cache.view("limits", { parse: (data) => { if (data.n > 1) throw new Error("too many"); return data; } });
  await cache.ready();
  await new Promise((resolve) => setTimeout(resolve, 100));
  assert.deepEqual(node.reports, [], "what runs well is silent");
  node.send(6, { data: { n: 2 }, revision: 6 });
  await until(() => node.reports.length > 1, "the failure, twice");
  const { path, state, revision, detail } = node.reports[1];
  assert.deepEqual([path, state, revision], ["/api/v1/config_definition/limits/config/acme/report", "failed", 6]);
  assert.match(detail, /limits\/acme.*too many/);
  assert.deepEqual(view.get("acme"), { n: 1 });
  node.send(7, { data: { n: 0 }, revision: 7 });
  await until(() => node.reports.at(-1).state === "healthy", "its end");
  assert.equal(node.reports.at(-1).revision, 7);
  const count = node.reports.length;
  await new Promise((resolve) => setTimeout(resolve, 100));
  assert.equal(node.reports.length, count);
  await cache.close();
});

test("a refused report of a config stops them for a while", async () => {
  const { node, answer } = following({ variant: null, mayReport: false, data: { n: 2 } });
  const problems = [];
  const cache = cacheOf(answer, { onProblem: (error) => problems.push(error) });
  cache.view("limits", { parse: () => { throw new Error("no"); } });
  const refusals = () => problems.filter((error) => error.status === 403);
  await until(() => refusals().length > 0, "the refusal");
  await new Promise((resolve) => setTimeout(resolve, 100));
  assert.deepEqual([node.reports.length, refusals().length], [1, 1]);
  await cache.close();
});

test("a key that may not report is told so once", async () => {
  const { node, answer } = following({ mayReport: false });
  const problems = [];
  const cache = cacheOf(answer, { onProblem: (error) => problems.push(error) });
  await until(() => problems.length > 0, "the refusal");
  await new Promise((resolve) => setTimeout(resolve, 100));
  assert.deepEqual([node.reports.length, problems.map((error) => error.status)], [1, [403]]);
  await cache.close();
});

test("without a reader, and with a filter, what is proven is followed and nothing reported", async () => {
  for (const [more, options] of [[{ reader: null }, {}], [{ reader: "h" }, { filter: { n: 1 } }]]) {
    const { node, answer } = following();
    const cache = cacheOf(answer, options, more);
    await cache.ready();
    assert.deepEqual(node.watches, [null]);
    await cache.close();
  }
});

/** What a view's validator throws, and the reason that is reported of it. */
const hostile = { get path() { throw new Error("no path"); }, message: "s3cret" };
const issues = (...issues) => Object.assign(new Error("s3cret"), { issues });
const THROWN = [
  ["zod", issues({ path: ["plan", "seats", 0], code: "invalid_type", message: "received 's3cret'" }), "limits/acme: /plan/seats/0 invalid_type"],
  ["valibot", issues({ path: [{ key: "n", value: "s3cret", input: {} }], kind: "schema", type: "number", message: "s3cret" }), "limits/acme: /n number"],
  ["Standard Schema", issues({ path: ["a", { key: 1 }, Symbol("b")], message: "s3cret" }, { message: "s3cret" }), "limits/acme: /a/1/b; /"],
  ["a path that is a text", issues({ path: "s3cret.n", message: "s3cret", type: "min" }), "limits/acme: min"],
  ["a path of anything", issues({ path: [{ toString() { throw new Error("s3cret"); } }], code: { s3cret: 1 } }, null, 7), "limits/acme: an issue; /; /"],
  ["a code that is a value", issues({ path: [], code: "got 's3cret'", kind: "validation" }), "limits/acme: / validation"],
  ["a path that throws", issues(hostile), "limits/acme: the validator refuses it, and its reason can't be read"],
  ["a text that throws", { toString() { throw new Error("s3cret"); } }, "the data of limits/acme are not what the program expects: an error without a text"],
  ["no object", Symbol("no"), "the data of limits/acme are not what the program expects: Symbol(no)"],
  ["nothing", Object.create(null), "the data of limits/acme are not what the program expects: an error without a text"],
];

test("whatever a validator throws is reported, without values, and ends nothing", async () => {
  for (const [name, thrown, reason] of THROWN) {
    for (const variant of [null, { change_id: "change-1" }]) {
      const { node, answer } = following({ variant });
      const cache = cacheOf(answer);
      const view = cache.view("limits", { parse: (data) => { if (data.n === 1) throw thrown; return data; } });
      await until(() => node.reports.some(({ state }) => state === "failed"), name);
      assert.equal(node.reports[0].detail, reason, name);
      node.send(6, { data: { n: 2 }, revision: 6, ...(variant ? { variant } : {}) });
      await until(() => node.reports.at(-1).state === "healthy", `${name}: what follows`);
      assert.deepEqual(view.get("acme"), { n: 2 }, name);
      await cache.close();
    }
  }
});

test("an error inside a report is told once, and ends neither the reports nor the cache", async () => {
  const { node, answer } = following({ variant: null });
  const problems = [];
  // What is told a problem may throw as well.
  const onProblem = (error) => { problems.push(error); throw new Error("no"); };
  const cache = cacheOf(answer, { onProblem });
  const view = cache.view("limits", { parse: (data) => { if (data.n === 1) throw issues(hostile); return data; } });
  const { all } = cache.reporter;
  let isBroken = true;
  let looks = 0;
  cache.reporter.all = () => {
    looks += 1;
    if (isBroken) throw new RangeError("broken");
    return all.call(cache.reporter);
  };
  await until(() => looks > 1, "a second look");
  assert.equal(problems.filter((error) => error instanceof RangeError).length, 1);
  isBroken = false;
  await until(() => node.reports.length > 0, "the report");
  node.send(6, { data: { n: 2 }, revision: 6 });
  await until(() => view.keys().length === 1 && view.entries().length === 1, "the change");
  await cache.close();
});
