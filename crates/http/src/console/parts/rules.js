// The rules of an environment, changed by a person: the rules are read first, what would change is said before it is sent,
// and it is sent on the condition that the rules are still those that were read. The node decides; its refusal is shown.
import { html, useEffect, useState } from "../vendor/preact.js";
import { onEnvironment } from "../lib/operations.js";
import { href, lacks, principal, say } from "../lib/state.js";
import { get, segment } from "../lib/api.js";
import { count } from "../lib/format.js";
import { reasonHeader } from "../pages/config.js";
import { Dialog, Field, Problem, Time, useDebounced, useLoad, useWrite } from "./ui.js";
import { ENVIRONMENTS } from "./frozen.js";
import { Offer, ProposeButton, isForEnvironment, useProposal } from "./propose.js";

export const pathOf = (name) => `${ENVIRONMENTS}${segment(name)}`;
/** A name for which a key needs a permission, as for all definitions that the environment can have. */
const scopeOf = (name) => [name === "default" ? "*" : `${name}.*`];
/** Whether this key may change its rules, directly or by a change request. */
export const mayChange = (name) => scopeOf(name).some((all) => !lacks("define", all) || (!lacks("propose", all) && !lacks("read", all)));
/** The rules of an environment are bypassed with the root key only. */
const mayBypass = () => principal.value === null || Boolean(principal.value.root);

const LENGTHS = [["15", "15 minutes"], ["60", "1 hour"], ["240", "4 hours"], ["1440", "24 hours"], ["", "until…"]];
const APPROVALS_MAX = 10;
/** A freeze that begins within it and is no longer is added directly, whatever the rules are; in milliseconds. */
const DAY = 86400000;
const TICK = 10000;
/** What holds where there is no environment. */
const NONE = { direct: "allow", approvals: 0, freeze: [] };

/** The rules as a request has them, and the condition that they are still so. */
async function read(name, signal) {
  try {
    const answer = await get(pathOf(name), [], { signal });
    const { direct, approvals, freeze } = answer.data;
    return { name, etag: answer.etag, rules: { direct, approvals, freeze: freeze.map(({ from, until, reason }) => ({ from, until, reason })) } };
  } catch (error) {
    if (error.status !== 404) throw error;
    if (name === "default") return { name, etag: null, rules: NONE };
    // Until it has rules of its own, those of `default` hold for its definitions.
    const { rules } = await read("default", signal);
    return { name, etag: null, rules: { ...rules, freeze: rules.freeze.filter(({ until }) => Date.parse(until) > Date.now()) } };
  }
}

const isSame = (one, other) => one.from === other.from && one.until === other.until && one.reason === other.reason;
const DIRECT = { allow: "allowed", refuse: "refused" };

/** What differs between rules, each as the content of a list item. */
export function rulesDiffer(before, after) {
  const ended = before.freeze.filter((one) => !after.freeze.some((other) => isSame(one, other)));
  const added = after.freeze.filter((one) => !before.freeze.some((other) => isSame(one, other)));
  return [
    before.direct !== after.direct && html`Direct changes of its definitions and configs: ${DIRECT[before.direct]} → <b>${DIRECT[after.direct]}</b>. ${after.direct === "refuse" ? "Each of them, and of these rules, is a change request from then on." : "Who may write changes them without asking anybody."}`,
    before.approvals !== after.approvals && html`Approvals that a change request needs: ${before.approvals} → <b>${after.approvals}</b>. ${after.direct === "allow" ? "They count for change requests; direct changes need none." : ""}`,
    ...ended.map((one) => html`The freeze <b>${one.reason}</b> ends: it was to last until <${Time} of=${one.until} />.`),
    ...added.map((one) => html`A freeze <b>${one.reason}</b> from ${one.from ? html`<${Time} of=${one.from} />` : "now"} until <${Time} of=${one.until} />: every change of its definitions and configs is refused.`),
  ].filter(Boolean);
}

/** The members of a request: those that differ, all of a new one, and all freezes, as one that is left out ends. */
const members = ({ rules: before, etag }, after) => ({ ...(etag && before.direct === after.direct ? {} : { direct: after.direct }), ...(etag && before.approvals === after.approvals ? {} : { approvals: after.approvals }), freeze: after.freeze });

