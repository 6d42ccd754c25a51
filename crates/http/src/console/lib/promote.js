// Two environments side by side, and the operations that make one as the other is. The rules are those of
// `concord promote`: a value that can't go along is left, and named.
//
// Invariants: no secret value goes to a place that is not secret, and each operation names the revision that was read.
import { definitionPath, get } from "./api.js";
import { Secret, at, print, put, same } from "./json.js";
import { marker } from "./redacted.js";
import { ANY } from "./schema.js";
import { isSecret, masked } from "./secrets.js";
import { recordsOf } from "./watch.js";

/** Definitions of each side: a change request has at most as many. */
const DEFINITIONS_MAX = 200;
/** Requests that are sent together, and times that both are read while they change. */
const [TOGETHER, TRIES] = [8, 3];
/** Operations of one change request. */
export const OPERATIONS_MAX = 1000;

export class TooMany extends Error {}

/** Both environments at one revision: { revision, sides: [source, target] }, each with `definitions` and `configs` by their keys without the name. */
export async function readBoth(from, to, signal) {
  for (let turn = 1; ; turn += 1) {
    const { revision, definitions, configs } = await recordsOf([["definition", `${from}.*`], ["definition", `${to}.*`]], signal);
    const sides = [from, to].map((name) => sideOf(`${name}.`, definitions, configs));
    for (const [place, side] of sides.entries()) if (side.definitions.size > DEFINITIONS_MAX) throw new TooMany(`${[from, to][place]} has ${side.definitions.size} definitions; at most ${DEFINITIONS_MAX} are compared`);
    if (await addRest(sides, signal)) return { revision, sides };
    if (turn === TRIES) throw new TooMany("the definitions change while they are read: try again");
  }
}

function sideOf(prefix, definitions, configs) {
  const side = { definitions: new Map(), configs: new Map() };
  for (const one of definitions) {
    const key = one.get("config_definition_key");
    if (key.startsWith(prefix)) side.definitions.set(key.slice(prefix.length), { key, revision: print(one.get("revision")), schema: one.get("json_schema") ?? null, indexes: one.get("indexes"), unique: [], formats: null });
  }
  for (const one of configs) {
    const definition = one.get("config_definition_key");
    if (!definition.startsWith(prefix)) continue;
    const short = definition.slice(prefix.length);
    side.configs.set(`${short}/${one.get("config_key")}`, { definition: short, key: one.get("config_key"), revision: print(one.get("revision")), data: one.get("data"), hidden: one.get("redacted") ?? [] });
  }
  return side;
}

/** Adds what only routes of their own tell of definitions; false if one was changed meanwhile. */
async function addRest(sides, signal) {
  const all = sides.flatMap((side) => [...side.definitions.values()]);
  let isSame = true;
  for (let place = 0; place < all.length && isSame; place += TOGETHER) {
    await Promise.all(all.slice(place, place + TOGETHER).map(async (one) => {
      const [unique, schema] = await Promise.all(["unique", "schema"].map((part) => get(`${definitionPath(one.key)}/${part}`, [], { signal })));
      one.unique = unique.data.paths;
      one.formats = schema.data.format_assertion;
      if ([unique, schema].some(({ etag }) => etag !== `"${one.revision}"`)) isSame = false;
    }));
  }
  return isSame;
}

/** What of a definition is compared, as it is shown. */
export const shownDefinition = (one) => one && new Map([["indexes", one.indexes], ["unique", one.unique], ["json_schema", one.schema], ["format_assertion", one.formats]]);

/**
 * What differs, by definition: { key, target, does, from, to, configs }, `does` is what would be done with the definition ("" for
 * nothing); each config has { key, does, from, to, left, kept }: `left` says why it can't go along, `kept` names the
 * secret values that the target keeps. `isAlike`, of the key of a definition, says whether it is made alike as well.
 */
export function compare({ sides: [source, target] }, to, isAlike) {
  const names = [...new Set([...source.definitions.keys(), ...target.definitions.keys()])].sort();
  return names.map((name) => {
    const [from, now] = [source.definitions.get(name), target.definitions.get(name)];
    const does = !now ? "create" : !from ? "only in the target" : same(shownDefinition(from), shownDefinition(now)) ? "" : "change";
    const then = isAlike(name) || !now ? from ?? now : now;
    const configs = [];
    const keys = new Set([source, target].flatMap((side) => [...side.configs.values()].filter((one) => one.definition === name).map((one) => one.key)));
    for (const key of [...keys].sort()) {
      const found = configOf(source.configs.get(`${name}/${key}`), target.configs.get(`${name}/${key}`), { from, now, then });
      if (found) configs.push({ key, ...found, left: found.left ?? (!now && !isAlike(name) ? "its definition is missing in the target" : undefined) });
    }
    return { key: name, target: `${to}.${name}`, does, from, to: now, configs };
  }).filter(({ does, configs }) => does || configs.length);
}

function configOf(source, target, schemas) {
  if (!source) return { does: "only in the target", from: undefined, to: target.data, revision: target.revision, kept: [] };
  const of = { does: target ? "change" : "create", from: source.data, to: target?.data, revision: target?.revision, kept: [] };
  const { data, kept, left } = promoted(source, target, schemas);
  if (left) return { ...of, left };
  if (target && same(withMarkers(target.data, kept), data)) return kept.length ? { ...of, does: "unseen", kept } : null;
  return { ...of, data, kept };
}

const withMarkers = (data, paths) => paths.reduce((value, path) => put(value, path, marker()), data);

