// A change request as somebody edits it: its content is read from the preview and sent again as the operations of a new edition.
//
// Invariant: nothing that the node did not show is written. In place of a value that the key may not see stands a marker, by
// which the config keeps the value that it has now; what can't be told so is not edited here.
import { get } from "./api.js";
import { at, print, put } from "./json.js";
import { isKept, marker } from "./redacted.js";
import { changePath } from "./reviews.js";
import { schemasFor } from "./schemas.js";
import { onConfig, onDefinition, operation } from "./operations.js";

export const PREVIEW = [["include", "preview"]];

/** The change request with its preview, and the schemas that say what of it is secret, by definition. */
export async function readChange(id, signal) {
  const answer = await get(changePath(id), PREVIEW, { signal, once: true });
  const records = answer.exact.get("preview")?.get("records") ?? [];
  return { change: answer.data, etag: answer.etag, records, revision: answer.revision, schemas: await schemasOf(records, signal), seen: summary(answer.data) };
}

/** What of a change request says that it must be read again with its preview. How far its rollout is changes nothing of that. */
export function summary({ preview, rollout, ...rest }) { return JSON.stringify(rest); }

/** The schemas now, before and after the change say what of it is secret. */
function schemasOf(records, signal) {
  const ofConfigs = records.filter((one) => one.has("config_key"));
  const more = records.filter((one) => !one.has("config_key")).flatMap((one) => ["before", "after"].map((then) => one.get(then)).filter((then) => then instanceof Map).map((then) => [one.get("config_definition_key"), then.get("json_schema")]));
  return schemasFor(ofConfigs.map((one) => one.get("config_definition_key")), signal, more);
}