/** The rules of an environment as they are now; `name` may be typed meanwhile. `found` is null until they are read. */
function useRules(name) {
  const [asked, setAsked] = useState(name);
  useDebounced(() => setAsked(name), [name]);
  const loaded = useLoad((signal) => (asked ? read(asked, signal) : Promise.resolve(null)), [asked]);
  return { ...loaded, found: loaded.data?.name === name && !loaded.loading && !loaded.error ? loaded.data : null };
}

/**
 * Asks whether the rules `of` an environment become what `change` makes of them; it returns null while something is missing.
 * `children` are the fields. `isDirect`: the node adds it directly even where change requests are asked for. `isNew`: there must be
 * no such environment.
 */
function Ask({ name, of, title, action, danger, said, proposal, change, isDirect, isNew, children, onClose, onDone }) {
  const write = useWrite();
  const propose = useProposal(scopeOf(name), "define");
  const [bypass, setBypass] = useState(null);
  const { found } = of;
  const wanted = found && change(found.rules);
  const isTaken = isNew && found !== null && found.etag !== null;
  const differs = wanted && !isTaken ? rulesDiffer(found.rules, wanted) : [];
  const isIdle = write.busy || !wanted || isTaken || (differs.length === 0 && found.etag !== null);
  const isRestricted = found?.rules.direct === "refuse" && !isDirect;
  const isByRequest = propose.isPossible && (isRestricted || scopeOf(name).some((all) => lacks("define", all)));
  const condition = found?.etag ? { "If-Match": found.etag } : { "If-None-Match": "*" };
  const ask = () => ({ title: proposal, operations: [onEnvironment("put_environment", name, Object.entries(members(found, wanted)), found.etag)] });
  const send = (more) => write.run("PUT", pathOf(name), { headers: condition, body: JSON.stringify(members(found, wanted)), ...more }, () => { say(said); onDone(); });
  const submit = (event) => {
    event.preventDefault();
    if (isIdle) return;
    if (bypass !== null) send({ query: [["bypass", "true"]], headers: { ...condition, ...reasonHeader(bypass) } });
    else if (isByRequest) propose.ask(ask());
    else send();
  };
  if (propose.dialog) return propose.dialog;
  const offersBypass = bypass === null && found && mayBypass() && (isByRequest || isForEnvironment(write.error));
  return html`<${Dialog} title=${title} onClose=${onClose}><form class="stack" onSubmit=${submit}>${children}
    <section aria-label="What changes"><h3>What changes</h3>
      ${of.error ? html`<${Problem} error=${of.error} /><button type="button" onClick=${of.reload}>Try again</button>`
    : !name ? html`<p class="muted">Name the environment first.</p>` : !found ? html`<p class="muted">Reading the rules as they are now…</p>`
      : isTaken ? html`<p class="no">There is an environment ${name} already: change its rules in the list.</p>`
        : !wanted ? html`<p class="muted">Nothing yet: something above is missing.</p>`
          : html`<ul class="differing">${found.etag ? "" : html`<li>The environment <b>${name}</b> is created. It has ${name === "default" ? "the definitions of no other environment" : html`the definitions whose keys begin with <code>${name}.</code> Until now the rules of <b>default</b> hold for them; it keeps what is not listed here`}.</li>`}
            ${differs.length === 0 && found.etag ? html`<li class="muted">Nothing changes.</li>` : differs.map((text) => html`<li>${text}</li>`)}</ul>`}</section>
    ${isByRequest && bypass === null ? html`<p class="muted">It takes ${isRestricted ? "change requests only" : "a change request, as your key may not change it directly"}: others approve this first.</p>` : ""}
    <${Problem} error=${write.error} again=${write.again} />
    ${write.error?.status === 412 ? html`<p><button type="button" onClick=${() => { write.clear(); of.reload(); }}>Show the rules as they are now</button> <span class="muted">Nothing was sent twice: look at what changes again.</span></p>` : ""}
    ${isByRequest ? "" : html`<${Offer} error=${write.error} proposal=${ask} of=${propose} />`}
    ${offersBypass ? html`<p><button type="button" class="danger" disabled=${isIdle} onClick=${() => { write.clear(); setBypass(""); }}>By a bypass…</button> <span class="muted">at once, with the root key; others must review it</span></p>` : ""}
    ${bypass === null ? "" : html`<div class="banner warn"><strong>A bypass passes the rules at once.</strong> It stands in <a href=${href(["reviews"], { view: "all", state: "unreviewed" })}>Reviews</a>, and an alarm stays until others have reviewed it.</div>
      <${Field} label="Reason of the bypass" hint="Those who review it read this"><input required maxlength="255" value=${bypass} onInput=${(event) => setBypass(event.target.value)} /></${Field}>`}
    <footer><button type="button" onClick=${onClose}>Cancel</button>${isByRequest || bypass !== null || isIdle ? "" : html`<${ProposeButton} of=${propose} proposal=${ask} />`}
      <button class=${danger || bypass !== null ? "danger" : "primary"} disabled=${isIdle || (bypass !== null && !bypass.trim())}>${write.busy ? "Working…" : bypass !== null ? "Change it by a bypass" : isByRequest ? "Propose…" : action}</button></footer></form></${Dialog}>`;
}

