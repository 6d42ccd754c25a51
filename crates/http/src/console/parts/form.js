// A form made from a schema. It shows what it understands as controls, and everything else as JSON of its own; nothing that
// is in the data is hidden, lost or changed by being shown. Each change is told as a path and a value: the page holds the
// one state.
//
// What did not change is not drawn again, and what is long is drawn as it comes into view: a key typed into one of ten
// thousand places draws that one. The control under the cursor is never replaced by another: which control a place has
// is decided when its value comes from elsewhere, not while it is typed. What is not there is null and not "": an empty
// text is a node, which the library sets again each time, and the browser lays out what is around it.
import { h, html, useLayoutEffect, useRef, useState } from "../vendor/preact.js";
import { DOTS, kindOf, same } from "../lib/json.js";
import { pathText, plain } from "../lib/format.js";
import { isKept } from "../lib/redacted.js";
import { list } from "../lib/reference.js";
import { choices, initial, itemSchema, kind, kindName, kindPlace, kinds, limits, memberSchema, resolve, shows, takes } from "../lib/schema.js";
import { isSecret, masked } from "../lib/secrets.js";
import { useSeen, weight } from "./lazy.js";
import { NumberInput, Raw, TextInput, isNumber } from "./inputs.js";

/** Places that are drawn at once, and those that are compared as one where nothing changed. */
const [CHUNK, GROUP] = [25, 625];
/** A place with more values in it is drawn when it comes into view. */
const HEAVY = 100;

/** A component that is drawn again only when what is given to it changed; lists are compared by what is in them. */
function memo(Component) {
  return (props) => {
    const last = useRef(null);
    if (!last.current || !isAlike(last.current.props, props)) last.current = { props, node: h(Component, props) };
    return last.current.node;
  };
}

const isAlike = (a, b) => Object.keys(b).every((name) => a[name] === b[name] || (Array.isArray(a[name]) && Array.isArray(b[name])
  && a[name].length === b[name].length && a[name].every((item, place) => item === b[name][place])));

/**
 * `form` is { root, change(path, value), turn, wanted }, the same object always: `change` with undefined takes a place
 * out, `turn` counts the values that came from elsewhere, `wanted` is the path of a place that gets the focus when it is
 * there. `errors` are { path, message }.
 */
export function Form({ form, value, errors }) {
  const whole = resolve(form.root, form.root);
  const { all } = kinds(form.root, whole);
  if (isKept(value)) return html`<p class="muted">The data are hidden, and stay as they are unless you replace them as JSON.</p>`;
  if (!(value instanceof Map)) return html`<p class="muted">The data are no object: edit them as JSON.</p>`;
  return html`<div class="form">${whole.get("description") ? html`<p class="muted">${whole.get("description")}</p>` : null}
    ${errors.filter((error) => error.path.length === 0).map((error) => html`<p class="error small">${error.message}</p>`)}
    <${Members} form=${form} schema=${all[kindPlace(form.root, all, value)] ?? whole} value=${value} path=${[]} errors=${errors} /></div>`;
}

/** The errors inside a place, by the member or element that they are in. */
function grouped(errors, depth) {
  const found = new Map();
  for (const error of errors) {
    const part = String(error.path[depth]);
    if (error.path.length > depth) found.set(part, [...(found.get(part) ?? []), error]);
  }
  return found;
}

function Chunks({ names, values, ids, errors, size = GROUP, isFirst = true, ...more }) {
  const inside = grouped(errors, more.path.length);
  const chunks = [];
  for (let from = 0; from < names.length; from += size) {
    const here = names.slice(from, from + size);
    chunks.push(h(Chunk, { ...more, key: from, size, isFirst: isFirst && from === 0, names: here, values: values.slice(from, from + size),
      ids: ids?.slice(from, from + size), errors: inside.size ? here.flatMap((name) => inside.get(String(name)) ?? []) : [] }));
  }
  return chunks;
}

const Chunk = memo(({ size, ...props }) => {
  const { Part, names, values, ids, errors, isFirst, ...more } = props;
  const isWanted = more.form.wanted && names.some((name) => same([...more.path, name], more.form.wanted.slice(0, more.path.length + 1)));
  const [isSeen, box] = useSeen(() => isFirst || isWanted);
  if (!isSeen) return html`<div class="unread" ref=${box} style=${{ height: `${values.reduce((sum, value) => sum + weight(value), 0) * 2.2}rem` }}></div>`;
  if (size === GROUP) return h(Chunks, { ...props, size: CHUNK });
  const inside = grouped(errors, more.path.length);
  return names.map((name, place) => html`<${Part} key=${ids?.[place] ?? name} id=${ids?.[place]} name=${name} value=${values[place]} errors=${inside.get(String(name)) ?? []} ...${more} />`);
});

