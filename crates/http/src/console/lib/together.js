// The change set: several changes that are to be made as one, collected on the pages of configs, and the batch that it is.
//
// It is in the memory of the tab, as it may hold values that others may not see; it ends with the tab, or with the key.
import { signal } from "../vendor/preact.js";
import { print } from "./json.js";

/**
 * The changes: { op, definition, key, data, before, schema, revision }. `op` is one of a batch; `data` the content to write and
 * `before` what there was, without loss; `revision` what the record must have, null for one that must not exist.
 */
export const together = signal([]);

/** Adds a change; one of the same config takes the place of the earlier one. */
export function collect(change) {
  together.value = [...together.value.filter((other) => !isSame(other, change)), change];
}

export function drop(change) {
  together.value = together.value.filter((other) => other !== change);
}

/** What was collected for a config, to be edited further. */
export const collected = (definition, key) => together.value.find((change) => isSame(change, { definition, key }));

const isSame = (a, b) => a.definition === b.definition && a.key === b.key;

/** The body of the batch, as text, because numbers keep their digits. */
export const batchBody = (changes) => `{"operations":[\n${operationsOf(changes).join(",\n")}\n]}`;

/** The texts of the operations. */
export function operationsOf(changes) {
  return changes.map(({ op, definition, key, data, revision }) => {
    const members = [["op", JSON.stringify(op)], ["config_definition_key", JSON.stringify(definition)], ["config_key", JSON.stringify(key)]];
    if (data !== undefined) members.push(["data", print(data, 0)]);
    if (revision !== null) members.push(["if_match", `"${revision}"`]);
    return `{${members.map(([name, text]) => `"${name}":${text}`).join(",")}}`;
  });
}

/** What is wrong, by the place of the change; under -1 what is about all of them. */
export function itemsByChange(items) {
  const found = new Map();
  for (const item of items) {
    const way = item.loc?.[0] === "body" ? item.loc.slice(1) : item.loc ?? [];
    const isOne = way[0] === "operations" && Number.isInteger(way[1]);
    const [place, loc] = isOne ? [way[1], way.slice(2)] : [-1, item.loc ?? []];
    found.set(place, [...(found.get(place) ?? []), { ...item, loc }]);
  }
  return found;
}
