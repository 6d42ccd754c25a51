// Changes of all definitions or of some, newest first: the last ones, and those that come. Each says who changed what, and
// which fields differ, and can be taken back.
import { html, useEffect, useState } from "../vendor/preact.js";
import { href, lacks, route, session, setQuery } from "../lib/state.js";
import { follow } from "../lib/watch.js";
import { Refusal, definitionPath, get } from "../lib/api.js";
import { differences } from "../lib/compare.js";
import { brief, count, pathText } from "../lib/format.js";
import { parse } from "../lib/json.js";
import { ANY } from "../lib/schema.js";
import { masked } from "../lib/secrets.js";
import { By, idsOf } from "../parts/by.js";
import { Empty, Problem, Time, useTyped } from "../parts/ui.js";
import { CopyAs } from "../parts/copyas.js";
import { Undo } from "../parts/undo.js";

const EVENTS_MAX = 1000;
/** Revisions of a page. */
const PAGE = 50;
/** Changes of one revision that are shown, and fields of one change. */
const [CHANGES_MAX, FIELDS_MAX] = [8, 6];
/** Characters of a reason that are shown. */
const REASON_MAX = 200;
const WORDS = {
  definition_created: "definition created", definition_updated: "definition changed", definition_deleted: "definition deleted",
  config_created: "created", config_updated: "changed", config_deleted: "deleted", config_unmatched: "no longer fits",
};
/** How far back: the name in the address, the words, and the milliseconds. */
const SINCE = [["15m", "15 minutes", 900_000], ["1h", "1 hour", 3_600_000], ["24h", "24 hours", 86_400_000], ["7d", "7 days", 604_800_000]];