function Members({ form, schema, value, path, errors }) {
  const properties = schema.get("properties") instanceof Map ? schema.get("properties") : new Map();
  const names = [...properties.keys(), ...[...value.keys()].filter((name) => !properties.has(name))];
  const isOpen = schema.get("additionalProperties") !== false || schema.has("patternProperties");
  const add = (name) => {
    if (value.has(name)) return;
    form.wanted = [...path, name];
    form.change(form.wanted, initial(form.root, memberSchema(form.root, schema, name).schema));
  };
  return html`<${Chunks} Part=${Member} form=${form} schema=${schema} path=${path} names=${names} values=${names.map((name) => value.get(name))} errors=${errors} />
    ${isOpen ? html`<${NewMember} onAdd=${add} />` : null}`;
}

function Member({ form, schema, name, value, path, errors }) {
  const found = memberSchema(form.root, schema, name);
  return html`<${Place} form=${form} name=${name} schema=${found.schema} value=${value} path=${[...path, name]} errors=${errors}
    isRequired=${list(schema.get("required")).includes(name)} isNamed=${found.isNamed} isKnown=${found.isKnown} />`;
}

function NewMember({ onAdd }) {
  const [name, setName] = useState("");
  const add = () => { if (name) onAdd(name); setName(""); };
  return html`<div class="bar add"><input aria-label="Name of a further field" placeholder="further field" value=${name} onInput=${(event) => setName(event.target.value)}
    onKeyDown=${(event) => { if (event.key === "Enter") { event.preventDefault(); add(); } }} /><button type="button" disabled=${!name} onClick=${add}>Add</button></div>`;
}

/**
 * A list, with an id for each element that stays with it when it moves: what is typed into an element and is not yet a
 * value must not stay behind at the place where it was.
 */
function Items({ form, schema, value, path, errors }) {
  const own = useRef({ ids: [], value: [], next: 0 }).current;
  if (own.ids.length !== value.length) {
    // From elsewhere: what is the same at the beginning and at the end stays what it is.
    let [from, tail] = [0, 0];
    const least = Math.min(value.length, own.value.length);
    while (from < least && value[from] === own.value[from]) from += 1;
    while (tail < least - from && value.at(-1 - tail) === own.value.at(-1 - tail)) tail += 1;
    const between = Array.from({ length: value.length - from - tail }, () => (own.next += 1));
    own.ids = [...own.ids.slice(0, from), ...between, ...own.ids.slice(own.ids.length - tail)];
  }
  Object.assign(own, { value, path });
  own.remove ??= (id) => {
    const place = own.ids.indexOf(id);
    own.ids = own.ids.filter((other) => other !== id);
    form.change([...own.path, place], undefined);
  };
  own.move ??= (id, by) => {
    const from = own.ids.indexOf(id);
    const to = from + by;
    if (to < 0 || to >= own.ids.length) return;
    const swap = (items) => { const copy = items.slice(); [copy[from], copy[to]] = [copy[to], copy[from]]; return copy; };
    own.ids = swap(own.ids);
    form.change(own.path, swap(own.value));
  };
  const add = () => {
    form.wanted = [...path, value.length];
    form.change(path, [...value, initial(form.root, itemSchema(form.root, schema, value.length))]);
  };
  return html`<${Chunks} Part=${Item} form=${form} schema=${schema} path=${path} own=${own} names=${value.map((_, place) => place)} values=${value} ids=${own.ids} errors=${errors} />
    <button type="button" onClick=${add}>Add an item</button>`;
}

const Item = memo(({ form, schema, name: place, id, own, value, path, errors }) => html`<div class="item"><${Place} form=${form} name=${String(place + 1)} schema=${itemSchema(form.root, schema, place)} value=${value}
      path=${[...path, place]} errors=${errors} onRemove=${own.remove} element=${id} isKnown />
    <span class="bar"><button type="button" class="quiet" aria-label=${`Move item ${place + 1} up`} onClick=${() => own.move(id, -1)}>↑</button>
      <button type="button" class="quiet" aria-label=${`Move item ${place + 1} down`} onClick=${() => own.move(id, 1)}>↓</button></span></div>`);

const [ABSENT, KEPT, NULL, JSON_TEXT] = ["absent", "kept", "null", "json"].map((kind) => ({ kind }));

