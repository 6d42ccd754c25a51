// A new edition of an open change request: its texts, its times, and the data that it would store. What it loses is asked before
// it is sent, and it is sent on the condition that the change request is as it is shown.
import { html, useEffect, useMemo, useRef, useState } from "../vendor/preact.js";
import { go, href, say, unsaved } from "../lib/state.js";
import { keptIn, partsOf, readChange, timingMembers } from "../lib/edition.js";
import { count } from "../lib/format.js";
import { JsonError, identical, parse, print } from "../lib/json.js";
import { proposalBody } from "../lib/operations.js";
import { changePath, isEditable, mayEdit } from "../lib/reviews.js";
import { ANY } from "../lib/schema.js";
import { masked } from "../lib/secrets.js";
import { Crumbs, Dialog, Field, Loaded, Problem, useLoad, useWrite } from "../parts/ui.js";
import { CopyAs } from "../parts/copyas.js";
import { Diff } from "../parts/diff.js";
import { Editor } from "../parts/editor.js";
import { OPERATIONS } from "./review.js";
import { TITLE_MAX } from "../parts/propose.js";
import { Release } from "../parts/release.js";
import { formOf, releaseOf, wrongOf } from "../lib/release.js";
import { Timing, fieldsOf, timingOf } from "../parts/timing.js";

/** Operations that are shown before somebody asks for all. */
const PARTS = 25;

export default function EditRequest({ parts: [, id] }) {
  const loaded = useLoad((signal) => readChange(id, signal), [id]);
  // What is loaded again, as after a new key, must not take away what was typed; it is put aside when the person says so.
  const first = useRef(null);
  const aside = useRef(null);
  if (!first.current && loaded.data && loaded.data !== aside.current) first.current = loaded.data;
  const start = first.current;
  const begin = () => { [aside.current, first.current] = [loaded.data, null]; loaded.reload(); };
  return html`<${Crumbs} items=${[{ text: "Reviews", href: href(["reviews"]) }, { text: start?.change.title ?? id, href: href(["reviews", id]) }, { text: "Edit" }]} />
    <${Loaded} of=${start ? { data: start } : loaded} what="the change request">${start && html`<${Whether} key=${start.change.digest} start=${start} onBegin=${begin} />`}</${Loaded}>`;
}

/** Says why it can't be edited here, or edits it. */
function Whether({ start, onBegin }) {
  const { change } = start;
  const found = useMemo(() => (isEditable(change) ? partsOf(start) : null), [start]);
  const why = !isEditable(change) ? "it is not open any more" : !mayEdit(change) ? "your key may not propose and read all of it" : found.why;
  if (why) return html`<div class="title"><h1>Edit the change request</h1></div><div class="banner warn"><strong>It can't be edited here:</strong> ${why}. ${found?.why ? "Who sees it can send a new edition, or propose it anew." : ""}</div>
    <p><a href=${href(["reviews", change.change_id])}>To the change request</a></p>`;
  return html`<${Editing} start=${start} parts=${found.parts} onBegin=${onBegin} />`;
}

