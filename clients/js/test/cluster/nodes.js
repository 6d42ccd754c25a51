// Three real nodes, each a process with a directory of its own: the binary that CONCORD_BIN names.
import { spawn } from "node:child_process";
import { openSync, closeSync } from "node:fs";
import { mkdtemp, rm } from "node:fs/promises";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { Concord } from "../../src/index.js";
import { until } from "../fake.js";

export const KEY = "clients-test-key-0123456789abcdef";
const BINARY = resolve(process.env.CONCORD_BIN ?? new URL("../../../../target/debug/concord", import.meta.url).pathname);

export async function freePorts(count) {
  const servers = [];
  for (let i = 0; i < count; i += 1) {
    const server = createServer();
    await new Promise((done) => { server.listen(0, "127.0.0.1", done); });
    servers.push(server);
  }
  const ports = servers.map((server) => server.address().port);
  await Promise.all(servers.map((server) => new Promise((done) => { server.close(done); })));
  return ports;
}

export class Nodes {
  static async start(settings = {}) {
    const nodes = new Nodes();
    nodes.home = await mkdtemp(join(tmpdir(), "concord-js-nodes-"));
    const ports = await freePorts(6);
    nodes.api = ports.slice(0, 3).map((port) => `127.0.0.1:${port}`);
    nodes.peer = ports.slice(3).map((port) => `127.0.0.1:${port}`);
    nodes.urls = nodes.api.map((address) => `http://${address}`);
    nodes.settings = settings;
    nodes.processes = [];
    nodes.paused = new Set();
    for (const n of [0, 1, 2]) nodes.run(n);
    await until(async () => (await Promise.all([0, 1, 2].map((n) => nodes.probe(n, "/livez")))).every((is) => is), "the nodes to start");
    const members = [0, 1, 2].map((n) => ({ id: n + 1, api_addr: nodes.api[n], peer_addr: nodes.peer[n] }));
    const made = await nodes.call(0, "POST", "/api/v1/cluster/init", { members });
    if (!made.ok) throw new Error(await made.text());
    await nodes.ready();
    return nodes;
  }

  run(n) {
    if (this.hasEnded) return;
    const log = openSync(join(this.home, `node${n + 1}.log`), "a");
    const env = {
      ...process.env, CONCORD_NODE_ID: String(n + 1), CONCORD_API_ADDR: this.api[n], CONCORD_PEER_ADDR: this.peer[n],
      CONCORD_DATA_DIR: join(this.home, `node${n + 1}`), CONCORD_CLUSTER_SECRET: "clients-test-secret-0123456789abcdef",
      CONCORD_API_KEY: KEY, CONCORD_LOG: "warn", ...this.settings,
    };
    const child = spawn(BINARY, ["serve"], { env, stdio: ["ignore", log, log] });
    closeSync(log);
    child.gone = new Promise((done, failed) => {
      child.once("exit", done);
      child.once("error", failed);
    });
    this.processes[n] = child;
  }

  async kill(n) {
    this.processes[n].kill("SIGKILL");
    await this.processes[n].gone;
  }

  pause(n) {
    this.paused.add(n);
    this.processes[n].kill("SIGSTOP");
  }

  resume(n) {
    this.paused.delete(n);
    this.processes[n].kill("SIGCONT");
  }

  isRunning(n) { return this.processes[n].exitCode === null && this.processes[n].signalCode === null; }

  async end() {
    this.hasEnded = true;
    for (const n of [0, 1, 2]) if (this.processes[n] && this.isRunning(n)) await this.kill(n);
    await rm(this.home, { recursive: true, maxRetries: 5 });
  }

  call(n, method, path, body) {
    const headers = { Authorization: KEY, "Content-Type": "application/json" };
    return fetch(`${this.urls[n]}${path}`, { method, headers, body: body && JSON.stringify(body), signal: AbortSignal.timeout(30_000) });
  }

  async probe(n, path) {
    try {
      return (await fetch(`${this.urls[n]}${path}`, { signal: AbortSignal.timeout(2000) })).ok;
    } catch {
      return false;
    }
  }

  async ready() {
    await until(async () => (await Promise.all([0, 1, 2].map((n) => this.probe(n, "/readyz")))).every((is) => is), "the nodes to be ready");
  }

  /** The index of the leader. */
  async leader() {
    let found = -1;
    await until(async () => {
      for (const n of [0, 1, 2]) {
        if (!this.isRunning(n) || this.paused.has(n)) continue;
        try {
          const { leader_id: id } = (await (await this.call(n, "GET", "/api/v1/cluster")).json()).data;
          found = (id ?? 0) - 1;
        } catch {
          continue;
        }
        if (found >= 0 && this.isRunning(found) && !this.paused.has(found)) return true;
      }
      return false;
    }, "a leader");
    return found;
  }

  client(more = {}) { return new Concord({ urls: this.urls, key: KEY, ...more }); }
}