/** The data as they go to the target: with markers where it keeps its own secret values; or why they can't go there. */
function promoted(source, target, { from, now, then }) {
  const kept = [];
  const hidden = source.hidden.map((text) => typedPath(source.data, text));
  for (const path of [...hidden, ...secretPaths(from.schema ?? ANY, source.data)]) {
    const place = path.join(".") || "all of it";
    if (!isSecret(then.schema ?? ANY, path)) return { left: `${place} is secret in the source, and not in the target` };
    if (!hidden.includes(path)) continue;
    if (!target) return { left: `it is new, and your key may not see its secret value at ${place}` };
    if (at(target.data, path) === undefined || !isSecret(now.schema ?? ANY, path)) return { left: `your key may not see its secret value at ${place}, and the target has none there` };
    if (!isInPlace(path, [from.schema, source], [now.schema, target])) return { left: `the list around its secret value at ${place} differs, so nobody knows which value belongs where` };
    kept.push(path);
  }
  return { data: withMarkers(source.data, kept), kept };
}

/**
 * Whether a secret value of the target at this path belongs to what stands there in the source. Elements of a list have no
 * names: only where the whole list is the same, but for its secret values, is each what it was.
 */
function isInPlace(path, ...sides) {
  const place = path.findIndex((part) => typeof part === "number");
  if (place < 0) return true;
  const [one, two] = sides.map(([schema, { data, hidden }]) => {
    const secret = [...hidden.map((text) => typedPath(data, text)), ...secretPaths(schema ?? ANY, data)];
    return at(secret.reduce((value, way) => put(value, way, null), data), path.slice(0, place));
  });
  return same(one, two);
}

/** A JSON pointer as a path: a number in a list. */
function typedPath(data, text) {
  const path = [];
  for (const part of text.split("/").slice(1)) path.push(Array.isArray(at(data, path)) ? Number(part) : part.replaceAll("~1", "/").replaceAll("~0", "~"));
  return path;
}

/** The places of secret values, the outermost. */
function secretPaths(root, data) {
  const found = [];
  const walk = (value, path) => {
    if (value instanceof Secret) found.push(path);
    else if (Array.isArray(value)) value.forEach((item, place) => walk(item, [...path, place]));
    else if (value instanceof Map) for (const [name, item] of value) walk(item, [...path, name]);
  };
  walk(masked(root, data), []);
  return found;
}

/**
 * The operations for what is chosen, as texts, the definitions of the target that they change, and what is left: { operations,
 * targets, left }. `chosen` are the configs by
 * "definition/key"; `isAlike` is that of `compare`.
 */
export function operationsFor(differences, chosen, isAlike, make) {
  const [operations, targets, left] = [[], [], []];
  for (const { key, target, does, from, to, configs } of differences) {
    // Where the source has no definition, nothing is deleted either: it may be one of the target's own.
    const wanted = from === undefined ? [] : configs.filter((one) => chosen.has(`${key}/${one.key}`) && !one.left && one.does !== "unseen");
    for (const one of configs) {
      if (one.left) left.push(`${target} / ${one.key}: ${one.left}`);
      else if (one.kept.length && one.does !== "unseen") left.push(`${target} / ${one.key} keeps its own secret values at ${one.kept.map((path) => path.join(".") || "all of it").join(", ")}`);
    }
    const isChosen = isAlike(key) && from !== undefined;
    const { before, after, note } = isChosen && does ? definitionOperations({ target, from, to }, wanted.some((one) => one.revision !== undefined), make) : { before: [], after: [] };
    if (note) left.push(`${target}: ${note}`);
    // A definition that is missing has no configs either.
    const own = to || isChosen ? wanted : [];
    const earlier = operations.length;
    operations.push(...before,
      // Deletions come first: a config that is made may have the unique value of one that goes.
      ...own.filter((one) => one.does === "only in the target").map((one) => make.onConfig("delete_config", target, one.key, [], one.revision)),
      ...own.filter((one) => one.does !== "only in the target").map((one) => make.onConfig(one.does === "create" ? "create_config" : "put_config", target, one.key, [["data", print(one.data, 0)]], one.revision)),
      ...after);
    if (operations.length > earlier) targets.push(target);
  }
  return { operations, targets, left };
}

function definitionOperations({ target, from, to }, changesConfigs, make) {
  const schema = [["json_schema", print(from.schema, 0)], ["format_assertion", from.formats === null ? undefined : String(from.formats)]];
  const unique = (paths) => make.onDefinition("set_unique", target, [["paths", JSON.stringify(paths)]]);
  if (!to) {
    const made = make.onDefinition("create_definition", target, [["indexes", JSON.stringify(from.indexes)], ...(from.schema === null ? [] : schema)]);
    return { before: [made], after: from.unique.length ? [unique(from.unique)] : [] };
  }
  const [before, after] = [[], []];
  let note;
  if (!same(from.schema, to.schema) || from.formats !== to.formats) {
    // Configs may fit the new schema only when they are changed: it is set first whatever they are, and checked at the end.
    before.push(make.onDefinition("set_schema", target, [...schema, ["policy", changesConfigs ? '"force"' : undefined]], to.revision));
    if (changesConfigs) after.push(make.onDefinition("set_schema", target, schema));
  }
  const rest = to.unique.filter((path) => from.unique.includes(path));
  const isMore = from.unique.some((path) => !rest.includes(path));
  if (rest.length < to.unique.length) before.push(unique(rest));
  if (!same(from.indexes, to.indexes)) before.push(make.onDefinition("set_indexes", target, [["indexes", JSON.stringify(from.indexes)]], before.length ? undefined : to.revision));
  if (isMore && from.unique.every((path) => to.indexes.includes(path))) after.push(unique(from.unique));
  else if (isMore) note = "its new unique fields need an index first: promote it again when that is built";
  return { before, after, note };
}
