// What leads from one part of a JSON schema to another: references, patterns, lists.

export const list = (value) => (Array.isArray(value) ? value : []);

/** What a local reference leads to, or undefined. */
export function reference(root, schema) {
  const text = schema.get("$ref");
  if (typeof text !== "string" || !/^#(\/|$)/.test(text)) return undefined;
  try {
    const parts = decodeURIComponent(text.slice(1)).split("/").slice(1).map((part) => part.replaceAll("~1", "/").replaceAll("~0", "~"));
    return parts.reduce((found, part) => (found instanceof Map ? found.get(part) : Array.isArray(found) ? found[part] : undefined), root);
  } catch (error) {
    if (error instanceof URIError) return undefined;
    throw error;
  }
}

/** Whether a pattern of a schema matches; `otherwise` for one that the browser can't read. */
export function matches(pattern, text, otherwise = false) {
  try {
    return new RegExp(pattern, "u").test(text);
  } catch (error) {
    if (error instanceof SyntaxError) return otherwise;
    throw error;
  }
}