const NameField = ({ value, onInput }) => html`<${Field} label="Environment" hint="What stands before the first dot in the keys of its definitions, or default"><input required value=${value} spellcheck=${false} autocomplete="off" onInput=${(event) => onInput(event.target.value.trim())} /></${Field}>`;

/** Whether direct changes are allowed, and how many approvals a change request needs. What is not touched stays as it is. */
export function Rules({ item, onClose, onDone }) {
  const [name, setName] = useState(item?.environment ?? "");
  const [edits, setEdits] = useState({});
  const of = useRules(name);
  const shown = { ...(of.found?.rules ?? item ?? NONE), ...edits };
  const approvals = Number(shown.approvals);
  const isNumber = /^\d+$/.test(String(shown.approvals)) && approvals <= APPROVALS_MAX;
  const change = (rules) => (isNumber ? { ...rules, ...edits, ...(edits.approvals === undefined ? {} : { approvals }) } : null);
  return html`<${Ask} name=${name} of=${of} isNew=${!item} title=${item ? `Rules of ${item.environment}` : "New environment"} action=${item ? "Change them" : "Create it"} said=${item ? `The rules of ${name} are changed` : `${name} is created`}
    proposal=${item ? `change the rules of ${name}` : `create the environment ${name}`} change=${change} onClose=${onClose} onDone=${onDone}>
    ${item ? "" : html`<${NameField} value=${name} onInput=${setName} />`}
    <${Field} label="Direct changes" hint="Refused: each change of its definitions and configs is a change request"><select value=${shown.direct} onChange=${(event) => setEdits({ ...edits, direct: event.target.value })}><option value="allow">allowed</option><option value="refuse">refused: change requests only</option></select></${Field}>
    <${Field} label="Approvals needed" hint="0 to 10. Nobody approves a change of their own, so 2 approvals need three persons" error=${isNumber ? undefined : `A number from 0 to ${APPROVALS_MAX}`}><input type="number" min="0" max=${APPROVALS_MAX} step="1" required value=${shown.approvals} onInput=${(event) => setEdits({ ...edits, approvals: event.target.value })} /></${Field}>
  </${Ask}>`;
}

const utc = (text) => `${text.length === 16 ? `${text}:00` : text}Z`;

