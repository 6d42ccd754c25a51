// What takes a revision back: one batch that sets each config to what it was before, if nobody changed it since. The rules
// are those of `concord undo`.
import { call, configPath, definitionPath, get } from "./api.js";
import { print, same } from "./json.js";

/** Configs that one batch changes at most. */
const OPERATIONS_MAX = 1000;
const DEFINITIONS = {
  definition_created: "it was created: delete it on its own page",
  definition_deleted: "it was deleted: `concord definition undelete` makes it again",
};
const OTHER = "changes of definitions are not undone: its history shows what it was";

/**
 * What would be set back and what is left: { reversals, left, schemas }. A reversal is { definition, key, now, after, operation },
 * the contents without loss and undefined where there is none; `left` has { name, why }. Null when the revision changed
 * nothing that the key may read.
 */
export async function undoOf(revision, signal) {
  const answer = await get("/changes", [["from", revision], ["wait", 0], ["prev", "true"]], { signal });
  const event = answer.status === 304 ? undefined : answer.exact.get("events")[0];
  if (event === undefined || Number(print(event.get("revision"))) !== revision) return null;
  const configs = [];
  const left = [];
  for (const change of event.get("changes")) {
    const [definition, key] = [change.get("config_definition_key"), change.get("config_key")];
    if (key === undefined) left.push({ name: definition, why: DEFINITIONS[change.get("type")] ?? OTHER });
    else configs.push({ definition, key, before: change.get("prev") ?? undefined, isNew: change.get("type") === "config_created", isDeleted: change.get("type") === "config_deleted", isRedacted: Boolean(change.get("prev_redacted")?.length) });
  }
  if (configs.length > OPERATIONS_MAX) return { reversals: [], left: [{ name: `${configs.length} configs`, why: `a batch has at most ${OPERATIONS_MAX} operations` }], schemas: new Map() };
  const current = await present(configs, signal);
  const reversals = [];
  for (const [place, config] of configs.entries()) {
    const { why, reversal } = await reversalOf(revision, config, current[place], signal);
    if (why) left.push({ name: `${config.definition} / ${config.key}`, why });
    else if (reversal) reversals.push({ definition: config.definition, key: config.key, ...reversal });
  }
  // Deletions come first: a config that is made again may have the unique value of one that goes.
  reversals.sort((a, b) => Number(a.after !== undefined) - Number(b.after !== undefined));
  return { reversals, left, schemas: await schemasOf(reversals, signal) };
}

/** What the configs are now, in their order: { revision, data }, null where there is none. */
async function present(configs, signal) {
  if (configs.length === 0) return [];
  const asked = configs.map(({ definition, key }) => ({ config_definition_key: definition, config_key: key }));
  const { exact } = await call("POST", "/read", { body: JSON.stringify({ configs: asked }), safe: true, signal });
  return exact.get("results").map((one) => (one.get("status") === "found" ? { revision: Number(print(one.get("revision"))), data: one.get("config").get("data") } : null));
}

async function reversalOf(revision, { definition, key, before, isNew, isDeleted, isRedacted }, now, signal) {
  if (before === undefined && !isNew) return { why: "what it was before is not known" };
  if (now && isDeleted) return { why: `created again since, last changed at revision ${now.revision}` };
  if (now && now.revision !== revision) return { why: `changed since, at revision ${now.revision}` };
  if (!now && !isDeleted) return { why: "deleted since" };
  if (isDeleted && !await isLast(revision, definition, key, signal)) return { why: "changed by other revisions as well" };
  const operation = (op, more) => `{"op":"${op}","config_definition_key":${JSON.stringify(definition)},"config_key":${JSON.stringify(key)}${more}}`;
  const expected = `,"if_match":"${revision}"`;
  const data = now?.data;
  if (before === undefined) return now ? { reversal: { now: data, after: undefined, operation: operation("delete_config", expected) } } : {};
  if (isRedacted && !now) return { why: "it has secret values that your key may not see" };
  if (isRedacted) {
    if (!await isRetained(revision - 1, definition, key, signal)) return { why: "its secret values before are compacted" };
    return { reversal: { now: data, after: before, operation: operation("rollback_config", `,"revision":${revision - 1}${expected}`) } };
  }
  if (now && same(data, before)) return {};
  return { reversal: { now: data, after: before, operation: operation("put_config", `,"data":${print(before, 0)}${now ? expected : ',"if_none_match":"*"'}`) } };
}

/** Whether a revision made the last change of a config. */
async function isLast(revision, definition, key, signal) {
  try {
    const { data } = await get(`${configPath(definition, key)}/history`, [["limit", 1]], { signal });
    return data.results[0]?.revision === revision;
  } catch (error) {
    if (error.status !== 404) throw error;
    return false;
  }
}

async function isRetained(revision, definition, key, signal) {
  try {
    await get(configPath(definition, key), [["revision", revision]], { signal });
    return true;
  } catch (error) {
    if (error.status !== 404 && error.status !== 410) throw error;
    return false;
  }
}

/** The schemas of the definitions, which say what is secret. */
async function schemasOf(reversals, signal) {
  const schemas = new Map();
  for (const name of new Set(reversals.map(({ definition }) => definition))) {
    schemas.set(name, (await get(`${definitionPath(name)}/schema`, [], { signal })).exact.get("json_schema"));
  }
  return schemas;
}

/** The body of the batch. */
export const undoBody = (reversals) => `{"operations":[\n${reversals.map(({ operation }) => operation).join(",\n")}\n]}`;
