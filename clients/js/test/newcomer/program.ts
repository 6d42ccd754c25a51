// A program of somebody who installed the package: compiled with its types, then run. Its last lines are refused by the
// compiler if the types are right.
import { Concord, InvalidError, NotFoundError, op, type Config, type Source } from "concord-config-client";
import { fileStorage } from "concord-config-client/node";

interface Limit { plan: "free" | "pro"; quota?: number }

const concord = new Concord({ urls: process.env.CONCORD_URL ?? "", key: process.env.CONCORD_API_KEY ?? "" });
await concord.definitions.create("newcomer", {
  indexes: ["plan"],
  schema: { type: "object", required: ["plan"], properties: { plan: { enum: ["free", "pro"] }, quota: { type: "integer" } } },
});
const parse = (data: any): Limit => {
  if (data.plan !== "free" && data.plan !== "pro") throw new Error("no plan");
  return data;
};
const limits = concord.configs("newcomer", { parse });
await limits.create("acme", { plan: "free" });
const found: Config<Limit> = await limits.get("acme");
await limits.put("acme", { ...found.data, plan: "pro" }, { ifRevision: found.revision! });
await limits.update("acme", (data) => ({ ...data, quota: (data.quota ?? 0) + 1 }));
for await (const one of limits.list({ filter: { plan: "pro" } })) console.log(one.key, one.data.plan, one.data.quota);
try {
  await limits.put("acme", { plan: "gold" } as unknown as Limit);
} catch (error) {
  if (!(error instanceof InvalidError)) throw error;
  console.log(error.code, error.paths.join());
}
await concord.batch([op.patch("newcomer", "acme", { quota: 7 }), op.create("newcomer", "other", { plan: "free" })]);
const cache = await concord.cache("newcomer", { storage: fileStorage("newcomer-cache.json") }).ready();
const view = cache.view("newcomer", { parse });
const quota: number | undefined = view.get("acme")?.quota;
const source: Source = cache.source();
console.log(quota, source.kind, view.keys().sort().join());
await cache.close();
await concord.definitions.delete("newcomer");
try {
  await limits.get("acme");
} catch (error) {
  console.log(error instanceof NotFoundError && error.code);
}

// @ts-expect-error a plan that there is not
if (Math.random() > 1) await limits.put("acme", { plan: "gold" });
// @ts-expect-error an option that there is not
if (Math.random() > 1) await limits.get("acme", { ifMatch: 3 });
// @ts-expect-error a client needs a key
if (Math.random() > 1) new Concord({ urls: "http://127.0.0.1:8101" });
