// The operations of a batch or a transaction.
import { defined } from "./json.js";
import { checkMarkers } from "./keep.js";

/** @import { JsonObject, Operation } from "./types.js" */

/** @typedef {{ ifRevision?: number | "*" }} If */

/**
 * @param {string} name
 * @param {string} definition
 * @param {JsonObject} [more]
 * @returns {Operation}
 */
function operation(name, definition, more = {}) {
  checkMarkers(more.data);
  return { op: name, config_definition_key: definition, ...more };
}

/**
 * The conditions of an operation. The interface takes a revision as a text.
 * @param {If & { ifAbsent?: boolean }} when
 */
const conditions = (when) => defined({
  if_match: when.ifRevision === undefined ? undefined : String(when.ifRevision), if_none_match: when.ifAbsent ? "*" : undefined,
});

/** Makes operations for `Concord.batch` and `Concord.transaction`. */
export const op = {
  /** @param {string} definition @param {{ indexes?: string[], schema?: JsonObject }} [content] */
  createDefinition: (definition, content = {}) => (
    operation("create_definition", definition, { indexes: content.indexes ?? [], ...defined({ json_schema: content.schema }) })),

  /** @param {string} definition @param {string[]} indexes @param {If} [when] */
  setIndexes: (definition, indexes, when = {}) => operation("set_indexes", definition, { indexes, ...conditions(when) }),

  /** @param {string} definition @param {If & { restrict?: boolean }} [when] */
  deleteDefinition: (definition, when = {}) => (
    operation("delete_definition", definition, { ...defined({ mode: when.restrict ? "restrict" : undefined }), ...conditions(when) })),

  /** @param {string} definition @param {string} key @param {any} data */
  create: (definition, key, data) => operation("create_config", definition, { config_key: key, data }),

  /** @param {string} definition @param {string} key @param {any} data @param {If & { ifAbsent?: boolean }} [when] */
  put: (definition, key, data, when = {}) => operation("put_config", definition, { config_key: key, data, ...conditions(when) }),

  /** An object is a merge patch, a list a JSON Patch. @param {string} definition @param {string} key @param {any} patch @param {If} [when] */
  patch: (definition, key, patch, when = {}) => operation("patch_config", definition, { config_key: key, patch, ...conditions(when) }),

  /** @param {string} definition @param {string} key @param {If} [when] */
  delete: (definition, key, when = {}) => operation("delete_config", definition, { config_key: key, ...conditions(when) }),

  /** @param {string} definition @param {string} key @param {number} revision @param {If} [when] */
  rollback: (definition, key, revision, when = {}) => operation("rollback_config", definition, { config_key: key, revision, ...conditions(when) }),

  /** What there is before the batch. @param {string} definition @param {string} key */
  get: (definition, key) => operation("get_config", definition, { config_key: key }),

  /**
   * A condition: a revision, whether there is none, or a value at a JSON pointer.
   * @param {string} definition
   * @param {string} key
   * @param {{ revision?: number, absent?: boolean, pointer?: string, equals?: any }} condition
   */
  check: (definition, key, condition) => operation("check_config", definition, { config_key: key, ...condition }),
};
