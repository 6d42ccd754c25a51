// Changes of all definitions or of some, newest first: the last ones, and those that come. Each says who changed what, and
// which fields differ.
import { html, useEffect, useState } from "../vendor/preact.js";
import { href, route, session, setQuery } from "../lib/state.js";
import { follow } from "../lib/watch.js";
import { definitionPath, get } from "../lib/api.js";
import { differences } from "../lib/compare.js";
import { brief, count, pathText } from "../lib/format.js";
import { parse } from "../lib/json.js";
import { ANY } from "../lib/schema.js";
import { masked } from "../lib/secrets.js";
import { By } from "../parts/by.js";
import { Empty, Problem, Time } from "../parts/ui.js";
import { CopyAs } from "../parts/copyas.js";

const EVENTS_MAX = 500;
/** Revisions before the present one that are shown at first; the smaller number where the larger is not retained. */
const RECENT = [50, 10, 0];
/** Changes of one revision that are shown, and fields of one change. */
const [CHANGES_MAX, FIELDS_MAX] = [8, 6];
/** Characters of a reason that are shown. */
const REASON_MAX = 200;
const WORDS = {
  definition_created: "definition created", definition_updated: "definition changed", definition_deleted: "definition deleted",
  config_created: "created", config_updated: "changed", config_deleted: "deleted", config_unmatched: "no longer fits",
};

export default function Changes() {
  const query = route.value.query;
  const definitions = query.getAll("definition").filter(Boolean);
  const [text, setText] = useState("");
  const [from, setFrom] = useState(query.get("from") ?? "");
  const begin = query.get("from") ?? "";
  useEffect(() => setFrom(begin), [begin]);
  const [events, setEvents] = useState([]);
  const [state, setState] = useState("");
  const [paused, setPaused] = useState(false);
  const [refusal, setRefusal] = useState(null);
  const [gone, setGone] = useState("");
  const chosen = definitions.map((name) => ["definition", name]);
  const parameters = [...chosen, ...(begin ? [["from", begin]] : [])];
  useEffect(() => {
    setEvents([]);
    setRefusal(null);
    const stop = new AbortController();
    const failed = (error) => { if (!stop.signal.aborted) setRefusal(error); };
    show(stop.signal, failed).catch(failed);
    return () => stop.abort();
  }, [JSON.stringify(parameters), session.value]);
  async function show(signal, failed) {
    const schemas = new Schemas(signal);
    // One after the other, as each waits for the schema that says what of it is secret.
    let ready = Promise.resolve();
    const on = {
      change(event, whole) {
        ready = ready.then(() => described(event, whole, schemas)).then((found) => { if (!signal.aborted) setEvents((old) => [found, ...old].slice(0, EVENTS_MAX)); }).catch(failed);
      },
      state: setState,
      refused(items) { setState("refused"); setRefusal({ status: 422, items }); },
    };
    if (begin) {
      await follow([...parameters, ["prev", "true"]], { ...on, gone(why) { setGone(why); setQuery(chosen); } }, signal);
      return;
    }
    const { revision } = await get("/config_definition/", [["limit", 1]], { signal });
    const tries = [...RECENT];
    await follow(() => {
      const first = Math.max(1, revision - tries[0] + 1);
      return [...chosen, ["prev", "true"], ...(tries[0] ? [["from", first]] : [])];
    }, { ...on, gone(why) { if (tries.length > 1) tries.shift(); else setGone(why); } }, signal);
  }
  const [held, setHeld] = useState([]);
  useEffect(() => { if (!paused) setHeld(events); }, [events, paused]);
  const choose = (names) => setQuery([...names.map((name) => ["definition", name]), ...(begin ? [["from", begin]] : [])]);
  const words = { live: "Live", waiting: "Connecting again…", refused: "Rejected" };
  return html`<div class="title"><h1>Changes</h1><span class=${`dot ${state}`}></span><span class="muted" role="status">${words[state] ?? "Connecting…"}</span><span class="grow"></span>
      <${CopyAs} requests=${[{ label: "Follow these changes", method: "GET", path: "/watch", query: parameters, stream: true }]} />
      <button onClick=${() => setPaused(!paused)} aria-pressed=${paused}>${paused ? `Go on (${events.length - held.length} more)` : "Pause"}</button>
      <button onClick=${() => { setEvents([]); setHeld([]); }}>Clear</button></div>
    <div class="bar"><div class="filters">${definitions.map((name) => html`<span class="chip"><b>${name}</b><button aria-label=${`Do not follow ${name} alone`} onClick=${() => choose(definitions.filter((other) => other !== name))}>✕</button></span>`)}</div>
      <form class="bar" onSubmit=${(event) => { event.preventDefault(); if (text && !definitions.includes(text)) choose([...definitions, text]); setText(""); }}>
        <input aria-label="Follow this definition only" placeholder="all definitions; one only…" value=${text} onInput=${(event) => setText(event.target.value.trim())} /><button disabled=${!text}>Follow</button></form>
      <form class="bar" onSubmit=${(event) => { event.preventDefault(); setGone(""); setQuery([...chosen, ...(from ? [["from", from]] : [])]); }}>
        <input aria-label="From this revision" inputmode="numeric" class="short" placeholder="from revision" value=${from} onInput=${(event) => setFrom(event.target.value.replace(/\D/g, ""))} /><button disabled=${from === begin}>Begin there</button></form></div>
    <${Problem} error=${refusal} />
    ${gone ? html`<div class="banner warn" role="alert"><strong>Some changes can't be shown:</strong> ${gone}. New changes are shown.</div>` : ""}
    ${held.length === 0 ? html`<${Empty} title="No change to show">${begin ? `Nothing was changed from revision ${begin} on.` : `Nothing was changed in the last ${RECENT[0]} revisions.`} A new change appears here by itself; give an earlier revision to see what was changed before.</${Empty}>`
      : html`<p class="muted small">${count(held.length, "revision")}${held.length >= EVENTS_MAX ? `, the newest ${EVENTS_MAX}` : begin ? "" : `: those of the last ${RECENT[0]}, and what came since`}</p><div class="scroll" tabindex="0" role="region" aria-label="Changes"><table class="changes-table"><thead><tr><th>Revision</th><th>When</th><th>By</th><th>What</th><th>Reason</th></tr></thead>
        <tbody>${held.map((event) => html`<tr key=${event.revision} class="arriving"><td>${event.revision}</td><td><${Time} of=${event.at} /></td><td><${By} of=${event.by} /></td>
          <td>${event.changes.map((item, i) => html`<div><span class=${`op ${item.type.split("_")[1]}`}>${WORDS[item.type] ?? item.type}</span> <${Place} of=${item} /><${FieldsChanged} of=${event.fields[i]} /></div>`)}
            ${event.more ? html`<div class="muted">and ${event.more} more in this revision</div>` : ""}</td><td class="wrap">${event.reason?.slice(0, REASON_MAX)}</td></tr>`)}</tbody></table></div>`}`;
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
async function described(event, text, schemas) {
  const exact = parse(text).get("changes");
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
