// A JSON value to read: indented, with colours for its kinds, and a fold for what is long. Secret values are dots until they
// are asked for.
import { html, useState } from "../vendor/preact.js";
import { Num, Secret, print } from "../lib/json.js";
import { masked } from "../lib/secrets.js";
import { copyText } from "./ui.js";

const TEXT_MAX = 200_000;

/** `schema` says which of the values are secret. */
export function JsonView({ value: whole, label, schema }) {
  const [isShown, setShown] = useState(false);
  const hidden = schema ? masked(schema, whole) : whole;
  const value = isShown ? whole : hidden;
  const text = print(value);
  return html`<div class="json"><span class="corner">${hidden === whole ? "" : html`<button class="quiet" onClick=${() => setShown(!isShown)}>${isShown ? "Hide the secrets" : "Show the secrets"}</button>`}
      <button class="quiet" onClick=${() => copyText(print(whole), "JSON")}>Copy</button></span>
    <pre class="code" tabindex="0" role="region" aria-label=${label ?? "JSON"}>${text.length > TEXT_MAX ? text : html`<${Part} value=${value} depth=${0} />`}</pre></div>`;
}

function Part({ value, depth }) {
  const [open, setOpen] = useState(true);
  if (value instanceof Num) return html`<span class="j-number">${value.text}</span>`;
  if (value instanceof Secret) return html`<span class="muted">${print(value)}</span>`;
  if (typeof value === "string") return html`<span class="j-string">${JSON.stringify(value)}</span>`;
  if (value === null || typeof value !== "object") return html`<span class="j-word">${String(value)}</span>`;
  const isList = Array.isArray(value);
  const items = isList ? value.map((item) => [null, item]) : [...value];
  const [left, right] = isList ? "[]" : "{}";
  if (items.length === 0) return html`<span>${left}${right}</span>`;
  if (isList && items.every(([, item]) => item === null || typeof item !== "object" || item instanceof Num || item instanceof Secret) && print(value).indexOf("\n") < 0) {
    return html`<span>[${items.map(([, item], i) => html`${i ? ", " : ""}<${Part} value=${item} depth=${depth + 1} />`)}]</span>`;
  }
  if (!open) return html`<button class="fold" aria-expanded="false" onClick=${() => setOpen(true)}>${left} ${items.length} ${isList ? "items" : "members"} ${right}</button>`;
  const pad = "  ".repeat(depth + 1);
  return html`<span>${depth ? html`<button class="fold" aria-expanded="true" aria-label="Fold" onClick=${() => setOpen(false)}>${left}</button>` : left}
${""}${items.map(([name, item], i) => html`${"\n"}${pad}${name === null ? "" : html`<span class="j-name">${JSON.stringify(name)}</span>: `}<${Part} value=${item} depth=${depth + 1} />${i + 1 < items.length ? "," : ""}`)}${"\n"}${"  ".repeat(depth)}${right}</span>`;
}
