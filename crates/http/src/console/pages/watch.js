// Changes as they happen, of all definitions or of some: who changed what, newest first.
import { html, useEffect, useState } from "../vendor/preact.js";
import { href, route, session, setQuery } from "../lib/state.js";
import { follow } from "../lib/watch.js";
import { brief, count } from "../lib/format.js";
import { parse } from "../lib/json.js";
import { Empty, Problem, Time } from "../parts/ui.js";
import { CopyAs } from "../parts/copyas.js";

const EVENTS_MAX = 500;
/** Changes of one revision that are shown. */
const CHANGES_MAX = 8;
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
  const parameters = [...definitions.map((name) => ["definition", name]), ...(begin ? [["from", begin]] : [])];
  useEffect(() => {
    setEvents([]);
    setRefusal(null);
    const stop = new AbortController();
    follow(parameters, {
      change: (event, text) => setEvents((old) => [{ ...event, contents: contents(text) }, ...old].slice(0, EVENTS_MAX)),
      state: setState,
      gone: (why) => { setGone(why); setQuery(definitions.map((name) => ["definition", name])); },
      refused: (items) => { setState("refused"); setRefusal({ status: 422, items }); },
    }, stop.signal);
    return () => stop.abort();
  }, [JSON.stringify(parameters), session.value]);
  const [held, setHeld] = useState([]);
  useEffect(() => { if (!paused) setHeld(events); }, [events, paused]);
  const choose = (names) => setQuery([...names.map((name) => ["definition", name]), ...(begin ? [["from", begin]] : [])]);
  const words = { live: "Live", waiting: "Connecting again…", refused: "Refused" };
  return html`<div class="title"><h1>Changes</h1><span class=${`dot ${state}`}></span><span class="muted" role="status">${words[state] ?? "Connecting…"}</span><span class="grow"></span>
      <${CopyAs} requests=${[{ label: "Follow these changes", method: "GET", path: "/watch", query: parameters, stream: true }]} />
      <button onClick=${() => setPaused(!paused)} aria-pressed=${paused}>${paused ? `Go on (${events.length - held.length} more)` : "Pause"}</button>
      <button onClick=${() => { setEvents([]); setHeld([]); }}>Clear</button></div>
    <div class="bar"><div class="filters">${definitions.map((name) => html`<span class="chip"><b>${name}</b><button aria-label=${`Do not follow ${name} alone`} onClick=${() => choose(definitions.filter((other) => other !== name))}>✕</button></span>`)}</div>
      <form class="bar" onSubmit=${(event) => { event.preventDefault(); if (text && !definitions.includes(text)) choose([...definitions, text]); setText(""); }}>
        <input aria-label="Follow this definition only" placeholder="all definitions; one only…" value=${text} onInput=${(event) => setText(event.target.value.trim())} /><button disabled=${!text}>Follow</button></form>
      <form class="bar" onSubmit=${(event) => { event.preventDefault(); setGone(""); setQuery([...definitions.map((name) => ["definition", name]), ...(from ? [["from", from]] : [])]); }}>
        <input aria-label="From this revision" inputmode="numeric" class="short" placeholder="from revision" value=${from} onInput=${(event) => setFrom(event.target.value.replace(/\D/g, ""))} /><button disabled=${from === begin}>Begin there</button></form></div>
    <${Problem} error=${refusal} />
    ${gone ? html`<div class="banner warn" role="alert"><strong>Some changes can't be shown:</strong> ${gone}. What comes from now on is shown.</div>` : ""}
    ${held.length === 0 ? html`<${Empty} title="Nothing has changed yet">What is written from now on appears here by itself. Give a revision to see what was written before.</${Empty}>`
      : html`<p class="muted small">${count(held.length, "revision")}${held.length >= EVENTS_MAX ? `, the newest ${EVENTS_MAX}` : ""}</p><div class="scroll" tabindex="0" role="region" aria-label="Changes"><table class="changes-table"><thead><tr><th>Revision</th><th>When</th><th>By</th><th>What</th><th>Reason</th></tr></thead>
        <tbody>${held.map((event) => html`<tr key=${event.revision} class="arriving"><td>${event.revision}</td><td><${Time} of=${event.at} /></td><td>${event.by ?? html`<span class="muted">–</span>`}</td>
          <td>${event.changes.slice(0, CHANGES_MAX).map((item, i) => html`<div><span class=${`op ${item.type.split("_")[1]}`}>${WORDS[item.type] ?? item.type}</span> <${Place} of=${item} content=${event.contents[i]} /></div>`)}
            ${event.changes.length > CHANGES_MAX ? html`<div class="muted">and ${event.changes.length - CHANGES_MAX} more in this revision</div>` : ""}</td><td class="wrap">${brief(event.reason ?? "", 200)}</td></tr>`)}</tbody></table></div>`}`;
}

/** The contents in an event as they are written: a number keeps its digits. */
function contents(text) {
  return parse(text).get("changes").slice(0, CHANGES_MAX).map((item) => brief(item.get("data"), 90));
}

function Place({ of, content }) {
  const definition = html`<a href=${href(["d", of.config_definition_key])}>${of.config_definition_key}</a>`;
  if (!of.config_key) return definition;
  const gone = of.type === "config_deleted";
  return html`${definition} / <a href=${href(["d", of.config_definition_key, "c", of.config_key, ...(gone ? ["history"] : [])])}>${of.config_key}</a>
    ${content ? html` <code class="muted small">${content}</code>` : ""}`;
}
