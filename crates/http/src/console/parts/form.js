// A form made from a schema. It shows what it understands as controls, and everything else as JSON of its own; nothing that
// is in the data is hidden or lost. Each change is told as a path and a value: the page holds the one state.
import { html, useEffect, useState } from "../vendor/preact.js";
import { JsonError, Num, parse, print, same } from "../lib/json.js";
import { isKept } from "../lib/redacted.js";
import { allowsNull, choices, initial, kind, limits, resolve, shows } from "../lib/schema.js";

const NUMBER = /^-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?$/;

/** `errors` are { path, message }; `onChange(path, value)`, undefined takes the place out. */
export function Form({ schema, value, errors, onChange }) {
  const root = schema ?? new Map();
  const whole = resolve(root, root);
  if (!(value instanceof Map)) return html`<p class="muted">The data are no object: edit them as JSON.</p>`;
  return html`<div class="form">${whole.get("description") ? html`<p class="muted">${whole.get("description")}</p>` : ""}
    <${Members} root=${root} schema=${whole} value=${value} path=${[]} errors=${errors} onChange=${onChange} /></div>`;
}

function Members({ root, schema, value, path, errors, onChange }) {
  const properties = schema.get("properties") ?? new Map();
  const required = schema.get("required") ?? [];
  const others = [...value.keys()].filter((name) => !properties.has(name));
  const open = schema.get("additionalProperties") !== false;
  const inner = schema.get("additionalProperties") instanceof Map ? schema.get("additionalProperties") : new Map();
  const own = errors.filter((error) => same(error.path, path));
  return html`${own.map((error) => html`<p class="error small">${error.message}</p>`)}
    ${[...properties].map(([name, part]) => html`<${Place} key=${name} name=${name} root=${root} schema=${resolve(root, part)} value=${value.get(name)}
      path=${[...path, name]} required=${required.includes(name)} errors=${errors} onChange=${onChange} />`)}
    ${others.map((name) => html`<${Place} key=${name} name=${name} root=${root} schema=${resolve(root, inner)} value=${value.get(name)}
      path=${[...path, name]} extra errors=${errors} onChange=${onChange} />`)}
    ${open ? html`<${NewMember} onAdd=${(name) => { if (!value.has(name)) onChange([...path, name], initial(root, inner)); }} />` : ""}`;
}

function NewMember({ onAdd }) {
  const [name, setName] = useState("");
  const add = () => { if (name) onAdd(name); setName(""); };
  return html`<div class="bar add"><input aria-label="Name of a further field" placeholder="further field" value=${name} onInput=${(event) => setName(event.target.value)}
    onKeyDown=${(event) => { if (event.key === "Enter") { event.preventDefault(); add(); } }} /><button type="button" disabled=${!name} onClick=${add}>Add</button></div>`;
}

/** One named place: its label, its control, its errors, and the way to set it or take it out. */
function Place({ name, root, schema, value, path, required, extra, errors, onChange, element }) {
  const title = schema.get("title") ?? name;
  const here = errors.filter((error) => same(error.path, path));
  const id = `f-${path.join("-")}`;
  const nested = !isKept(value) && ((kind(schema) === "object" && value instanceof Map) || (kind(schema) === "array" && Array.isArray(value)));
  const remove = value !== undefined && (!required || element);
  const head = html`<span class=${required ? "name required" : "name"}>${title}${extra ? html` <span class="muted small">not in the schema</span>` : ""}</span>`;
  const about = html`${value === undefined ? html`<button type="button" class="quiet" aria-label=${`Set ${title}`} onClick=${() => onChange(path, initial(root, schema))}>Set</button>` : ""}
    ${remove ? html`<button type="button" class="quiet" aria-label=${`Remove ${title}`} onClick=${() => onChange(path, undefined)}>✕</button>` : ""}`;
  const notes = html`${schema.get("description") ? html`<small class="muted" id=${`${id}-hint`}>${schema.get("description")}</small>` : ""}
    ${limits(schema) && value !== undefined && !nested ? html`<small class="muted">${limits(schema)}</small>` : ""}
    ${here.map((error) => html`<small class="error">${error.message}</small>`)}`;
  if (nested) {
    return html`<fieldset class=${here.length ? "wrong" : ""}><legend>${head}${about}</legend>${notes}
      ${Array.isArray(value) ? html`<${Items} ...${{ root, schema, value, path, errors, onChange }} />` : html`<${Members} ...${{ root, schema, value, path, errors, onChange }} />`}</fieldset>`;
  }
  return html`<div class=${`place ${here.length ? "wrong" : ""} ${value === undefined ? "absent" : ""}`}>
    <label for=${value === undefined ? undefined : id}>${head}</label>
    <div>${value === undefined ? html`<span class="muted" id=${id}>not set</span>` : html`<${Control} ...${{ id, root, schema, value, path, onChange, title, required }} describedby=${schema.get("description") ? `${id}-hint` : undefined} invalid=${here.length > 0} />`}
    ${notes}</div><div>${about}</div></div>`;
}

