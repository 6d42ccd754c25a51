// A batch, a list with a filter and a 404, by the types that openapi-typescript makes and the client openapi-fetch.
import createClient from "openapi-fetch";
import type { components, paths } from "./concord.js";

const definition = "generated-typescript";
const client = createClient<paths>({
  baseUrl: process.env.CONCORD_URL,
  headers: { Authorization: `Bearer ${process.env.CONCORD_API_KEY}` },
  // Filters are parameters of their own.
  querySerializer: { object: { style: "form", explode: true } },
});

function check(holds: boolean, seen: unknown): asserts holds {
  if (!holds) throw new Error(JSON.stringify(seen));
}

const names = (config_key: string) => ({ config_definition_key: definition, config_key });
const operations: components["schemas"]["BatchOperation"][] = [
  { op: "create_definition", config_definition_key: definition, indexes: ["port"] },
  { op: "create_config", ...names("http"), data: { port: 80 } },
  { op: "create_config", ...names("https"), data: { port: 80 } },
  { op: "patch_config", ...names("https"), patch: { port: 443 } },
];
const batch = await client.POST("/api/v1/batch", {
  params: { header: { "Idempotency-Key": "generated-typescript-1" } },
  body: { operations },
});
check(batch.data !== undefined, batch.error);
check(batch.data.data.results.map((result) => result.created).join() === "true,true,true,false", batch.data);

const list = await client.GET("/api/v1/config_definition/{config_definition_key}/config/", {
  params: { path: { config_definition_key: definition }, query: { filters: { "port[gte]": "100" } } },
});
check(list.data !== undefined, list.error);
const [found] = list.data.data.results;
check(list.data.data.meta.total === 1 && found.config_key === "https" && found.data?.port === 443, list.data);

const missing = await client.GET("/api/v1/config_definition/{config_definition_key}/config/{config_key}", {
  params: { path: names("missing") },
});
check(missing.response.status === 404 && missing.error !== undefined, missing.data);
check("errors" in missing.error && missing.error.errors[0].code === "config_not_found", missing.error);

const cluster = await client.GET("/api/v1/cluster");
check(cluster.data?.data.members.length === 1, cluster.error);
console.log("typescript: a batch, a list with a filter, a 404, the cluster");
