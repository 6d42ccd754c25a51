// A config to be read field by field, with the titles and descriptions of its schema.
import { html } from "../vendor/preact.js";
import { Num, print } from "../lib/json.js";
import { kind, resolve } from "../lib/schema.js";

export function Fields({ schema, value, root = schema, depth = 0 }) {
  if (!(value instanceof Map)) return html`<p>${show(value)}</p>`;
  const known = resolve(root, schema);
  const properties = known.get("properties") ?? new Map();
  const names = [...[...properties.keys()].filter((name) => value.has(name)), ...[...value.keys()].filter((name) => !properties.has(name))];
  const absent = [...properties.keys()].filter((name) => !value.has(name));
  return html`<dl class=${`fields ${depth ? "inner" : ""}`}>
    ${names.map((name) => {
      const part = resolve(root, properties.get(name));
      const item = value.get(name);
      const nested = item instanceof Map && item.size > 0 && (kind(part) === "object" || !properties.has(name)) && depth < 6;
      return html`<div class=${nested ? "nested" : ""}><dt title=${part.get("description") ?? ""}>${part.get("title") ?? name}</dt>
        <dd>${nested ? html`<${Fields} schema=${part} value=${item} root=${root} depth=${depth + 1} />` : show(item)}
          ${part.get("description") ? html`<div class="muted small">${part.get("description")}</div>` : ""}</dd></div>`;
    })}
    ${absent.map((name) => html`<div class="absent"><dt>${resolve(root, properties.get(name)).get("title") ?? name}</dt><dd class="muted">not set</dd></div>`)}
    ${names.length + absent.length === 0 ? html`<p class="muted">No fields.</p>` : ""}
  </dl>`;
}

function show(value) {
  if (value === null) return html`<span class="muted">null</span>`;
  if (value instanceof Num) return html`<span class="number">${value.text}</span>`;
  if (typeof value === "boolean") return html`<span class=${value ? "yes" : "no"}>${String(value)}</span>`;
  if (typeof value === "string") return value === "" ? html`<span class="muted">(empty)</span>` : value;
  if (Array.isArray(value) && value.length && value.every((item) => typeof item === "string" || item instanceof Num)) {
    return value.map((item) => html`<span class="tag">${item instanceof Num ? item.text : item}</span> `);
  }
  return html`<code class="wrap">${print(value, 0)}</code>`;
}
