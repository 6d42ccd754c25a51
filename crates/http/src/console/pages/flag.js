// One flag in all environments: it is switched in each of them, its form is that of one of them, and it is tried.
//
// The form writes what differs, as a JSON Patch on the condition of what was shown: members that it does not know stay.
import { html, useEffect, useState } from "../vendor/preact.js";
import { onConfig } from "../lib/operations.js";
import { href, lacks, say, unsaved } from "../lib/state.js";
import { configPath, definitionPath, get, isUnanswered } from "../lib/api.js";
import { DEFINITIONS_MAX, environmentOf, formOf, isBoolean, isFlag, patchOf, served, switched, targetingOf } from "../lib/flags.js";
import { put } from "../lib/json.js";
import { hiddenPlaces, hiddenText } from "../lib/redacted.js";
import { ANY } from "../lib/schema.js";
import { masked } from "../lib/secrets.js";
import { follow } from "../lib/watch.js";
import { Confirm, Crumbs, Field, Loaded, Problem, useLoad, useWrite } from "../parts/ui.js";
import { CopyAs } from "../parts/copyas.js";
import { FlagRule, ValueInput, withIds } from "../parts/flagrule.js";
import { FlagTester } from "../parts/flagtester.js";
import { Frozen } from "../parts/frozen.js";
import { JsonView } from "../parts/jsonview.js";
import { Offer, ProposeButton, TITLED, useProposal } from "../parts/propose.js";
import { NewFlag, Served, readDefinitions } from "./flags.js";
import { reasonHeader } from "./config.js";

const PATCH = "application/json-patch+json";

/** The flag in a definition, and the schema where `withSchema` says so; null where there is none. */
async function readOne(name, key, withSchema, signal) {
  try {
    const [record, schema] = await Promise.all([get(configPath(name, key), [], { signal }), withSchema ? get(`${definitionPath(name)}/schema`, [], { signal }) : null]);
    return { data: record.exact.get("data"), etag: record.etag, hidden: hiddenPlaces(record), schema: schema?.exact.get("json_schema") ?? ANY };
  } catch (error) {
    if (error.status !== 404) throw error;
    return null;
  }
}

export default function Flag({ parts: [, name, key] }) {
  const [doing, setDoing] = useState(null);
  const loaded = useLoad(async (signal) => {
    const all = await readDefinitions(signal);
    const names = all.includes(name) ? all.slice(0, DEFINITIONS_MAX) : [name];
    return { names, found: new Map(await Promise.all(names.map(async (one) => [one, await readOne(one, key, one === name, signal)]))) };
  }, [name, key]);
  const { names = [], found } = loaded.data ?? {};
  useEffect(() => {
    if (names.length === 0) return undefined;
    const stop = new AbortController();
    follow(names.map((one) => ["definition", one]), {
      change: (event) => { if (event.changes.some((item) => item.config_key === key)) loaded.reload(); },
      state() {}, gone: loaded.reload, refused() {},
    }, stop.signal);
    return () => stop.abort();
  }, [names.join(), key]);
  const record = found?.get(name);
  const has = names.filter((one) => found.get(one));
  const close = () => setDoing(null);
  const done = () => { close(); loaded.reload(); };
  return html`<${Crumbs} items=${[{ text: "Flags", href: href(["flags"]) }, { text: key }]} />
    <div class="title"><h1>${key}</h1><span class="grow"></span>
      <${CopyAs} requests=${[{ label: "Read it", method: "GET", path: configPath(name, key) }, { label: "Its history", method: "GET", path: `${configPath(name, key)}/history` }]} />
      ${record ? html`<a class="button" href=${href(["d", name, "c", key, "history"])} data-key="h">History</a><a class="button" href=${href(["d", name, "c", key])}>Config</a>` : ""}</div>
    <${Loaded} of=${loaded} what="the flag">${found && html`
      <div class="scroll" tabindex="0" role="region" aria-label="Environments of the flag"><table class="stacked" role="table"><thead role="rowgroup"><tr role="row"><th role="columnheader">Environment</th><th role="columnheader">Serves</th><th role="columnheader"><span class="unseen">Actions</span></th></tr></thead>
        <tbody role="rowgroup">${names.map((one) => html`<tr role="row" key=${one}><th role="rowheader" scope="row">${one === name ? html`<span aria-current="true">${environmentOf(one)}</span>` : environmentOf(one)}</th>
          <td role="cell"><${Served} data=${found.get(one)?.data} /></td><td role="cell" class="actions"><${Actions} name=${one} flag=${key} record=${found.get(one)} isHere=${one === name} onDo=${setDoing} /></td></tr>`)}</tbody></table></div>
      ${record ? html`<${FlagForm} key=${name} name=${name} flag=${key} record=${record} onDone=${loaded.reload} />`
        : html`<div class="empty"><h2>There is no such flag in ${environmentOf(name)}</h2><p>If it was deleted, <a href=${href(["d", name, "c", key, "history"])}>its history</a> brings it back.</p></div>`}
      ${has.length ? html`<${FlagTester} names=${has} flag=${key} version=${has.map((one) => found.get(one).etag).join()} />` : ""}`}</${Loaded}>
    ${doing?.kind === "switch" ? html`<${Switch} ...${doing} flag=${key} onClose=${close} onDone=${done} />` : ""}
    ${doing?.kind === "new" ? html`<${NewFlag} names=${names} chosen=${[doing.name]} flag=${key} onClose=${close} onDone=${done} />` : ""}`;
}