export function Freeze({ item, onClose, onDone }) {
  const [name, setName] = useState(item?.environment ?? "");
  const [{ minutes, from, until, reason }, setForm] = useState({ minutes: "60", from: "", until: "", reason: "" });
  const set = (member) => (event) => setForm((old) => ({ ...old, [member]: event.target.value }));
  // A length counts from now, every few seconds anew: the end that is shown is the end that is sent.
  const [now, setNow] = useState(Date.now);
  useEffect(() => { const timer = setInterval(() => setNow(Date.now()), TICK); return () => clearInterval(timer); }, []);
  const begin = from ? Date.parse(utc(from)) : now;
  const end = minutes ? new Date(begin + Number(minutes) * 60000).toISOString() : until && utc(until);
  const of = useRules(name);
  const isLong = Boolean(end) && (Date.parse(end) - begin > DAY || begin - now > DAY);
  const change = (rules) => (reason.trim() && end ? { ...rules, freeze: [...rules.freeze, { ...(from ? { from: utc(from) } : {}), until: end, reason: reason.trim() }] } : null);
  return html`<${Ask} name=${name} of=${of} isDirect=${!isLong} title=${item ? `Freeze ${item.environment}` : "Freeze an environment"} action="Freeze it" said=${from ? `The freeze of ${name} is planned` : `${name} is frozen`} proposal=${`freeze ${name}: ${reason}`} change=${change} onClose=${onClose} onDone=${onDone}>
    ${item ? "" : html`<${NameField} value=${name} onInput=${setName} />`}
    <${Field} label="Reason" hint="Those whose changes are refused can read it"><input required maxlength="255" value=${reason} onInput=${set("reason")} /></${Field}>
    <${Field} label="For"><select value=${minutes} onChange=${set("minutes")}>${LENGTHS.map(([value, label]) => html`<option value=${value}>${label}</option>`)}</select></${Field}>
    ${minutes ? "" : html`<${Field} label="Until (UTC)"><input type="datetime-local" required step="1" value=${until} onInput=${set("until")} /></${Field}>`}
    <${Field} label="From (UTC)" hint="Now, unless given"><input type="datetime-local" value=${from} onInput=${set("from")} /></${Field}></${Ask}>`;
}

/** Ends one freeze of an environment, or takes back one that has not begun. */
export function End({ item, one, onClose, onDone }) {
  const name = item.environment;
  const of = useRules(name);
  const change = (rules) => ({ ...rules, freeze: rules.freeze.filter((other) => !isSame(one, other)) });
  return html`<${Ask} name=${name} of=${of} title=${`End the freeze of ${name}?`} action="End it" said="The freeze is ended" proposal=${`end the freeze of ${name}: ${one.reason}`} change=${change} onClose=${onClose} onDone=${onDone}>
    <p>${one.active ? "Changes are possible at once." : "It has not begun, and does not begin."}</p></${Ask}>`;
}

/** Deletes an environment, in the state that the page read when it was asked for. */
export function Remove({ item, definitions, onClose, onDone }) {
  const name = item.environment;
  const loaded = useLoad((signal) => read(name, signal), [name]);
  const [typed, setTyped] = useState("");
  const write = useWrite();
  const propose = useProposal(scopeOf(name), "define");
  const etag = loaded.data?.etag;
  const ask = () => ({ title: `delete the environment ${name}`, operations: [onEnvironment("delete_environment", name, [], etag)] });
  const submit = (event) => {
    event.preventDefault();
    if (propose.isOnly) propose.ask(ask());
    else write.run("DELETE", pathOf(name), { headers: { "If-Match": etag } }, () => { say(`The environment ${name} is deleted`); onDone(); });
  };
  if (propose.dialog) return propose.dialog;
  return html`<${Dialog} title=${`Delete the environment ${name}?`} onClose=${onClose}><form class="stack" onSubmit=${submit}>
    <p>Its rules and freezes end. ${definitions === undefined ? "Its definitions stay" : `${count(definitions, "definition")} of it ${definitions === 1 ? "stays" : "stay"}`}, ${name === "default" ? "without any rules" : "under the rules of the environment default"}.</p>
    <label class="field"><span>Type <code>${name}</code> to go on</span><input autocomplete="off" value=${typed} onInput=${(event) => setTyped(event.target.value)} /></label>
    <${Problem} error=${loaded.error ?? write.error} again=${write.again} />
    ${propose.isOnly ? "" : html`<${Offer} error=${write.error} proposal=${ask} of=${propose} />`}
    <footer><button type="button" onClick=${onClose}>Cancel</button><button class="danger" disabled=${write.busy || !etag || typed !== name}>${write.busy ? "Working…" : propose.isOnly ? "Propose…" : "Delete it"}</button></footer></form></${Dialog}>`;
}