function Items({ root, schema, value, path, errors, onChange }) {
  const items = resolve(root, schema.get("items"));
  const swap = (a, b) => { const copy = value.slice(); [copy[a], copy[b]] = [copy[b], copy[a]]; onChange(path, copy); };
  return html`${value.map((item, place) => html`<div class="item"><${Place} key=${place} name=${String(place + 1)} element root=${root} schema=${items} value=${item}
      path=${[...path, place]} errors=${errors} onChange=${onChange} />
      <span class="bar"><button type="button" class="quiet" aria-label=${`Move item ${place + 1} up`} disabled=${place === 0} onClick=${() => swap(place, place - 1)}>↑</button>
      <button type="button" class="quiet" aria-label=${`Move item ${place + 1} down`} disabled=${place === value.length - 1} onClick=${() => swap(place, place + 1)}>↓</button></span></div>`)}
    <button type="button" onClick=${() => onChange(path, [...value, initial(root, items)])}>Add an item</button>`;
}

function Control({ id, root, schema, value, path, onChange, title, required, describedby, invalid }) {
  const common = { id, "aria-describedby": describedby, "aria-invalid": invalid || undefined, "aria-required": required || undefined };
  if (isKept(value)) return html`<span class="bar"><span id=${id} class="muted">hidden, stays as it is</span><button type="button" onClick=${() => onChange(path, initial(root, schema))}>Replace it</button></span>`;
  if (!shows(schema, value)) return html`<${Raw} ...${{ common, value, path, onChange }} />`;
  if (value === null && allowsNull(schema)) return html`<span class="bar"><code id=${id}>null</code><button type="button" onClick=${() => onChange(path, initial(root, withoutNull(schema)))}>Give it a value</button></span>`;
  const toNull = allowsNull(schema) ? html`<button type="button" class="quiet" aria-label=${`Set ${title} to null`} onClick=${() => onChange(path, null)}>null</button>` : "";
  switch (kind(schema)) {
    case "choice": {
      const all = choices(schema);
      return html`<select ...${common} value=${String(all.findIndex((choice) => same(choice, value)))} onChange=${(event) => onChange(path, all[Number(event.target.value)])}>
        ${all.map((choice, place) => html`<option value=${String(place)}>${typeof choice === "string" ? choice : print(choice, 0)}</option>`)}</select>`;
    }
    case "boolean": return html`<span class="bar"><label class="check"><input type="checkbox" ...${common} checked=${value} onChange=${(event) => onChange(path, event.target.checked)} /> ${String(value)}</label>${toNull}</span>`;
    case "number": return html`<span class="bar"><${NumberInput} ...${{ common, value, path, onChange }} />${toNull}</span>`;
    case "string": return html`<span class="bar">${value.length > 80 || value.includes("\n")
      ? html`<textarea ...${common} rows="4" value=${value} onInput=${(event) => onChange(path, event.target.value)}></textarea>`
      : html`<input ...${common} value=${value} onInput=${(event) => onChange(path, event.target.value)} />`}${toNull}</span>`;
    default: return html`<${Raw} ...${{ common, value, path, onChange }} />`;
  }
}

function withoutNull(schema) {
  return new Map([...schema, ["type", [schema.get("type")].flat().filter((type) => type !== "null")[0]]]);
}

function NumberInput({ common, value, path, onChange }) {
  const [text, setText] = useState(value.text);
  useEffect(() => { if (NUMBER.test(text) || text === "") setText(value.text); }, [value.text]);
  const ok = NUMBER.test(text);
  return html`<input ...${common} inputmode="decimal" aria-invalid=${!ok || common["aria-invalid"]} value=${text}
    onInput=${(event) => { setText(event.target.value); if (NUMBER.test(event.target.value)) onChange(path, new Num(event.target.value)); }} />
    ${ok ? "" : html`<small class="error">This is no number; ${value.text} is kept.</small>`}`;
}

/** Any value as JSON. */
function Raw({ common, value, path, onChange }) {
  const printed = print(value);
  const [text, setText] = useState(printed);
  const [wrong, setWrong] = useState("");
  useEffect(() => { if (!wrong && print(parseOr(text, value)) !== printed) setText(printed); }, [printed]);
  return html`<textarea ...${common} class="mono" rows=${Math.min(8, text.split("\n").length + 1)} value=${text} onInput=${(event) => {
    setText(event.target.value);
    try {
      onChange(path, parse(event.target.value));
      setWrong("");
    } catch (error) {
      if (!(error instanceof JsonError)) throw error;
      setWrong(error.message);
    }
  }}></textarea>${wrong ? html`<small class="error">${wrong}</small>` : ""}`;
}

function parseOr(text, value) {
  try {
    return parse(text);
  } catch (error) {
    if (error instanceof JsonError) return value;
    throw error;
  }
}
