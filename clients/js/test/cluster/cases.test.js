// The cases that all clients share, `clients/cases.json`, with real nodes.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { after, before, test } from "node:test";
import { ChangeRequiredError, Concord, InvalidError, NotFoundError, NotReadyError, memoryStorage, op, parseJson, stringifyJson } from "../../src/index.js";
import { until } from "../fake.js";
import { KEY, Nodes } from "./nodes.js";

const CASES = JSON.parse(readFileSync(new URL("../../../cases.json", import.meta.url), "utf8"));
let nodes;
let concord;
before(async () => {
  nodes = await Nodes.start();
  concord = nodes.client();
});
after(() => nodes.end());

/** The text of a document with its members in order, and its numbers as they are. */
function plain(value) {
  if (Array.isArray(value)) return `[${value.map(plain).join()}]`;
  if (value !== null && typeof value === "object" && Object.getPrototypeOf(value) === Object.prototype) {
    return `{${Object.keys(value).sort().map((name) => `${JSON.stringify(name)}:${plain(value[name])}`).join()}}`;
  }
  return stringifyJson(value).replace(/[eE]\+?/, "e");
}

test("documents are read and written back", async () => {
  await concord.definitions.create("documents");
  const configs = concord.configs("documents");
  const problems = [];
  const options = { confirmMs: 200, onProblem: (error) => problems.push(error) };
  const cache = await concord.cache("documents", options).ready({ timeoutMs: 60_000 });
  for (const [place, { name, text }] of CASES.documents.entries()) {
    const [key, expected] = [`k${place}`, plain(parseJson(text))];
    const stored = await fetch(`${nodes.urls[0]}/api/v1/config_definition/documents/config/`, {
      method: "POST", body: `{"config_key":"${key}","data":${text}}`, headers: { Authorization: KEY, "Content-Type": "application/json" },
    });
    assert.equal(stored.status, 201, name);
    const found = await configs.get(key);
    assert.equal(plain(found.data), expected, name);
    await until(() => cache.get("documents", key) !== undefined, name);
    assert.equal(plain(cache.get("documents", key)), expected, name);
    await configs.put(key, found.data, { ifRevision: found.revision });
    assert.equal(plain((await configs.get(key)).data), expected, name);
  }
  await cache.close();
  assert.deepEqual(problems, []);
  assert.equal((await configs.list({ pageSize: 3 }).all()).length, CASES.documents.length);
  for await (const one of concord.watch({ definitions: "documents", initial: true })) {
    if (one.kind !== "state" || !one.complete) continue;
    assert.equal(one.configs.length, CASES.documents.length);
    break;
  }
});

/** What a program does with a definition, and what it is told. */
async function everything(client, value, storage) {
  const limits = client.configs("limits");
  await client.definitions.create("limits", { indexes: ["v"] });
  await limits.create("a", { v: value });
  const first = (await limits.get("a")).revision;
  await client.batch([op.create("limits", "b", { v: value }), op.put("limits", "a", { v: value }, { ifRevision: first })]);
  const done = await client.transaction({ if: [op.check("limits", "b", { absent: false })], then: [op.get("limits", "b")], else: [] });
  await limits.update("b", (data) => ({ ...data, n: 1 }));
  const cache = await client.cache("*", { storage, confirmMs: 200 }).ready({ timeoutMs: 60_000 });
  const cached = cache.get("limits", "a");
  await cache.close();
  const told = { cached, succeeded: done.succeeded, read: done.results[0].config.data, wrote: done.results[0].definition };
  for await (const one of client.watch({ from: first })) {
    if (one.kind !== "change") continue;
    told.changes = one.changes.map(({ definition, key }) => [definition, key]);
    break;
  }
  for await (const one of client.watch({ initial: true })) {
    if (one.kind !== "state" || !one.complete) continue;
    told.state = one.configs.map(({ definition, key }) => [definition, key]).sort();
    break;
  }
  told.get = (await limits.get("a")).definition;
  told.definitions = (await client.definitions.list({ pageSize: 1 }).all()).map((one) => one.key);
  told.list = (await limits.list({ pageSize: 1, filter: { v: value } }).all()).map((one) => one.key).sort();
  told.across = (await client.listConfigs({ pageSize: 1 }).all()).map((one) => one.definition);
  told.many = (await client.readMany([{ definition: "limits", key: "a" }, { definition: "limits", key: "c" }])).results.map(({ definition, status }) => [definition, status]);
  told.history = (await limits.history("b").all()).length;
  return told;
}