/** What can be done with the flag in an environment. */
function Actions({ name, flag, record, isHere, onDo }) {
  if (!record) return lacks("propose", name) ? null : html`<button class="quiet" aria-label=${`Create it in ${environmentOf(name)}`} onClick=${() => onDo({ kind: "new", name })}>Create it…</button>`;
  const { value } = served(record.data);
  const may = !lacks("propose", name) && isFlag(record.data) && isBoolean(record.data) && isSeen(record);
  const button = (isOn) => html`<button type="button" aria-pressed=${value === isOn} onClick=${() => { if (value !== isOn || served(record.data).hasRule) onDo({ kind: "switch", name, record, isOn }); }}>${isOn ? "On" : "Off"}</button>`;
  return html`${may ? html`<span class="segments" role="group" aria-label=${`${flag} in ${environmentOf(name)}`}>${button(true)}${button(false)}</span> ` : ""}
    ${isHere ? "" : html`<a class="button quiet" aria-label=${`Edit it in ${environmentOf(name)}`} href=${href(["flags", name, flag])}>Edit</a>`}`;
}

const formIn = ({ data }) => withIds(formOf(data instanceof Map ? data.get("targeting") : undefined));
const revisionOf = ({ etag }) => Number(etag.replaceAll('"', ""));
const isSeen = ({ hidden }) => hidden.paths.length === 0 && !hidden.more;

/** How a change of a flag is written: directly, or as a change request. `patch` is the text of a JSON Patch. */
function useFlagWrite(name, flag, etag) {
  const write = useWrite();
  const propose = useProposal([name], "write");
  return {
    write, propose,
    proposal: (patch, title) => ({ title, operations: [onConfig("patch_config", name, flag, [["patch", patch]], etag)] }),
    send: (patch, reason, done) => write.run("PATCH", configPath(name, flag), { headers: { "Content-Type": PATCH, "If-Match": etag, ...reasonHeader(reason) }, body: patch }, done),
  };
}