/** How a value is shown: { kind, schema }. */
function viewOf(root, { all, isNullable }, value) {
  if (value === undefined) return ABSENT;
  if (isKept(value)) return KEPT;
  const schema = all[kindPlace(root, all, value)];
  if (schema) return { kind: kind(schema), schema };
  if (value === null && isNullable) return NULL;
  const free = all.find((part) => kind(part) === "json");
  return free && kindOf(value) !== "json" ? { kind: kindOf(value), schema: free } : JSON_TEXT;
}

/** Whether a value that was typed is still shown in the same way. */
function stays(view, value) {
  if (value === undefined || isKept(value) || view === ABSENT || view === KEPT || view === NULL) return false;
  if (view === JSON_TEXT) return true;
  return view.kind === "choice" ? shows(view.schema, value) : view.kind === kindOf(value);
}

function useView(form, about, value) {
  const [, draw] = useState(0);
  const held = useRef(null);
  const old = held.current;
  if (!old || (old.value !== value && (old.turn !== form.turn || !stays(old.view, value)))) held.current = { view: viewOf(form.root, about, value) };
  Object.assign(held.current, { value, turn: form.turn });
  return [held.current.view, (view) => { held.current.view = view; draw((count) => count + 1); }];
}

let ids = 0;
/** An id of its own: two paths may read the same. */
function useId() {
  const own = useRef(null);
  own.current ??= `f${ids += 1}`;
  return own.current;
}

/** One named place: its label, its control, its errors, and the way to set it or take it out. */
const Place = memo(({ form, name, schema, value, path, isRequired, isNamed, isKnown, errors, element, onRemove }) => {
  const id = useId();
  const box = useRef(null);
  const about = kinds(form.root, schema);
  const [view, setView] = useView(form, about, value);
  const isWanted = Boolean(form.wanted) && same(form.wanted, path);
  const [isShown, setShown] = useState(isWanted);
  const [isSeen, unread] = useSeen(() => isWanted || weight(value) < HEAVY);
  // With the drawing and not after it: the effect of an earlier drawing, run late, would focus the control that goes.
  useLayoutEffect(() => {
    if (!form.wanted || !same(form.wanted, path)) return;
    form.wanted = null;
    const inside = box.current.querySelector("input, select, textarea");
    (inside ?? box.current.querySelector("button"))?.focus();
  });
  const begin = (item) => { form.wanted = path; setShown(true); form.change(path, item); };
  const title = (isNamed && schema.get("title")) || name;
  const isParted = view.kind === "object" || view.kind === "array";
  // What is shown as one JSON text is hidden for a part of it that is secret.
  const hides = value !== undefined && value !== null && view !== KEPT && (isParted ? isSecret(form.root, path) : masked(form.root, value, path) !== value);
  const isHidden = hides && !isShown;
  const nested = !isHidden && isParted;
  const here = errors.filter((error) => !nested || error.path.length === path.length);
  const head = html`<span class=${isRequired ? "name required" : "name"} title=${title === name ? undefined : name}>${title}${isKnown ? null : html` <span class="muted small">not in the schema</span>`}</span>`;
  const buttons = html`${view === ABSENT ? html`<button type="button" class="quiet" aria-label=${`Set ${title}`} onClick=${() => begin(initial(form.root, schema))}>Set</button>` : null}
    ${isShown && hides ? html`<button type="button" class="quiet" aria-label=${`Hide ${title}`} onClick=${() => setShown(false)}>Hide</button>` : null}
    ${isHidden ? null : html`<${Kinds} ...${{ form, about, view, value, title, setView, begin }} />`}
    ${value !== undefined && (onRemove || !isRequired) ? html`<button type="button" class="quiet" aria-label=${`Remove ${title}`} onClick=${() => (onRemove ? onRemove(element) : form.change(path, undefined))}>✕</button>` : null}`;
  const asks = limits(view.schema ?? (about.all.length === 1 ? about.all[0] : schema));
  const notes = html`<div id=${`${id}-notes`}>${!isNamed && schema.get("title") ? html`<small class="muted">${schema.get("title")}</small>` : null}
    ${schema.get("description") ? html`<small class="muted">${schema.get("description")}</small>` : null}
    ${asks && !nested && !(view === ABSENT && asks === "or null") ? html`<small class="muted">${asks}</small>` : null}
    ${here.map((error) => html`<small class="error">${error.path.length > path.length ? `${pathText(error.path.slice(path.length))}: ` : null}${error.message}</small>`)}</div>`;
  if (nested) {
    const inner = { form, schema: view.schema, value, path, errors };
    return html`<fieldset ref=${box} class=${here.length ? "wrong" : ""}><legend>${head}${buttons}</legend>${notes}
      ${!isSeen ? html`<div class="unread" ref=${unread} style=${{ height: `${weight(value) * 2.2}rem` }}></div>` : view.kind === "array" ? html`<${Items} ...${inner} />` : html`<${Members} ...${inner} />`}</fieldset>`;
  }
  const common = { id, "aria-describedby": `${id}-notes`, "aria-invalid": here.length > 0 || undefined, "aria-required": isRequired || undefined };
  return html`<div ref=${box} class=${`place ${here.length ? "wrong" : ""} ${value === undefined ? "absent" : ""}`}>
    <label for=${view === ABSENT || view === KEPT || view === NULL || isHidden ? undefined : id}>${head}</label>
    <div>${isHidden ? html`<span class="bar"><span class="muted dots">${DOTS}</span><button type="button" aria-label=${`Show ${title}`} onClick=${() => { form.wanted = path; setShown(true); }}>Show</button></span>`
      : html`<${Control} ...${{ form, schema, about, view, value, path, title, common, begin }} />`}${notes}</div><div>${buttons}</div></div>`;
});

