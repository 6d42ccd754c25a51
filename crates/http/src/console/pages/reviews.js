// Change requests: those that need the person at the console, those that are open, one's own, and all that are kept. The lists
// follow the events of change requests.
import { html, useEffect, useState } from "../vendor/preact.js";
import { href, principal, route, session, setQuery } from "../lib/state.js";
import { count } from "../lib/format.js";
import { LIVE, keepRead } from "../lib/following.js";
import { CHANGES, hindrance, isEditable, isMine, isOpen, isPending, needsAuthor, readChanges, waitingLists, waitsForMe } from "../lib/reviews.js";
import { isPaused, isTakenBack, needsSteering, nextStep, stateOf } from "../lib/reviewstate.js";
import { recount } from "../lib/waiting.js";
import { Empty, Problem, Time } from "../parts/ui.js";
import { CopyAs } from "../parts/copyas.js";
import { Party } from "../parts/by.js";
import { useEnvironments } from "../parts/frozen.js";

/** Change requests that are read at once. */
const WANTED = 50;
/** Definitions of a change request that are named. */
const NAMED_MAX = 3;
const VIEWS = [["waiting", "Needs me"], ["open", "Open"], ["mine", "Mine"], ["all", "All"]];
const PENDING = ["open", "scheduled", "rolling", "held"].map((phase) => [["phase", phase]]);
/** The states that can be chosen: the name in the address, the words, the lists that have them, and which of these they are. */
const STATES = [
  ["approval", "waits for approval", PENDING, (change) => isOpen(change) && change.stale === null && !change.approved && change.rejections.length === 0],
  ["ready", "can be applied", PENDING, (change) => stateOf(change)[1] === "can be applied"],
  ["scheduled", "scheduled", PENDING, (change) => stateOf(change)[1] === "scheduled"],
  ["stale", "stale", PENDING, (change) => change.stale !== null],
  ["rejected", "rejected", PENDING, (change) => change.rejections.length > 0],
  ["rolling", "rolling", [[["phase", "rolling"]]]],
  ["paused", "rollout paused", [[["phase", "rolling"]]], isPaused],
  ["held", "held", [[["phase", "held"]]]],
  ["applied", "applied", [[["phase", "applied"]]]],
  ["armed", "to be taken back", [[["revert", "armed"]]]],
  ["kept", "kept", [[["revert", "kept"]]]],
  ["failed", "failed: could not be applied", [[["phase", "closed"]]], (change) => change.closed.reason === "failed" && !isTakenBack(change)],
  ["back", "failed: its rollout was taken back", [[["phase", "closed"]]], isTakenBack],
  ["revert", "could not be taken back", [[["revert", "failed"]]]],
  ["unreviewed", "bypass, not reviewed", [[["unreviewed", "true"]]]],
  ["closed", "closed", [[["phase", "closed"]]]],
];
/** Those of an open one. */
const OPEN_STATES = ["approval", "ready", "scheduled", "stale", "rejected", "rolling", "paused", "held"];
const statesOf = (view) => (view === "waiting" ? [] : STATES.filter(([name]) => view !== "open" || OPEN_STATES.includes(name)));
const EMPTY = {
  waiting: ["Nothing needs you", "A change request that you may approve appears here by itself, and one of your own that you can apply or must rebase."],
  open: ["No change request is open", "Where you edit a config or a definition, Propose… makes one."],
  mine: ["You have sent none", "Where you edit a config or a definition, Propose… makes a change request."],
  all: ["There is no change request", "Where you edit a config or a definition, Propose… makes one."],
};

/** The lists of a view, and what of them it shows. */
function selection(view, { state, environment, search }) {
  const narrowed = [...(environment ? [["environment", environment]] : []), ...(search ? [["search", search]] : [])];
  const of = (lists) => lists.map((query) => [...query, ...narrowed]);
  if (view === "waiting") return [of([...waitingLists, [["phase", "scheduled"]], [["phase", "rolling"]], [["phase", "held"]]]), (change) => waitsForMe(change) || needsAuthor(change) || needsSteering(change)];
  const [, , lists = view === "open" ? PENDING : [[]], isOf = () => true] = statesOf(view).find(([name]) => name === state) ?? [];
  return [of(lists), (change) => isOf(change) && (view !== "mine" || isMine(change)) && (view !== "open" || isPending(change))];
}