function Editing({ start, parts, onBegin }) {
  const { change, schemas } = start;
  const [title, setTitle] = useState(change.title);
  const [description, setDescription] = useState(change.description);
  const [when, setWhen] = useState(() => fieldsOf(change));
  const [release, setRelease] = useState(() => formOf(change.rollout));
  const [values, setValues] = useState(() => parts.map((part) => part.value));
  const [wrong, setWrong] = useState({});
  const [out, setOut] = useState(new Set());
  const [max, setMax] = useState(PARTS);
  const [isAsking, setAsking] = useState(false);
  // What was changed since the edition was sent is always shown: sent again, it takes that back.
  const isShown = (part, place) => place < max || part.isChanged;
  const unseen = parts.filter((part, place) => !isShown(part, place)).length;
  const kept = parts.filter((_, place) => !out.has(place));
  // A time that is not touched is sent as it was, to the microsecond.
  const began = useMemo(() => fieldsOf(change), [change]);
  const planned = useMemo(() => JSON.stringify(releaseOf(formOf(change.rollout))), [change]);
  const timing = JSON.stringify(when) === JSON.stringify(began) ? timingMembers(change) : timingOf(when);
  const isReleased = wrongOf(release) !== "" || JSON.stringify(releaseOf(release)) !== planned;
  const isChanged = isReleased || title !== change.title || description !== change.description || JSON.stringify(when) !== JSON.stringify(began) || out.size > 0
    || parts.some((part, place) => part.value !== undefined && !identical(values[place], part.value));
  const isBroken = Object.keys(wrong).some((place) => !out.has(Number(place)));
  useEffect(() => { unsaved.value = isChanged || isBroken ? "What you have changed is not sent." : ""; return () => { unsaved.value = ""; }; }, [isChanged, isBroken]);
  const secretsOf = (part) => [schemas.get(part.definition) ?? ANY].flat();
  const isSecret = (part, value) => part.isConfig && secretsOf(part).some((schema) => masked(schema ?? ANY, value) !== value);
  const body = proposalBody(title.trim(), description.trim(), parts.flatMap((part, place) => (out.has(place) ? [] : [part.text(values[place])])), { ...timing, ...releaseOf(release) });
  const set = (place, value) => setValues((old) => old.map((other, i) => (i === place ? value : other)));
  const mark = (place, error) => setWrong((old) => { const { [place]: gone, ...rest } = old; return error ? { ...rest, [place]: error } : rest; });
  const leave = (place) => setOut((old) => { const next = new Set(old); if (!next.delete(place)) next.add(place); return next; });
  const state = isBroken ? ["bad", "A place is no JSON"] : wrongOf(release) ? ["bad", "The stages are not whole"] : kept.length === 0 ? ["bad", "Nothing is left of it"] : isChanged ? ["", "The node checks it when you send it"] : ["", "Nothing is changed yet"];
  return html`<div class="title"><h1>Edit the change request</h1><span class=${`state ${state[0]}`} role="status">${state[1]}</span><span class="grow"></span>
      <${CopyAs} isSecret=${() => parts.some((part, place) => isSecret(part, values[place]))} requests=${() => [{ label: "Send the edition", method: "PUT", path: changePath(change.change_id), headers: { "If-Match": start.etag }, body }]} />
      <a class="button" href=${href(["reviews", change.change_id])}>Cancel</a>
      <button class="primary" disabled=${!isChanged || isBroken || wrongOf(release) !== "" || kept.length === 0 || !title.trim()} onClick=${() => setAsking(true)}>Send edition ${change.edition + 1}…</button></div>
    <p class="muted">You edit edition ${change.edition}. What you send becomes edition ${change.edition + 1}, which rests on the records as they are now. To add a record, propose it on its own page.</p>
    <div class="narrowed"><${Field} label="Title" hint="What it is, in a line"><input required maxlength=${TITLE_MAX} value=${title} onInput=${(event) => setTitle(event.target.value)} /></${Field}>
      <${Field} label="Description" hint="Why; those who may read everything in it can read this"><textarea rows="3" maxlength="4000" value=${description} onInput=${(event) => setDescription(event.target.value)}></textarea></${Field}>
      ${change.rollout || kept.every((part) => part.op === "put_config" && !part.isNew) ? html`<${Release} release=${release} setRelease=${setRelease} />` : ""}
      <${Timing} when=${when} setWhen=${setWhen} isOfConfigs=${kept.every((part) => part.isConfig)} /></div>
    <h2>What it would change <span class="muted">${count(kept.length, "operation")}</span></h2>
    ${parts.map((part, place) => (isShown(part, place) ? html`<${Part} key=${place} part=${part} value=${values[place]} schema=${part.isConfig ? secretsOf(part) : undefined} isOut=${out.has(place)} isAlone=${parts.length === 1} isSecret=${isSecret(part, values[place])} error=${wrong[place]}
      onLeave=${() => leave(place)} onValue=${(value) => { set(place, value); mark(place, null); }} onWrong=${(error) => mark(place, error)} />` : null))}
    ${unseen ? html`<p><b>${count(unseen, "more operation")} not shown:</b> ${unseen === 1 ? "it stays" : "they stay"} as in edition ${change.edition}. <button type="button" onClick=${() => setMax(Infinity)}>Show all</button></p>` : ""}
    ${isAsking ? html`<${Send} start=${start} body=${body} changed=${kept.filter((part) => part.isChanged).length} hidden=${parts.reduce((sum, part, place) => sum + (out.has(place) ? 0 : keptIn(part, values[place]).length), 0)} onClose=${() => setAsking(false)} onBegin=${onBegin} />` : ""}`;
}