/** Asks before a flag is turned on or off. A rule decides before the default variant: what becomes of it is chosen. */
function Switch({ name, flag, record, isOn, onClose, onDone }) {
  const [reason, setReason] = useState("");
  const [rule, setRule] = useState("");
  const { write, propose, proposal, send } = useFlagWrite(name, flag, record.etag);
  const { hasRule } = served(record.data);
  const patch = patchOf(record.data, switched(record.data, isOn, rule === "drop"));
  const word = isOn ? "on" : "off";
  const title = reason.trim() || `turn ${flag} ${word}`;
  const isIdle = patch === null || (hasRule && rule === "");
  const confirm = () => {
    if (isIdle) return;
    if (propose.isOnly) propose.ask(proposal(patch, title));
    else send(patch, reason, () => { say(`${flag} is ${word} in ${environmentOf(name)}`); onDone(); });
  };
  if (propose.dialog) return propose.dialog;
  const choice = (kind, text) => html`<label class="check line"><input type="radio" name="rule" required checked=${rule === kind} onChange=${() => setRule(kind)} /> ${text}</label>`;
  return html`<${Confirm} title=${`Turn ${flag} ${word} in ${environmentOf(name)}?`} action=${propose.isOnly ? "Propose…" : `Turn it ${word}`} write=${write} onClose=${onClose} onConfirm=${confirm}
    beside=${propose.isOnly || isIdle ? null : html`<${ProposeButton} of=${propose} proposal=${() => proposal(patch, title)} />`}>
    ${hasRule ? html`<fieldset><legend>It has a rule, which decides first</legend>${choice("drop", html`Remove the rule: everybody gets <b>${word}</b>`)}${choice("keep", html`Keep the rule: those for whom it selects nothing get <b>${word}</b>`)}
        ${patch === null ? html`<p class="muted small">That is so already.</p>` : ""}</fieldset>` : html`<p>Everybody gets <b>${word}</b>.</p>`}
    <${Field} label="Reason" hint=${propose.isOnly ? TITLED : "Stored in the history"}><input value=${reason} maxlength="300" onInput=${(event) => setReason(event.target.value)} /></${Field}>
    ${write.error?.status === 412 ? html`<p><button type="button" onClick=${onDone}>Show the flag as it is now</button></p>` : ""}
    <${Offer} error=${write.error} proposal=${() => proposal(patch, title)} of=${propose} />
  </${Confirm}>`;
}