export default function Reviews() {
  const query = route.value.query;
  const why = hindrance();
  const view = query.get("view") ?? (why ? "open" : "waiting");
  const [state, environment, search] = ["state", "environment", "search"].map((name) => query.get(name) ?? "");
  const [typed, setTyped] = useState(search);
  const [loaded, setLoaded] = useState({});
  const [wanted, setWanted] = useState(WANTED);
  const environments = useEnvironments();
  const [lists, keep] = selection(view, { state, environment, search });
  const choose = (more) => setQuery(Object.entries({ view, state, environment, search, ...more }).filter(([, value]) => value));
  useEffect(() => { setLoaded({}); setWanted(WANTED); }, [JSON.stringify([lists, view, state]), session.value]);
  const [live, setLive] = useState("");
  useEffect(() => {
    const stop = new AbortController();
    setLive("");
    async function read() {
      try {
        const found = await readChanges(lists, keep, wanted, stop.signal);
        if (stop.signal.aborted) return null;
        setLoaded({ ...found, isRead: true });
        recount();
        return found;
      } catch (error) {
        if (error.status === undefined && error.name !== "AbortError") throw error;
        if (!stop.signal.aborted) setLoaded((old) => ({ ...old, error, isRead: true }));
        return null;
      }
    }
    keepRead(read, { signal: stop.signal, onState: setLive });
    return () => stop.abort();
  }, [JSON.stringify([lists, view, state]), wanted, session.value, principal.value]);
  const shown = loaded.found?.slice(0, wanted) ?? [];
  const hasMore = loaded.more || (loaded.found?.length ?? 0) > wanted;
  return html`<div class="title"><h1>Reviews</h1><span class=${`dot ${live}`}></span><span class="muted" role="status">${LIVE[live] ?? "Connecting…"}</span><span class="muted" role="status">${loaded.isRead && loaded.found ? `${count(shown.length, "change request")}${hasMore ? " of more" : ""}` : ""}</span><span class="grow"></span>
      <${CopyAs} requests=${lists.map((query) => ({ label: query.some(([name]) => name === "unreviewed") ? "List the bypasses without review" : "List the change requests", method: "GET", path: CHANGES, query }))} /></div>
    <nav class="tabs" aria-label="Which change requests">${VIEWS.map(([name, text]) => html`<a href=${href(["reviews"], { view: name })} aria-current=${view === name ? "page" : undefined}>${text}</a>`)}</nav>
    <form class="bar low" onSubmit=${(event) => { event.preventDefault(); choose({ search: typed.trim() }); }}>
      <label class="field small"><span>Environment</span><select value=${environment} onChange=${(event) => choose({ environment: event.target.value })}><option value="">any</option>${names(environments, environment).map((name) => html`<option value=${name}>${name}</option>`)}</select></label>
      ${view !== "waiting" ? html`<label class="field small"><span>State</span><select value=${state} onChange=${(event) => choose({ state: event.target.value })}><option value="">any</option>${statesOf(view).map(([name, text]) => html`<option value=${name}>${text}</option>`)}</select></label>` : ""}
      <label class="field small"><span>Title or id</span><input type="search" value=${typed} spellcheck=${false} onInput=${(event) => setTyped(event.target.value)} /></label>
      <button class="primary">Find</button>${state || environment || search ? html`<button type="button" onClick=${() => { setTyped(""); setQuery([["view", view]]); }}>Show all</button>` : ""}</form>
    ${view === "waiting" && why ? html`<p class="banner warn">You have no vote on change requests: ${why}.</p>` : ""}
    <${Problem} error=${loaded.error} />
    ${!loaded.isRead ? html`<p class="loading" role="status">Loading the change requests…</p>` : shown.length ? html`<${Lists} view=${view} changes=${shown} />` : loaded.error || (view === "waiting" && why) ? "" : html`<${Empty} title=${EMPTY[view][0]}>${EMPTY[view][1]}</${Empty}>`}
    ${hasMore ? html`<button onClick=${() => setWanted(wanted + WANTED)}>Earlier change requests</button>` : ""}`;
}

/** The environments that can be chosen. */
function names(environments, chosen) {
  const all = new Set((environments ?? []).map((one) => one.environment));
  return [...all.add("default"), ...(chosen ? [chosen] : [])].filter((name, place, list) => list.indexOf(name) === place).sort();
}

/** What needs the person, by what they can do about it; elsewhere one list. */
function Lists({ view, changes }) {
  if (view !== "waiting") return html`<${Table} changes=${changes} label="Change requests" />`;
  const [paused, votes, own] = [needsSteering, waitsForMe, needsAuthor].map((isOf) => changes.filter(isOf));
  return html`${paused.length ? html`<h2>Paused rollouts, for you to decide</h2><${Table} changes=${paused} label="Paused rollouts, for you to decide" next />` : ""}${votes.length ? html`<h2>To review</h2><${Table} changes=${votes} label="To review" />` : ""}
    ${own.length ? html`<h2>Your own, to go on with</h2><${Table} changes=${own} label="Your own, to go on with" next />` : ""}`;
}

function Table({ changes, label, next }) {
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${label}><table class="stacked" role="table"><thead role="rowgroup"><tr role="row"><th role="columnheader">Change request</th><th role="columnheader">State</th><th role="columnheader">Approvals</th><th role="columnheader">Changes</th><th role="columnheader">Sent by</th><th role="columnheader">Sent</th></tr></thead>
    <tbody role="rowgroup">${changes.map((change) => {
    const [kind, text] = stateOf(change);
    return html`<tr role="row" key=${change.change_id}><th role="rowheader" scope="row" class="wrap"><a href=${href(["reviews", change.change_id])}>${change.title}</a></th>
      <td role="cell"><span class=${`state ${kind}`}>${text}</span>${next ? html` <span class="muted">${nextStep(change)}</span>` : ""}<${Due} of=${change} /></td>
      <td role="cell" data-name="approvals">${change.bypass ? html`<span class="muted">none: a bypass</span>` : isPending(change) ? `${change.approvals_counted} of ${change.approvals_needed}` : html`<span class="muted">–</span>`}</td>
      <td role="cell" data-name="changes"><${Where} of=${change} /></td><td role="cell" data-name="by"><${Party} of=${change.sender} /></td><td role="cell"><${Time} of=${change.sent_at} /></td></tr>`;
  })}</tbody></table></div>`;
}

/** When the cluster does something. */
function Due({ of }) {
  const at = of.revert?.state === "armed" ? of.revert.due_at : isEditable(of) && of.schedule ? of.schedule.not_before : null;
  return at ? html` <span class="small"><${Time} of=${at} /></span>` : null;
}

function Where({ of }) {
  if (of.environment !== null) return html`the environment <b>${of.environment}</b>`;
  const rest = of.config_definition_keys.length - NAMED_MAX;
  return html`${of.config_definition_keys.slice(0, NAMED_MAX).join(", ")}${rest > 0 ? html` <span class="muted">and ${rest} more</span>` : ""}`;
}