export default function Changes() {
  const query = route.value.query;
  const definitions = query.getAll("definition").filter(Boolean);
  const [since, by, begin] = ["since", "by", "from"].map((name) => query.get(name) ?? "");
  const typed = { definition: useTyped(""), by: useTyped(by), from: useTyped(begin) };
  const [events, setEvents] = useState([]);
  const [earlier, setEarlier] = useState(null);
  const [state, setState] = useState("");
  const [paused, setPaused] = useState(false);
  const [refusal, setRefusal] = useState(null);
  const [gone, setGone] = useState("");
  const [undone, setUndone] = useState(null);
  const chosen = definitions.map((name) => ["definition", name]);
  const parameters = [...chosen, ...Object.entries({ since, by, from: begin }).filter(([, value]) => value)];
  const choose = (more) => setQuery([...(more.definitions ?? definitions).map((name) => ["definition", name]), ...Object.entries({ since, by, from: begin, ...more }).filter(([name, value]) => value && name !== "definitions")]);
  useEffect(() => {
    setEvents([]);
    setEarlier(null);
    setRefusal(null);
    const stop = new AbortController();
    const failed = (error) => { if (!stop.signal.aborted) setRefusal(error); };
    show(stop.signal, failed).catch(failed);
    return () => stop.abort();
  }, [JSON.stringify(parameters), session.value]);
  async function show(signal, failed) {
    const schemas = new Schemas(signal);
    const ids = by ? await idsOf(by) : [];
    if (ids.length > 1) throw new Refusal({ status: 422, items: [{ msg: `several access keys have the name ${by}: give one of the ids ${ids.join(", ")}` }] });
    // One after the other, as each waits for the schema that says what of it is secret.
    let ready = Promise.resolve();
    const on = {
      change(event, whole) {
        if (ids.length && event.by !== ids[0]) return;
        ready = ready.then(() => described(event, parse(whole), schemas)).then((found) => { if (!signal.aborted) setEvents((old) => [found, ...old].slice(0, EVENTS_MAX)); }).catch(failed);
      },
      state: setState,
      refused(items) { setState("refused"); setRefusal({ status: 422, items }); },
    };
    if (begin) {
      await follow([...chosen, ["prev", "true"], ["from", begin]], { ...on, gone(why) { setGone(why); choose({ from: "" }); } }, signal);
      return;
    }
    const conditions = [...chosen, ["prev", "true"], ["latest", PAGE]];
    if (ids.length) conditions.push(["by", ids[0]]);
    const unit = SINCE.find(([name]) => name === since);
    if (unit) conditions.push(["since", new Date(Date.now() - unit[2]).toISOString()]);
    async function read(before) {
      // A page has examined many revisions, and may have none of those that are looked for.
      for (let next = before, found = []; ; ) {
        const { data, exact } = await get("/changes", [...conditions, ...(next === null ? [] : [["before", next]])], { signal });
        for (const [place, event] of data.events.entries()) found.push(await described(event, exact.get("events")[place], schemas));
        next = data.next_before;
        if (found.length || next === null) {
          setEvents((old) => [...old, ...found].slice(0, EVENTS_MAX));
          setEarlier(next === null ? null : () => () => { setEarlier(null); return read(next).catch(failed); });
          return data.from;
        }
      }
    }
    let from = await read(null);
    await follow(() => [...chosen, ["prev", "true"], ...(from === null ? [] : [["from", from]])], { ...on, gone(why) { from = null; setGone(why); } }, signal);
  }
  const [held, setHeld] = useState([]);
  useEffect(() => { if (!paused) setHeld(events); }, [events, paused]);
  const submit = (event) => {
    event.preventDefault();
    setGone("");
    const { definition, ...others } = typed;
    for (const field of Object.values(others)) field.sent(field.text);
    choose({ definitions: [...new Set([...definitions, ...(definition.text ? [definition.text] : [])])], by: others.by.text, from: others.from.text });
    definition.set("");
  };
  const input = (name, label, hint, change = (text) => text.trim()) => html`<label class="field small"><span>${label}</span><input placeholder=${hint} spellcheck=${false} value=${typed[name].text} onInput=${(event) => typed[name].set(change(event.target.value))} /></label>`;
  const words = { live: "Live", waiting: "Connecting again…", refused: "Rejected" };
  return html`<div class="title"><h1>Changes</h1><span class=${`dot ${state}`}></span><span class="muted" role="status">${words[state] ?? "Connecting…"}</span><span class="grow"></span>
      <${CopyAs} requests=${requests(chosen, { since: SINCE.find(([name]) => name === since), by, begin })} />
      <button onClick=${() => setPaused(!paused)} aria-pressed=${paused}>${paused ? `Go on (${events.length - held.length} more)` : "Pause"}</button>
      <button onClick=${() => { setEvents([]); setHeld([]); setEarlier(null); }}>Clear</button></div>
    <form class="bar low" onSubmit=${submit}>
      <label class="field small"><span>Since</span><select aria-label="Since" value=${since} onChange=${(event) => choose({ since: event.target.value, from: "" })}><option value="">any time</option>${SINCE.map(([name, text]) => html`<option value=${name}>${text}</option>`)}</select></label>
      ${input("definition", "Definition", "limits, or prod.*")}${input("by", "By", "name or id of a key")}${input("from", "From revision", "", (text) => text.replace(/\D/g, ""))}
      <button class="primary">Filter</button>${parameters.length ? html`<button type="button" onClick=${() => { for (const field of Object.values(typed)) field.set(""); setQuery([]); }}>Show all</button>` : ""}</form>
    ${definitions.length ? html`<div class="bar spaced"><div class="filters">${definitions.map((name) => html`<span class="chip"><b>${name}</b><button aria-label=${`Do not follow ${name} alone`} onClick=${() => choose({ definitions: definitions.filter((other) => other !== name) })}>✕</button></span>`)}</div></div>` : ""}
    <${Problem} error=${refusal} />
    ${gone ? html`<div class="banner warn" role="alert"><strong>Some changes can't be shown:</strong> ${gone}. New changes are shown.</div>` : ""}
    ${held.length === 0 ? (state || refusal ? html`<${Empty} title="No change to show">${parameters.length ? "Nothing that fits was changed." : "Nothing was changed."} A new change appears here by itself.</${Empty}>` : html`<p class="loading" role="status">Loading the changes…</p>`)
      : html`<div class="scroll" tabindex="0" role="region" aria-label="Changes"><table class="stacked" role="table"><thead role="rowgroup"><tr role="row">${["Revision", "When", "By", "What", "Reason"].map((text) => html`<th role="columnheader">${text}</th>`)}<th role="columnheader"><span class="unseen">Actions</span></th></tr></thead>
        <tbody role="rowgroup">${held.map((event) => html`<tr role="row" key=${event.revision} class="arriving"><td role="cell" data-name="revision">${event.revision}</td><td role="cell"><${Time} of=${event.at} /></td><td role="cell" data-name="by"><${By} of=${event.by} /></td>
          <td role="cell">${event.changes.map((item, i) => html`<div><span class=${`op ${item.type.split("_")[1]}`}>${WORDS[item.type] ?? item.type}</span> <${Place} of=${item} /><${FieldsChanged} of=${event.fields[i]} /></div>`)}
            ${event.more ? html`<div class="muted">and ${event.more} more in this revision</div>` : ""}</td><td role="cell" class="wrap">${event.reason?.slice(0, REASON_MAX)}</td>
          <td role="cell" class="actions">${event.changes.some((item) => item.config_key && !lacks("propose", item.config_definition_key)) ? html`<button class="quiet" aria-label=${`Undo revision ${event.revision}`} onClick=${() => setUndone(event.revision)}>Undo…</button>` : ""}</td></tr>`)}</tbody></table></div>
        <p class="muted small">${count(held.length, "revision")}${held.length >= EVENTS_MAX ? `, the newest ${EVENTS_MAX}` : ""}</p>`}
    ${earlier && events.length < EVENTS_MAX ? html`<button onClick=${earlier}>Earlier changes</button>` : ""}
    ${undone ? html`<${Undo} revision=${undone} onClose=${() => setUndone(null)} />` : ""}`;
}

/** The requests behind the page. */
function requests(chosen, { since, by, begin }) {
  const stream = { label: "Follow these changes", method: "GET", path: "/watch", query: [...chosen, ...(begin ? [["from", begin]] : [])], stream: true };
  if (begin || chosen.length > 1) return [stream];
  const narrowed = [...(since ? [["since", new Date(Date.now() - since[2]).toISOString()]] : []), ...(by ? [["by", by]] : [])];
  return [{ label: "List these changes", method: "GET", path: "/changes", query: [...chosen, ["latest", PAGE], ...narrowed] }, stream];
}

/** The schemas of definitions, read when they are first needed, and again when they change. */
class Schemas {
  constructor(signal) { Object.assign(this, { signal, known: new Map() }); }

  forget(name) { this.known.delete(name); }

  /** The schema; null where it can't be known, so that nothing of the data can be shown. */
  async of(name) {
    if (!this.known.has(name)) {
      try {
        const answer = await get(`${definitionPath(name)}/schema`, [], { signal: this.signal });
        this.known.set(name, answer.exact.get("json_schema") ?? ANY);
      } catch (error) {
        if (error.status !== 403 && error.status !== 404) throw error;
        this.known.set(name, null);
      }
    }
    return this.known.get(name);
  }
}

/** An event with the fields that differ in each of its changes, as they are written: a number keeps its digits. */
async function described(event, whole, schemas) {
  const exact = whole.get("changes");
  const changes = event.changes.slice(0, CHANGES_MAX);
  const fields = [];
  for (const [place, item] of changes.entries()) {
    if (item.config_key === undefined) schemas.forget(item.config_definition_key);
    fields.push(item.data === undefined || item.config_key === undefined ? null : differing(exact[place], await schemas.of(item.config_definition_key)));
  }
  return { revision: event.revision, at: event.at, by: event.by, reason: event.reason, changes: changes.map(({ type, config_definition_key, config_key }) => ({ type, config_definition_key, config_key })), fields, more: event.changes.length - changes.length };
}

function differing(change, schema) {
  if (schema === null) return { places: [], note: "its schema is gone: what is secret is not known" };
  const found = differences(change.get("prev") ?? new Map(), change.get("data"));
  const isHidden = [change.get("redacted"), change.get("prev_redacted")].some((paths) => paths?.length);
  const places = found.slice(0, FIELDS_MAX).map(({ path, old, new: item }) => ({ path: pathText(path),
    old: old === undefined ? null : brief(masked(schema, old, path), 80), new: item === undefined ? null : brief(masked(schema, item, path), 80) }));
  const rest = found.length - places.length;
  return { places, note: rest > 0 ? `and ${count(rest, "more field")}` : found.length === 0 ? (isHidden ? "nothing that your key may see" : "no field differs") : "" };
}

function FieldsChanged({ of }) {
  if (!of) return null;
  return html`<ul class="differing">${of.places.map((place) => html`<li><b>${place.path}</b> ${place.old === null ? "" : html`<code class="wrap minus">${place.old}</code>`}
    ${place.old !== null && place.new !== null ? " → " : ""}${place.new === null ? html` <span class="muted">removed</span>` : html`<code class="wrap plus">${place.new}</code>`}</li>`)}${of.note ? html`<li class="muted">${of.note}</li>` : ""}</ul>`;
}

function Place({ of }) {
  const definition = html`<a href=${href(["d", of.config_definition_key])}>${of.config_definition_key}</a>`;
  if (!of.config_key) return definition;
  const gone = of.type === "config_deleted";
  return html`${definition} / <a href=${href(["d", of.config_definition_key, "c", of.config_key, ...(gone ? ["history"] : [])])}>${of.config_key}</a>`;
}