test("one program runs in every environment", async () => {
  const told = [];
  for (const name of ["prod", "staging"]) {
    const storage = memoryStorage();
    const client = nodes.client({ environment: name });
    assert.equal(client.environment, name);
    told.push(JSON.stringify(await everything(client, `of ${name}`, storage)).replaceAll(`of ${name}`, "of"));
    // Without a node, what is stored is used in its environment, and in no other.
    for (const other of [name, undefined, "other"]) {
      const alone = new Concord({ urls: "http://127.0.0.1:1", key: "k", environment: other });
      const problems = [];
      const cache = alone.cache("*", { storage, onProblem: (problem) => problems.push(String(problem)) });
      if (other === name) {
        await cache.ready({ timeoutMs: 100 });
        assert.equal(cache.source().kind, "file");
        assert.deepEqual(cache.get("limits", "a"), { v: `of ${name}` });
      } else {
        await until(() => problems.some((problem) => problem.includes("of another environment")), "the problem");
        assert.throws(() => cache.get("limits", "a"), NotReadyError);
      }
      await cache.close();
    }
  }
  assert.equal(told[0], told[1]);
  const first = JSON.parse(told[0]);
  assert.deepEqual([first.definitions, first.list, first.get], [["limits"], ["a", "b"], "limits"]);
  assert.deepEqual(first.state, [["limits", "a"], ["limits", "b"]]);
  assert.deepEqual((await concord.configs("prod.limits").get("a")).data, { v: "of prod" });
  await assert.rejects(concord.configs("limits").get("a"), NotFoundError);
});

test("a restricted environment takes change requests", async () => {
  const limits = concord.configs("restricted.limits");
  await concord.definitions.create("restricted.limits");
  await concord.request({ method: "PUT", path: "/environment/restricted", body: '{"direct":"refuse","approvals":0,"freeze":[]}' });
  await assert.rejects(limits.create("a", {}), ChangeRequiredError);
  const made = await concord.propose("a limit", [op.create("restricted.limits", "a", { n: 1 })], { description: "for a customer" });
  assert.deepEqual([made.phase, made.config_definition_keys], ["open", ["restricted.limits"]]);
  assert.equal(await limits.find("a"), undefined);
  await concord.request({ method: "POST", path: `/change_request/${made.change_id}/apply`, body: JSON.stringify({ digest: made.digest }) });
  assert.deepEqual((await limits.get("a")).data, { n: 1 });
});

test("filters select what they say", async () => {
  const { indexes, schema, configs: stored, cases } = CASES.filters;
  await concord.definitions.create("filters", { indexes, schema });
  const configs = concord.configs("filters");
  for (const [key, text] of Object.entries(stored)) await configs.create(key, parseJson(text));
  for (const { path, operator, value, values, values_of: from, selects } of cases) {
    // Numbers as the client itself returned them.
    const wanted = from ? await Promise.all(from.map(async (key) => (await configs.get(key)).data[path])) : values ?? value;
    const filter = { [path]: operator ? { [operator]: wanted } : wanted };
    const found = (await configs.list({ filter }).all()).map(({ key }) => key).sort();
    assert.deepEqual(found, selects, JSON.stringify({ path, operator, value, values, from }));
  }
});

test("reasons are as the history has them", async () => {
  await concord.definitions.create("reasons");
  const configs = concord.configs("reasons");
  for (const { reason, sent } of CASES.reasons.cases) {
    const write = configs.upsert("k", {}, { reason });
    if (sent === undefined) await assert.rejects(write, InvalidError);
    else {
      await write;
      for await (const past of configs.history("k")) {
        assert.equal(past.reason, sent);
        break;
      }
    }
  }
});