const nameOf = ({ config_definition_key: definition, config_key: config, environment }) => environment ?? (config === undefined ? definition : `${definition} / ${config}`);
const pathOf = (pointer) => pointer.replace(/^#/, "").split("/").slice(1).map((part) => decodeURIComponent(part).replaceAll("~1", "/").replaceAll("~0", "~"));

/**
 * Data of the preview with a marker for each value that is not shown: { data, hidden }, their places. Null if it can't
 * be told which value a marker would keep: within a list, or where the preview names not all places.
 */
export function keepingHidden(data, pointers) {
  if (pointers.some((pointer) => pointer === "..." || pathOf(pointer).length === 0)) return null;
  const hidden = [];
  for (const pointer of pointers) {
    const path = pathOf(pointer);
    const parents = path.map((_, depth) => at(data, path.slice(0, depth)));
    if (parents.some((value) => Array.isArray(value))) return null;
    // The places are those of before and of after: one that is of before alone is not in this data.
    if (!(parents.at(-1) instanceof Map) || !parents.at(-1).has(path.at(-1))) continue;
    data = put(data, path, marker());
    hidden.push(path);
  }
  return { data, hidden };
}

/** The places of a part at which a value stays that the key may not see. */
export const keptIn = (part, value) => part.hidden.filter((path) => isKept(at(value, path)));

/** Members of an operation on a definition, of what it will be. */
const MEMBERS = {
  create_definition: (then) => [["indexes", print(then.get("indexes"), 0)], ...schemaMembers(then)],
  set_schema: (then, { force }) => [...(then.get("json_schema") === null ? [["json_schema", "null"]] : schemaMembers(then)), ["policy", force ? '"force"' : undefined]],
  set_indexes: (then) => [["indexes", print(then.get("indexes"), 0)]],
  set_unique: (then) => [["paths", print(then.get("unique"), 0)]],
  set_protection: (then) => [["protected", print(then.get("protected"), 0)]],
  delete_definition: (then, { restrict }) => [["mode", restrict ? '"restrict"' : undefined]],
  undelete_definition: () => [],
};
const schemaMembers = (then) => (then.get("json_schema") === null ? [] : [["json_schema", print(then.get("json_schema"), 0)], ["format_assertion", then.get("format_assertion") === null ? undefined : print(then.get("format_assertion"), 0)]]);

/**
 * The parts of an edition: { parts } in the order of its operations, each { name, text(value), value, before, hidden, … }, `value` being
 * what can be edited of it; or { why }, if the edition can't be written again.
 */
export function partsOf({ change, records }) {
  const plain = change.preview?.records ?? [];
  const parts = [];
  const [deleted, begun] = [new Set(), new Set()];
  const all = change.operations ?? [];
  for (const [turn, one] of all.entries()) {
    const name = nameOf(one);
    const place = plain.findIndex((record) => nameOf(record) === name);
    if (place < 0) return { why: `the preview has nothing of ${name}` };
    const part = partOf(one, records[place], plain[place], { isGone: deleted.has(one.config_definition_key), isFirst: one.config_key !== undefined || !begun.has(name) });
    if (part.why) return part;
    begun.add(name);
    if (one.op === "delete_definition") deleted.add(one.config_definition_key);
    // Of several operations on a config, the last one says what it will be.
    if (one.config_key !== undefined && all.slice(turn + 1).some((later) => nameOf(later) === name)) continue;
    const before = records[place].get("before") ?? undefined;
    parts.push({ ...part, name, op: one.op, definition: one.config_definition_key, isConfig: one.config_key !== undefined, isNew: plain[place].revision === null, isChanged: (plain[place].base_revision ?? null) !== plain[place].revision, isCut: Boolean(plain[place].before_omitted), before: (part.hidden.length && before && keepingHidden(before, plain[place].redacted)?.data) || before });
  }
  return { parts };
}

function partOf({ op, config_definition_key: definition, config_key: config, environment }, exact, record, { isGone, isFirst }) {
  const name = nameOf(record);
  // Each operation rests on the record as the page shows it.
  const etag = record.revision === null || isGone || !isFirst ? undefined : String(record.revision);
  const after = exact.get("after") ?? null;
  if (environment !== undefined) {
    const condition = etag === undefined ? ["if_none_match", '"*"'] : ["if_match", JSON.stringify(etag)];
    if (op === "delete_environment") return { text: () => operation(op, [["environment", JSON.stringify(environment)], condition]), hidden: [] };
    return { value: after, hidden: [], text: (value) => operation(op, [["environment", JSON.stringify(environment)], ...["direct", "approvals", "freeze"].map((member) => [member, value.has(member) ? print(value.get(member), 0) : undefined]), condition]) };
  }
  if (config === undefined) {
    const isEnd = op === "delete_definition" || op === "undelete_definition";
    if (!MEMBERS[op] || (after === null && !isEnd)) return { why: `what it does to ${name} can't be told from the preview` };
    const condition = op === "create_definition" || op === "undelete_definition" ? undefined : etag;
    const does = record.operations.find((other) => other.op === op) ?? {};
    return { hidden: [], text: () => onDefinition(op, definition, MEMBERS[op](after, does), condition) };
  }
  if (record.deleted || after === null) {
    if (record.redacted.some((pointer) => pathOf(pointer).length === 0) && !record.deleted) return { why: `your key may not see what ${name} becomes` };
    return { hidden: [], text: () => onConfig("delete_config", definition, config, [], etag) };
  }
  const kept = keepingHidden(after, record.redacted);
  if (kept === null) return { why: `your key may not see values of ${name}, and can't say which of them are to stay` };
  // There is no value to keep.
  if (etag === undefined && kept.hidden.length) return { why: `your key may not see values of ${name}, which is new` };
  return { value: kept.data, hidden: kept.hidden, text: (value) => onConfig(etag === undefined ? "create_config" : "put_config", definition, config, [["data", print(value, 0)]], etag) };
}

/** The members that say when it is applied and taken back, as they were sent. */
export const timingMembers = ({ apply, schedule, revert_after_s: back }) => ({ ...(apply === "manual" ? {} : { apply }), ...(schedule ? { schedule } : {}), ...(back === null ? {} : { revert_after_s: back }) });
