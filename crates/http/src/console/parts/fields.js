// A config to be read field by field, with the titles and descriptions of its schema. Values that look alike are told
// apart, and secret values are dots until they are asked for.
import { html, useState } from "../vendor/preact.js";
import { DOTS, Num, Secret } from "../lib/json.js";
import { brief, hints, plain } from "../lib/format.js";
import { ANY, kindPlace, kinds, memberSchema, resolve } from "../lib/schema.js";
import { masked } from "../lib/secrets.js";

/** Elements of a list that are shown one by one. */
const ITEMS_MAX = 100;
const DEPTH_MAX = 6;

export function Fields({ schema, value }) {
  const root = schema ?? ANY;
  if (!(value instanceof Map)) return html`<p class="muted">The data are hidden.</p>`;
  return html`<${Members} root=${root} schema=${resolve(root, root)} value=${value} path=${[]} />`;
}

function Members({ root, schema, value, path }) {
  const { all } = kinds(root, schema);
  const known = all[kindPlace(root, all, value)] ?? schema;
  const properties = known.get("properties") instanceof Map ? known.get("properties") : ANY;
  const names = [...[...properties.keys()].filter((name) => value.has(name)), ...[...value.keys()].filter((name) => !properties.has(name))];
  const absent = [...properties.keys()].filter((name) => !value.has(name));
  return html`<dl class=${`fields ${path.length ? "inner" : ""}`}>
    ${names.map((name) => html`<${Member} key=${name} root=${root} of=${memberSchema(root, known, name)} name=${name} value=${value.get(name)} path=${[...path, name]} />`)}
    ${absent.map((name) => {
      const { schema: part } = memberSchema(root, known, name);
      return html`<div class="absent"><dt>${part.get("title") ?? name}</dt><dd class="muted">${part.has("default") ? html`<code class="wrap">${plain(part.get("default"))}</code> (default)` : "not set"}</dd></div>`;
    })}
    ${names.length + absent.length === 0 ? html`<p class="muted">No fields.</p>` : ""}
  </dl>`;
}

function Member({ root, of, name, value, path }) {
  const [isShown, setShown] = useState(false);
  const safe = masked(root, value, path);
  const nested = !(safe instanceof Secret) && value instanceof Map && value.size > 0 && path.length < DEPTH_MAX;
  const title = (of.isNamed && of.schema.get("title")) || name;
  const about = [of.isNamed ? "" : of.schema.get("title"), of.schema.get("description")].filter(Boolean).join(": ");
  return html`<div class=${nested ? "nested" : ""}><dt title=${title === name ? undefined : name}>${title}</dt>
    <dd>${nested ? html`<${Members} root=${root} schema=${of.schema} value=${value} path=${path} />` : show(isShown ? value : safe)}
      ${!nested && safe !== value ? html` <button class="quiet" aria-label=${`${isShown ? "Hide" : "Show"} ${title}`} onClick=${() => setShown(!isShown)}>${isShown ? "Hide" : "Show"}</button>` : ""}
      ${about ? html`<div class="muted small">${about}</div>` : ""}</dd></div>`;
}

function show(value) {
  if (value === null) return html`<span class="muted">null</span>`;
  if (value instanceof Secret) return html`<span class="muted dots">${DOTS}</span>`;
  if (value instanceof Num) return html`<span class="number">${value.text}</span>`;
  if (typeof value === "boolean") return html`<span class=${value ? "yes" : "no"}>${String(value)}</span>`;
  // Several lines are read as lines; what is not seen of them is said.
  if (typeof value === "string" && value.includes("\n") && value.trim()) {
    const seen = hints(value);
    return html`<span>${value}</span>${seen.length ? html`<small class="unusual">${seen.join(", ")}</small>` : ""}`;
  }
  if (Array.isArray(value) && value.length > 0 && value.length <= ITEMS_MAX && value.every((item) => typeof item === "string" || item instanceof Num)) {
    return value.map((item) => html`<span class="tag">${plain(item)}</span> `);
  }
  return typeof value === "string" ? html`<span>${plain(value)}</span>` : html`<code class="wrap">${brief(value, 20_000)}</code>`;
}