/** One operation: what it changes, and the JSON of it. */
function Part({ part, value, schema, isOut, isAlone, isSecret, error, onLeave, onValue, onWrong }) {
  const [text, setText] = useState(null);
  const hidden = keptIn(part, value);
  const canEdit = part.value !== undefined && part.value !== null;
  const opener = isSecret ? "Edit the JSON (it has secret values)" : "Edit the JSON";
  function typed(newText) {
    setText(newText);
    try {
      const found = parse(newText);
      if (!(found instanceof Map)) throw new JsonError("an object is expected here", 0);
      onValue(found);
    } catch (problem) {
      if (!(problem instanceof JsonError)) throw problem;
      onWrong(problem);
    }
  }
  const words = part.op === "put_config" || part.op === "put_environment" ? (part.isNew ? "create" : "replace") : part.op === "delete_config" || part.op === "delete_environment" ? "delete" : OPERATIONS[part.op] ?? part.op;
  return html`<section class="together" aria-label=${part.name}><div class="bar"><h3><span class="tag">${words}</span> ${isOut ? html`<s>${part.name}</s>` : part.name}</h3><span class="grow"></span>
      ${canEdit && !isOut && text === null ? html`<button type="button" aria-label=${`${opener}: ${part.name}`} onClick=${() => setText(print(value))}>${opener}…</button>` : ""}
      ${isAlone ? "" : html`<button type="button" aria-pressed=${isOut} aria-label=${`Leave it out: ${part.name}`} onClick=${onLeave}>Leave it out</button>`}</div>
    ${isOut ? html`<p class="muted">The new edition does not have it.</p>` : html`
      ${hidden.length ? html`<ul class="notes"><li>Your key may not see ${count(hidden.length, "value")} of this edition: ${hidden.map((path) => path.join(".")).join(", ")}. In yours ${hidden.length === 1 ? "it stays" : "they stay"} as the config has ${hidden.length === 1 ? "it" : "them"} <b>now</b>, unless you replace the marker <code>$concord-keep</code>. What this edition gives ${hidden.length === 1 ? "it" : "them"} is lost.</li></ul>` : ""}
      ${part.isChanged ? html`<ul class="notes"><li>It was changed since this edition was sent. What you send replaces it as it is <b>now</b>, and takes that change back unless you put it in.</li></ul>` : ""}
      ${part.isCut ? html`<ul class="notes"><li>What it is now is too large to be shown here: only what it will be is shown.</li></ul>` : ""}
      ${text === null ? "" : html`<${Editor} text=${text} onText=${typed} problems=${error ? [{ from: error.at, to: error.at + 1, message: error.message }] : []} label=${`${part.name} as JSON`} />${error ? html`<p class="error">No JSON: ${error.message}</p>` : ""}`}
      ${canEdit || part.op.startsWith("delete_config") ? html`<${Diff} schema=${schema} from=${part.before} to=${canEdit ? value : undefined} label=${`What changes in ${part.name}`} />` : html`<p class="muted">It stays as it is in this edition.</p>`}`}</section>`;
}

/** Asks, with what is lost. */
function Send({ start: { change, etag }, body, hidden, changed, onClose, onBegin }) {
  const [known, setKnown] = useState(false);
  const [takesBack, setTakesBack] = useState(false);
  const [now, setNow] = useState({ etag, change });
  const write = useWrite();
  const isOther = now.change.digest !== change.digest || !isEditable(now.change);
  const submit = (event) => {
    event.preventDefault();
    write.run("PUT", changePath(change.change_id), { headers: { "If-Match": now.etag }, body }, (answer) => {
      unsaved.value = "";
      say(`Sent as edition ${answer.data.edition}`);
      go(["reviews", change.change_id]);
    });
  };
  async function again() {
    write.clear();
    const found = await readChange(change.change_id);
    setNow({ etag: found.etag, change: found.change });
  }
  const { approvals, rejections } = now.change;
  const lost = [approvals.length && count(approvals.length, "approval"), rejections.length && count(rejections.length, "rejection")].filter(Boolean).join(" and ");
  return html`<${Dialog} title=${`Send edition ${change.edition + 1}?`} onClose=${onClose}><form class="stack" onSubmit=${submit}>
    <p class="wrap"><b>${change.title}</b></p>
    ${isOther ? html`<div class="banner warn"><strong>${isEditable(now.change) ? `It has a newer edition, ${now.change.edition}.` : "It is not open any more."}</strong> What you have changed is of edition ${change.edition}.</div>`
    : lost ? html`<div class="banner warn"><strong>${lost} given so far ${approvals.length + rejections.length === 1 ? "is" : "are"} lost.</strong> Others look at the new edition again.</div>` : html`<p>Nobody has approved or rejected it so far. Approvals given meanwhile are lost.</p>`}
    <p>You become an author of it, so you can't approve it.${change.phase === "scheduled" ? " It is no longer left to the cluster." : ""}</p>
    ${change.config_definition_keys.length ? html`<p class="muted">Its configs are sent as whole data. One that was sent as a patch is no patch any more: a rebase writes all of its fields.</p>` : ""}
    ${changed ? html`<label class="check"><input type="checkbox" required checked=${takesBack} onChange=${(event) => setTakesBack(event.target.checked)} /> Mine takes back what others have changed in ${count(changed, "record")} since edition ${change.edition} was sent</label>` : ""}
    ${hidden ? html`<label class="check"><input type="checkbox" required checked=${known} onChange=${(event) => setKnown(event.target.checked)} /> ${count(hidden, "value")} of this edition that I can't see ${hidden === 1 ? "is" : "are"} not in mine</label>` : ""}
    <${Problem} error=${write.error} again=${write.again} />
    ${write.error?.status === 412 ? html`<p><button type="button" onClick=${again}>Look at it again</button> <span class="muted">What you have typed stays.</span></p>` : ""}
    <footer><button type="button" onClick=${onClose}>Cancel</button>
      ${isOther ? html`<button type="button" class="primary" onClick=${() => { unsaved.value = ""; onClose(); onBegin(); }}>Begin again from it</button>` : html`<button class="primary" disabled=${write.busy || (hidden > 0 && !known) || (changed > 0 && !takesBack)}>${write.busy ? "Working…" : "Send it"}</button>`}</footer></form></${Dialog}>`;
}
