// The schemas by which values of several definitions are hidden, where the node shows secret values to this key.
import { definitionPath, get } from "./api.js";
import { parse } from "./json.js";
import { lacks } from "./state.js";

/** Schemas that are read at a time. */
const TOGETHER = 8;
/** A schema by which everything is secret: for what nobody knows how to show. */
const ALL_SECRET = parse('{"x-concord-secret":true}');

/**
 * The schemas of definitions by their names, each in a list. `more`, pairs of a name and a schema, are added: those of a preview.
 * A definition for which none is known has one that hides everything.
 */
export async function schemasFor(names, signal, more = []) {
  const all = [...new Set(names)].filter((name) => !lacks("reveal", name));
  const found = new Map();
  for (let place = 0; place < all.length; place += TOGETHER) {
    const part = all.slice(place, place + TOGETHER);
    const schemas = await Promise.all(part.map((name) => get(`${definitionPath(name)}/schema`, [], { signal, once: true }).then((answer) => [answer.exact.get("json_schema")], (error) => {
      if (error.status !== 404 && error.status !== 403) throw error;
      return [];
    })));
    part.forEach((name, i) => found.set(name, schemas[i]));
  }
  for (const [name, schema] of more) found.get(name)?.push(schema);
  for (const [name, schemas] of found) if (schemas.length === 0) found.set(name, [ALL_SECRET]);
  return found;
}
