// The program that makes the calls of `clients/conformance`.
import { createInterface } from "node:readline";

import { ApiError, Concord, NotReadyError, ProtocolError, UnavailableError, UnknownOutcomeError } from "../src/index.js";
import { fileStorage } from "../src/node.js";
import { parse, stringify } from "../src/json.js";

const PATIENCE_MS = 40_000;

/** What a call results in. */
async function made(client, call) {
  const { do: what, definition, config: key } = call;
  const options = { ifRevision: call.if_match, reason: call.reason, idempotencyKey: call.idempotency_key, revision: call.revision, consistency: call.consistency };
  const configs = definition && client.configs(definition);
  switch (what) {
    case "get": {
      const found = await configs.get(key, options);
      return { data: found.data, revision: found.revision };
    }
    case "put": case "create": return { revision: (await configs[what](key, call.data, options)).revision };
    case "patch": return { revision: (await configs.patch(key, call.patch, options)).revision };
    case "delete": await configs.delete(key, options); return {};
    case "update": return { revision: (await configs.update(key, (data) => ({ ...data, ...call.set }))).revision };
    case "list": {
      const keys = [];
      for await (const one of configs.list({ pageSize: call.page_size })) keys.push(one.key);
      return keys;
    }
    case "batch": return { revision: (await client.batch(call.operations)).revision };
    case "request": {
      const body = call.body === undefined ? undefined : stringify(call.body);
      return (await client.request({ method: call.method, path: call.path, body, idempotencyKey: call.idempotency_key })).data;
    }
    default: {
      const found = [];
      for await (const event of client.watch({ definitions: definition, from: call.from })) {
        if (event.kind === "change") found.push(...event.changes.map((one) => ({ revision: event.revision, type: one.type, config: one.key, data: one.data ?? null })));
        if (found.length >= call.take) break;
      }
      return found;
    }
  }
}

class Cached {
  constructor(client, definition) { Object.assign(this, { client, definition, cache: null }); }

  async step(step) {
    if (step.do === "start") {
      const storage = step.file ? fileStorage(step.file) : undefined;
      this.cache = this.client.cache(this.definition, { storage, confirmMs: 1000, freshForMs: 3000 });
      await this.cache.ready({ timeoutMs: 1000 * step.start_timeout_s });
      return {};
    }
    if (step.do === "stop") {
      await this.cache?.close();
      this.cache = null;
      return {};
    }
    const end = Date.now() + PATIENCE_MS;
    for (;;) {
      const found = this.get(step.config);
      const isThere = ["data", "is_fresh", "missing"].every((name) => !(name in step) || stringify(found[name] ?? null) === stringify(step[name]));
      if (step.do === "get" || isThere || Date.now() > end) return found;
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
  }

  get(key) {
    const found = this.cache.entry(this.definition, key);
    if (!found) return { missing: true };
    const { data, revision, source: { kind } } = found;
    return { data, revision, is_fresh: kind === "live", ...(kind === "file" ? { source: "file" } : {}) };
  }
}

async function outcome(run) {
  try {
    return { value: await run() };
  } catch (error) {
    if (error instanceof UnknownOutcomeError) return { error: { kind: "unknown", idempotency_key: error.idempotencyKey } };
    if (error instanceof ApiError) {
      if (!error.url) return { error: { kind: "invalid" } };
      return { error: { kind: "rejected", status: error.status, code: error.code, paths: error.paths, current_revision: error.currentRevision ?? null } };
    }
    if (error instanceof UnavailableError) return { error: { kind: "unavailable" } };
    if (error instanceof ProtocolError) return { error: { kind: "protocol" } };
    if (error instanceof NotReadyError) return { error: { kind: "not_ready" } };
    console.error(error);
    return { error: { kind: "invalid" } };
  }
}

const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const tell = (found) => process.stdout.write(`${stringify(found)}\n`);
let cached = null;
for await (const line of lines) {
  const asked = parse(line);
  if (asked.step) {
    tell(await outcome(() => cached.step(asked.step)));
    continue;
  }
  await cached?.step({ do: "stop" });
  const { urls, key, timeout_s: timeout, attempt_timeout_s: attempt, environment, reader = null, labels } = asked.client;
  const client = new Concord({ urls, key, timeoutMs: 1000 * Number(timeout), attemptTimeoutMs: 1000 * Number(attempt), environment, reader, labels });
  cached = asked.call.do === "cache" ? new Cached(client, asked.call.definition) : null;
  tell(cached ? { value: {} } : await outcome(() => made(client, asked.call)));
}
await cached?.step({ do: "stop" });
