// A program of somebody who installed the package, in JavaScript: what the cache of the other program stored answers
// without a node.
import { Concord } from "concord-config-client";
import { fileStorage } from "concord-config-client/node";

const concord = new Concord({ urls: "http://127.0.0.1:9", key: "any" });
const cache = await concord.cache("newcomer", { storage: fileStorage("newcomer-cache.json") }).ready({ timeoutMs: 100 });
const entry = cache.entry("newcomer", "acme");
console.log(entry.data.quota, entry.source.kind, entry.source.ageMs > 0);
await cache.close();
