// Environments: the cases that all clients share, without a network.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { Environment } from "../../src/environment.js";
import { ChangeRequiredError, Concord, ConflictError, EnvironmentFrozenError } from "../../src/index.js";
import { fakeFetch, refused, success } from "../fake.js";

const CASES = JSON.parse(readFileSync(new URL("../../../cases.json", import.meta.url), "utf8")).environments;
const client = (environment, more) => new Concord({ urls: ["http://a:1", "http://b:1"], key: "k", environment, ...more });
const copy = (value) => JSON.parse(JSON.stringify(value));

test("a client is of an environment, or is not made", () => {
  for (const name of CASES.names) assert.equal(client(name).environment, name);
  for (const name of [undefined, ...CASES.without_prefix]) assert.equal(client(name).environment, undefined);
  for (const name of [...CASES.refused, null, 7]) assert.throws(() => client(name), TypeError, String(name));
});

test("requests have the whole keys", () => {
  const environment = new Environment(CASES.name);
  assert.ok(CASES.requests.length > 30);
  for (const { method, path, sent, body, sent_body: sentBody } of CASES.requests) {
    assert.equal(environment.entered(method, path), sent);
    const entered = environment.enteredBody(method, path, body && JSON.stringify(body));
    assert.deepEqual(entered && JSON.parse(entered), sentBody ?? body, `${method} ${path}`);
  }
});

test("answers and events have the keys that were asked for", () => {
  const environment = new Environment(CASES.name);
  assert.ok(CASES.responses.length > 15 && CASES.events.length > 1);
  for (const { method, path, data, shown } of CASES.responses) {
    const left = copy(data);
    environment.leave(method, path, left);
    assert.deepEqual(left, shown ?? data, `${method} ${path}`);
  }
  for (const { data, shown } of CASES.events) {
    const left = copy(data);
    environment.leaveEvent(left);
    assert.deepEqual(left, shown);
  }
});

test("the next page is asked for like the first", () => {
  for (const { environment: name, link, shown, sent } of CASES.next_pages) {
    const environment = new Environment(name);
    assert.equal(environment.left(link), shown);
    assert.equal(environment.entered("GET", shown), sent);
  }
});

test("all pages are of the environment", async () => {
  const record = (key) => ({ config_definition_key: "prod.limits", config_key: key, data: {}, created_at: "t", modified_at: "t" });
  const { fetch, asked } = fakeFetch(({ count }) => success({ results: [record(`k${count}`)], meta: { total: 2 } }, {
    headers: count === 0 ? { link: '</api/v1/config?definition=prod.li*&cursor=c>; rel="next"' } : {},
  }));
  const found = await client("prod", { fetch }).listConfigs({ definitions: ["li*"], pageSize: 1 }).all();
  assert.deepEqual(found.map(({ definition, key }) => [definition, key]), [["limits", "k0"], ["limits", "k1"]]);
  assert.deepEqual(asked.map(({ url }) => url.searchParams.getAll("definition")), [["prod.li*"], ["prod.li*"]]);
});

test("numbers keep their digits in a body", () => {
  const text = '{"operations":[{"op":"put_config","config_definition_key":"d","data":{"z":7.5,"a":123456789012345678901234567890}}]}';
  assert.equal(new Environment("prod").enteredBody("POST", "/api/v1/batch", text), text.replace('"d"', '"prod.d"'));
});

test("rules of environments have errors of their own, and are not sent again", async () => {
  for (const [code, kind] of [["change_required", ChangeRequiredError], ["environment_frozen", EnvironmentFrozenError]]) {
    const { fetch, asked } = fakeFetch(() => refused(409, "conflict_error", code));
    await assert.rejects(client(undefined, { fetch }).configs("d").put("k", {}), (error) => (
      error instanceof kind && error instanceof ConflictError && error.code === code && error.status === 409));
    assert.equal(asked.length, 1);
  }
});
