// The operations of a change request as texts of JSON: numbers keep their digits.

/** The text of an operation: `members` are pairs of a name and a text of JSON, undefined for one that is left out. */
export const operation = (op, members) => `{${[["op", JSON.stringify(op)], ...members].filter(([, text]) => text !== undefined).map(([name, text]) => `"${name}":${text}`).join(",")}}`;
/** An operation on a definition, or on one of its configs; `condition` is the revision that it must have. */
export const onDefinition = (op, name, members = [], etag) => operation(op, [["config_definition_key", JSON.stringify(name)], ...members, ["if_match", condition(etag)]]);
export const onConfig = (op, name, config, members = [], etag) => onDefinition(op, name, [["config_key", JSON.stringify(config)], ...members], etag);
/** The text of an operation on an environment; without `etag` there must be none yet. `members` are pairs of a name and a value. */
export const onEnvironment = (op, name, members, etag) => operation(op, [["environment", JSON.stringify(name)], ...members.map(([member, value]) => [member, JSON.stringify(value)]), ["if_match", condition(etag)], ["if_none_match", etag ? undefined : '"*"']]);
const condition = (etag) => (etag ? JSON.stringify(etag.replaceAll('"', "")) : undefined);

/** `timing` has the members that say when it is applied and taken back. */
export const proposalBody = (title, description, operations, timing = {}) => `{"title":${JSON.stringify(title)}${description ? `,"description":${JSON.stringify(description)}` : ""}${Object.entries(timing).map(([name, value]) => `,${JSON.stringify(name)}:${JSON.stringify(value)}`).join("")},"operations":[\n${operations.join(",\n")}\n]}`;