/** The flag in one environment: as a form, or as JSON where the form can't show it. */
function FlagForm({ name, flag, record, onDone }) {
  const [base, setBase] = useState(record);
  const [now, setNow] = useState(record.data);
  const [form, setForm] = useState(() => formIn(record));
  // What is typed begins again when the flag comes from elsewhere.
  const [turn, setTurn] = useState(0);
  const [wrong, setWrong] = useState({});
  const [reason, setReason] = useState("");
  const { write, propose, proposal, send } = useFlagWrite(name, flag, base.etag);
  const isSecret = masked(base.schema, base.data) !== base.data;
  const isShown = isSeen(base) && !isSecret && isFlag(base.data);
  const patch = isShown ? patchOf(base.data, now) : null;
  const isWrong = Object.values(wrong).some(Boolean);
  const isDirty = patch !== null || isWrong;
  const isNewer = revisionOf(record) > revisionOf(base);
  const take = () => { setBase(record); setNow(record.data); setForm(formIn(record)); setWrong({}); setTurn(turn + 1); write.clear(); };
  useEffect(() => { if (!isDirty && isNewer) take(); }, [record.etag, isDirty]);
  useEffect(() => { unsaved.value = isDirty ? "What you have changed is not saved." : ""; return () => { unsaved.value = ""; }; }, [isDirty]);
  const json = html`<a href=${href(["d", name, "c", flag, "edit"])}>edit it as JSON</a>`;
  const environment = environmentOf(name);
  if (!isShown) {
    return html`<section class="part" aria-label="Form"><h2>In ${environment}</h2><p class="banner warn">${isSecret ? "The flag has secret values, so the form does not show it" : isSeen(base) ? "The form can't show this flag" : html`Your key may not see the values at <b>${hiddenText(base.hidden)}</b>, so the form can't show this flag`}: ${json}.</p>
      <${JsonView} value=${base.data} schema=${base.schema} label="JSON of the flag" /></section>`;
  }
  const isIdle = write.busy || patch === null || isWrong;
  const title = reason.trim() || `change the flag ${flag}`;
  const change = (path, value) => setNow((old) => put(old, path, value));
  const setRule = (rule, isOpen) => { setForm(rule); setWrong((old) => ({ ...old, rule: isOpen })); if (!isOpen) change(["targeting"], targetingOf(rule)); };
  const save = () => { if (!isIdle) send(patch, reason, (answer) => { setBase({ ...base, data: now, etag: answer.etag }); setReason(""); say(`${flag} is saved in ${environment}`); onDone(); }); };
  const act = () => (propose.isOnly ? propose.ask(proposal(patch, title)) : save());
  const names = [...now.get("variants").keys()];
  // What is on comes first: a percentage begins with it.
  const onFirst = names.toSorted((a, b) => (now.get("variants").get(b) === true) - (now.get("variants").get(a) === true));
  return html`<section class="part" aria-label="Form"><div class="title"><h2>In ${environment}</h2><span class="grow"></span>
      ${isDirty ? html`<button onClick=${() => take()}>Discard</button>` : ""}
      ${propose.isOnly ? "" : html`<${ProposeButton} of=${propose} proposal=${() => proposal(patch, title)} disabled=${isIdle} />`}
      ${propose.isPossible ? html`<button class="primary" disabled=${isIdle} onClick=${act}>${propose.isOnly ? "Propose…" : write.busy ? "Saving…" : "Save"}</button>` : ""}</div>
    <${Frozen} name=${name} />
    ${isNewer && isDirty && !write.error?.unknown ? html`<div class="banner warn" role="alert"><strong>The flag was changed while you edit.</strong> <button onClick=${() => take()}>Show it as it is now</button> <span class="muted">What you have changed is lost.</span></div>` : ""}
    <${Problem} error=${isNewer && write.error?.status === 412 ? null : write.error} again=${write.again} />
    ${write.error?.status === 412 && !isNewer ? html`<p><button onClick=${onDone}>Read it again</button></p>` : ""}
    ${propose.isOnly || isUnanswered(write.error) ? "" : html`<${Offer} error=${write.error} proposal=${() => proposal(patch, title)} of=${propose} />`}${propose.dialog}
    <fieldset class="plain" key=${turn} disabled=${!propose.isPossible}>
      <div class="bar spaced"><${Field} label="State" hint="A disabled flag has no value: each program uses its own default"><select value=${now.get("state")} onChange=${(event) => change(["state"], event.target.value)}><option value="ENABLED">enabled</option><option value="DISABLED">disabled</option></select></${Field}>
        <${Field} label="Default variant" hint="For those for whom the rule selects nothing"><select value=${now.get("defaultVariant") ?? ""} onChange=${(event) => change(["defaultVariant"], event.target.value || undefined)}><option value="">the program's default</option>${[...new Set([...names, ...(now.get("defaultVariant") ? [now.get("defaultVariant")] : [])])].map((one) => html`<option value=${one}>${one}</option>`)}</select></${Field}></div>
      <${Variants} variants=${now.get("variants")} isUsed=${(one) => one === now.get("defaultVariant")} onChange=${(one, value) => change(["variants", one], value)} onWrong=${(one, isOpen) => setWrong((old) => ({ ...old, [`/${one}`]: isOpen }))} />
      ${form ? html`<${FlagRule} form=${form} variants=${onFirst} onChange=${setRule} />`
        : html`<section aria-label="Rule"><h3>Rule</h3><p>The form can't show this rule: ${json}. What you change above leaves it as it is.</p><${JsonView} value=${now.get("targeting")} label="JSON of the rule" /></section>`}</fieldset>
    <div class="bar spaced"><${Field} label="Reason" hint=${propose.isOnly ? TITLED : "Stored in the history"}><input value=${reason} maxlength="300" onInput=${(event) => setReason(event.target.value)} /></${Field}></div></section>`;
}

/** The variants and their values. */
function Variants({ variants, isUsed, onChange, onWrong }) {
  const [name, setName] = useState("");
  const add = () => { onChange(name, ""); setName(""); };
  return html`<fieldset><legend>Variants</legend>
    ${[...variants].map(([one, value]) => html`<div class="bar" key=${one}><b class="wrap">${one}</b><${ValueInput} label=${`Value of ${one}`} value=${value} onChange=${(item) => { onWrong(one, item === undefined); if (item !== undefined) onChange(one, item); }} />
      <button type="button" class="quiet" aria-label=${`Remove the variant ${one}`} disabled=${isUsed(one) || variants.size === 1} title=${isUsed(one) ? "It is the default variant" : undefined} onClick=${() => { onWrong(one, false); onChange(one, undefined); }}>Remove</button></div>`)}
    <div class="bar"><input class="short" aria-label="Name of a new variant" placeholder="new variant" value=${name} onInput=${(event) => setName(event.target.value.trim())} /><button type="button" disabled=${!name || variants.has(name)} onClick=${add}>Add a variant</button></div></fieldset>`;
}