/** Each secret value with the names of those that it belongs to. */
function secretsOf(value, owner = "", found = new Map()) {
  if (Array.isArray(value)) value.forEach((one) => secretsOf(one, owner, found));
  else if (value !== null && typeof value === "object") {
    const inner = `${owner}/${value.host ?? value.login ?? ""}`;
    Object.values(value).forEach((one) => secretsOf(one, inner, found));
  } else if (typeof value === "string" && value.startsWith("secret-")) found.set(value, owner);
  return found;
}

function ownersOf(value, owner = "", found = new Set()) {
  if (Array.isArray(value)) value.forEach((one) => ownersOf(one, owner, found));
  else if (value !== null && typeof value === "object") {
    const inner = `${owner}/${value.host ?? value.login ?? ""}`;
    found.add(inner);
    Object.values(value).forEach((one) => ownersOf(one, inner, found));
  }
  return found;
}

/** Numbers below a bound, the same in each run. */
function dice(seed) {
  let state = seed;
  return (below) => {
    state = (Math.imul(state, 1_103_515_245) + 12_345) & 0x7fffffff;
    return Math.floor((state / 0x80000000) * below);
  };
}

/** One change of what a caller sees. Names are never used twice. */
function edited(roll, data, turn) {
  const lists = [data.databases, ...data.databases.filter(({ users }) => users).map(({ users }) => users)];
  const chosen = lists[roll(lists.length)];
  const of = chosen === data.databases ? { host: `h-${turn}`, users: [] } : { login: `u-${turn}` };
  const at = roll(chosen.length);
  const kind = roll(8);
  if (kind === 0) data.name = `n-${turn}`;
  else if (kind === 1) chosen.splice(at, 1);
  else if (kind === 2 && chosen.length < 6) chosen.splice(roll(chosen.length + 1), 0, of);
  else if (kind === 3) chosen.reverse();
  else if (kind === 4 && chosen.length > 0) chosen.push(chosen.shift());
  else if (kind === 5 && chosen.length > 0) chosen[at].note = `${turn}`;
  else if (kind === 6 && chosen.length < 6) chosen.push({ ...of, [chosen === data.databases ? "token" : "pin"]: `secret-new-${turn}` });
  else if (kind === 7) return structuredClone(data);
  return data;
}

test("a thousand edits by a key that sees no secrets", async () => {
  await concord.definitions.create("secrets", { schema: CASES.secrets.schema });
  const configs = concord.configs("secrets");
  await configs.create("k", CASES.secrets.data);
  const made = await concord.request({
    method: "POST", path: "/api_key/", body: JSON.stringify({ name: "blind", grants: [{ verbs: ["read", "write"], definitions: ["secrets"] }] }),
  });
  const blind = nodes.client({ key: made.data.api_key, timeoutMs: 60_000 }).configs("secrets");
  const entry = await nodes.client({ key: made.data.api_key }).cache("secrets").ready({ timeoutMs: 60_000 });
  assert.ok(entry.entry("secrets", "k").redacted.includes("/databases/0/token"));
  await entry.close();
  const roll = dice(7);
  let [done, refused] = [0, 0];
  let { data: old } = await configs.get("k");
  for (let turn = 0; turn < 1000; turn += 1) {
    if (turn % 50 === 0) {
      await configs.put("k", CASES.secrets.data);
      ({ data: old } = await configs.get("k"));
    }
    const told = [];
    try {
      const written = await blind.update("k", (data) => {
        told.push(JSON.stringify(data));
        return edited(roll, data, turn);
      });
      told.push(JSON.stringify(written.data));
      done += 1;
    } catch (error) {
      if (!(error instanceof InvalidError)) throw error;
      refused += 1;
    }
    const { data: now } = await configs.get("k");
    assert.ok(!told.join().includes("secret-"), `${turn}`);
    const [before, present, owners] = [secretsOf(old), secretsOf(now), ownersOf(now)];
    // Nothing has moved to another owner, and nothing is lost but with its owner.
    for (const [secret, owner] of present) assert.equal(before.get(secret) ?? owner, owner, `${turn}: ${secret}`);
    for (const [secret, owner] of before) assert.ok(present.has(secret) || !owners.has(owner), `${turn}: ${secret}`);
    old = now;
  }
  assert.ok(done > 60 && refused > 30, `${done} done, ${refused} refused`);
});