/** Which of several kinds of value it is. */
function Kinds({ form, about, view, value, title, setView, begin }) {
  if (view === ABSENT || view === KEPT || view === NULL) return null;
  const named = about.all.filter((part) => kind(part) !== "json");
  const isFree = named.length < about.all.length;
  if (named.length < 2 && !isFree && view !== JSON_TEXT) return null;
  const words = named.map((part, place) => (named.filter((other) => kindName(other) === kindName(part)).length > 1 ? `${kindName(part)} ${place + 1}` : kindName(part)));
  const at = view === JSON_TEXT ? "json" : named.indexOf(view.schema) >= 0 ? String(named.indexOf(view.schema)) : "free";
  function choose(which) {
    if (which === "json") setView(JSON_TEXT);
    else if (which === "free") setView(viewOf(form.root, about, value));
    else if (shows(named[which], value)) setView({ kind: kind(named[which]), schema: named[which] });
    else begin(turned(form.root, named[which], value));
  }
  return html`<select class="kind" aria-label=${`Kind of ${title}`} value=${at} onChange=${(event) => choose(event.target.value)}>
    ${words.map((word, place) => html`<option value=${String(place)}>${word}</option>`)}
    ${isFree && (at === "free" || kindOf(value) !== "json") ? html`<option value="free">${kindName(new Map([["type", kindOf(value)]]))}</option>` : null}<option value="json">JSON</option></select>`;
}

/** A value as one of another kind: a number as its digits and the other way round, else what the kind begins with. */
function turned(root, schema, value) {
  if (kind(schema) === "string" && kindOf(value) === "number") return value.text;
  if (kind(schema) === "number" && isNumber(value)) return isNumber(value);
  return initial(root, schema);
}

function Control({ form, schema, about, view, value, path, title, common, begin }) {
  const onChange = (item) => form.change(path, item);
  switch (view.kind) {
    case "absent": return html`<span class="muted">${schema.has("default") ? html`<code class="wrap">${plain(schema.get("default"))}</code> (default)` : "not set"}</span> <small class="muted">${takes(form.root, schema)}</small>`;
    case "kept": return html`<span class="bar"><span class="muted">hidden, stays as it is</span><button type="button" onClick=${() => begin(initial(form.root, schema))}>Replace it</button></span>`;
    case "null": return html`<span class="bar"><code>null</code>${about.all.length ? html`<button type="button" onClick=${() => begin(initial(form.root, about.all[0]))}>Give it a value</button>` : null}</span>`;
    default: break;
  }
  const toNull = about.isNullable && value !== null ? html`<button type="button" class="quiet" aria-label=${`Set ${title} to null`} onClick=${() => begin(null)}>null</button>` : null;
  switch (view.kind) {
    case "choice": {
      const all = choices(view.schema);
      return html`<select ...${common} value=${String(all.findIndex((choice) => same(choice, value)))} onChange=${(event) => onChange(all[Number(event.target.value)])}>
        ${all.map((choice, place) => html`<option value=${String(place)}>${plain(choice)}</option>`)}</select>`;
    }
    case "boolean": return html`<span class="bar"><label class="check"><input type="checkbox" ...${common} checked=${value} onChange=${(event) => onChange(event.target.checked)} /> ${String(value)}</label>${toNull}</span>`;
    case "number": return html`<span class="bar"><${NumberInput} ...${{ common, value, onChange }} />${toNull}</span>`;
    case "string": return html`<span class="bar"><${TextInput} ...${{ common, value, onChange }} />${toNull}</span>`;
    default: return html`<${Raw} ...${{ common, value, onChange }} />`;
  }
}
