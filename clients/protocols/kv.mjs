// Reads and watches keys with the npm package consul, as check.py asks: one JSON text a line.

import { createInterface } from "node:readline";
import Consul from "consul";

const { CONCORD_NODE, CONCORD_API_KEY } = process.env;
const [host, port] = CONCORD_NODE.split(":");
const client = new Consul({ host, port: Number(port), defaults: { token: CONCORD_API_KEY } });

const say = (reply) => console.log(JSON.stringify(reply));
const plain = (entry) =>
  Array.isArray(entry)
    ? entry.map(plain)
    : entry ? { key: entry.Key, value: entry.Value, created: entry.CreateIndex, modified: entry.ModifyIndex } : null;

function follow({ key, recurse, wait }) {
  const watch = client.watch({ method: client.kv.get.bind(client.kv), options: { key, recurse, wait }, backoffMax: 1000 });
  watch.on("change", (found) => say({ seen: plain(found) }));
  watch.on("error", (error) => say({ trouble: String(error) }));
  watch.on("end", () => say({ ended: true }));
}

for await (const line of createInterface({ input: process.stdin })) {
  const asked = JSON.parse(line);
  try {
    if (asked.do === "follow") follow(asked);
    else if (asked.do === "keys") say({ value: await client.kv.keys({ key: asked.key, separator: asked.separator }) });
    else if (asked.do === "put") say({ value: await client.kv.set(asked.key, "x") });
    else say({ value: plain(await client.kv.get({ key: asked.key, recurse: asked.recurse })) });
  } catch (error) {
    say({ error: String(error) });
  }
}
process.exit(0);
