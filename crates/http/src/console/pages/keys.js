// Access keys: who may do what, until when. The text of a new key is shown once and kept nowhere.
import { html, useState } from "../vendor/preact.js";
import { lacks, principal, route, say, setQuery } from "../lib/state.js";
import { get, segment } from "../lib/api.js";
import { count } from "../lib/format.js";
import { Confirm, Dialog, Empty, Field, Loaded, Problem, Time, copyText, useLoad, useWrite } from "../parts/ui.js";
import { CopyAs } from "../parts/copyas.js";

const VERBS = [
  ["read", "records, lists, history, watch"], ["reveal", "secret fields in clear"], ["write", "configs"], ["define", "definitions, indexes, schemas"], ["delete", "definitions with their configs"],
  ["backup", "backups"], ["observe", "the cluster, its usage and its metrics, without changes"], ["cluster", "members, leadership"], ["keys", "access keys"], ["audit", "the audit log"],
  ["propose", "change requests; write and define include it"], ["approve", "approvals of change requests"], ["bypass", "changes without approval, reviewed later"], ["report", "how readers run with a rollout, and gates; approve includes it"],
];
const QUOTAS = [
  ["requests_per_second", "Requests a second"], ["writes_per_second", "Writes a second"], ["bytes", "Bytes of configs"], ["records", "Definitions and configs"],
  ["watches", "Open watches"], ["cursors", "Cursors"], ["lists", "Lists at once"],
];
const LIMIT = 50;
const PATH = "/api_key/";

export default function Keys() {
  const page = Number(route.value.query.get("page") ?? 1);
  const [doing, setDoing] = useState(null);
  const [made, setMade] = useState(null);
  const query = [["page", page], ["limit", LIMIT]];
  // Who holds a key with a person may rotate it, and see no other key.
  const mayList = !lacks("keys");
  const list = useLoad((signal) => (mayList ? get(PATH, query, { signal }) : Promise.resolve(null)), [page]);
  const data = list.data?.data;
  const pages = data ? Math.max(1, Math.ceil(data.meta.total / LIMIT)) : 1;
  const done = (answer) => {
    setDoing(null);
    if (answer?.data?.api_key) setMade(answer.data);
    else if (answer?.header("warning")) say("An earlier copy of the request was done, and its answer with the text is lost: rotate the key for another text", "bad");
    list.reload();
    get("/whoami").then((who) => { principal.value = who.data; }, () => {});
  };
  return html`<div class="title"><h1>Keys</h1><span class="muted">${data ? count(data.meta.total, "key") : ""}</span><span class="grow"></span>
      <${CopyAs} requests=${[{ label: "List the keys", method: "GET", path: PATH, query }, { label: "Who am I", method: "GET", path: "/whoami" }]} />
      ${mayList ? html`<button class="primary" data-key="n" onClick=${() => setDoing({ kind: "new" })}>New key</button>` : ""}</div>
    <${Me} onDisable=${() => setDoing({ kind: "disable" })} onRotate=${() => setDoing({ kind: "rotate", item: principal.value })} />
    ${mayList ? html`<${Loaded} of=${list} what="the keys">${data && (data.results.length === 0
      ? html`<${Empty} title="There is no key yet">Everybody uses the root key, which may do everything. A key of one's own can be limited and revoked.</${Empty}>`
      : html`<div class="scroll" tabindex="0" role="region" aria-label="Keys"><table class="stacked" role="table"><thead role="rowgroup"><tr role="row">${["Name", "Id", "May", "Expires", "Last used", "Person", "Created"].map((text) => html`<th role="columnheader">${text}</th>`)}<th role="columnheader"><span class="unseen">Actions</span></th></tr></thead>
        <tbody role="rowgroup">${data.results.map((item) => html`<tr role="row" key=${item.key_id}><td role="cell"><b>${item.name}</b></td><td role="cell" data-name="id"><code>${item.key_id}</code></td><td role="cell" data-name="may"><${Grants} of=${item.grants} /></td>
          <td role="cell" data-name="expires">${item.expires_at ? html`<${Time} of=${item.expires_at} />` : html`<span class="muted">never</span>`}</td><td role="cell" data-name="last used">${item.last_used_at ? item.last_used_at.slice(0, 10) : html`<span class="muted">never</span>`}</td><td role="cell" data-name="person"><${Person} of=${item} /></td><td role="cell" data-name="created"><${Time} of=${item.created_at} /></td>
          <td role="cell" class="actions"><button class="quiet" aria-label=${`Change ${item.name}`} onClick=${() => setDoing({ kind: "change", item })}>Change…</button>
            <button class="quiet" aria-label=${`Rotate ${item.name}`} onClick=${() => setDoing({ kind: "rotate", item })}>Rotate…</button>
            ${item.person && !item.attested ? html`<button class="quiet" aria-label=${`Attest ${item.name}`} onClick=${() => setDoing({ kind: "attest", item })}>Attest…</button>` : ""}
            <button class="quiet" aria-label=${`Revoke ${item.name}`} onClick=${() => setDoing({ kind: "revoke", item })}>Revoke…</button></td></tr>`)}</tbody></table></div>
        ${pages > 1 ? html`<nav class="pages" aria-label="Pages"><button disabled=${page <= 1} onClick=${() => setQuery({ page: page - 1 })}>Previous</button><span>Page ${page} of ${pages}</span>
          <button disabled=${page >= pages} onClick=${() => setQuery({ page: page + 1 })}>Next</button></nav>` : ""}`)}</${Loaded}>` : ""}
    ${doing?.kind === "new" || doing?.kind === "change" ? html`<${KeyForm} item=${doing.item} onClose=${() => setDoing(null)} onDone=${done} />` : ""}
    ${doing?.kind === "rotate" ? html`<${Rotate} item=${doing.item} onClose=${() => setDoing(null)} onDone=${done} />` : ""}
    ${doing?.kind === "attest" ? html`<${Attest} item=${doing.item} onClose=${() => setDoing(null)} onDone=${done} />` : ""}
    ${doing?.kind === "revoke" ? html`<${Revoke} item=${doing.item} onClose=${() => setDoing(null)} onDone=${done} />` : ""}
    ${doing?.kind === "disable" ? html`<${Disable} onClose=${() => setDoing(null)} onDone=${done} />` : ""}
    ${made ? html`<${Made} item=${made} onClose=${() => setMade(null)} />` : ""}`;
}

/** Whose the key in use is. */
function Me({ onDisable, onRotate }) {
  const me = principal.value;
  if (!me) return null;
  return html`<dl class="facts"><div><dt>You use</dt><dd>${me.name ?? me.key_id ?? "root"}</dd></div>${me.grants ? html`<div><dt>It may</dt><dd><${Grants} of=${me.grants} /></dd></div>` : ""}
    ${Object.entries(me.quota_left ?? {}).filter(([, left]) => left !== null).map(([name, left]) => html`<div><dt>Left: ${name.replaceAll("_", " ")}</dt><dd>${left}</dd></div>`)}
    ${me.person ? html`<div><dt>Your person</dt><dd><${Person} of=${me} /></dd></div><div><dt>Revision of your key</dt><dd>${me.revision}</dd></div>
      <div><dt>Your secret</dt><dd>${me.own_secret ? "only you have had it" : "who made your key has had it"} <button class="quiet" onClick=${onRotate}>Rotate your key…</button></dd></div>` : ""}
    ${me.root ? html`<div><dt>The root key</dt><dd><button class="quiet" onClick=${onDisable}>Disable it…</button></dd></div>` : ""}
    ${me.expires_at ? html`<div><dt>Expires</dt><dd><${Time} of=${me.expires_at} /></dd></div>` : ""}</dl>`;
}

function Grants({ of }) {
  return html`${(of ?? []).map((grant) => html`<div>${grant.verbs.map((verb) => html`<span class="tag">${verb}</span> `)}${grant.definitions?.length ? html`<span class="muted">on</span> ${grant.definitions.map((pattern) => html`<code>${pattern}</code> `)}` : ""}</div>`)}`;
}

/** Who holds a key, and whether others have confirmed it. */
function Person({ of }) {
  if (!of.person) return html`<span class="muted">none</span>`;
  const by = of.attested_by.map((one) => one.person?.label ?? one.key_id).join(", ");
  const state = of.attested ? (by ? `attested by ${by}` : "attested") : by ? `attested by ${by}; one more person must` : "not attested";
  return html`${of.person.label ?? of.person.person_id} <span class="muted small">${state}</span>`;
}

/** A new key, or the change of one. Only what was changed is sent, so that all else stays to the last digit. */
function KeyForm({ item, onClose, onDone }) {
  const begun = item?.expires_at ? item.expires_at.slice(0, 19) : "";
  const [name, setName] = useState(item?.name ?? "");
  const [person, setPerson] = useState("");
  const [grants, setGrants] = useState(() => item?.grants.map((grant) => ({ verbs: grant.verbs, definitions: (grant.definitions ?? []).join(" ") })) ?? [{ verbs: ["read"], definitions: "*" }]);
  const [expires, setExpires] = useState(begun);
  const [quota, setQuota] = useState(() => Object.fromEntries(QUOTAS.map(([id]) => [id, item?.quota?.[id] === null || item?.quota?.[id] === undefined ? "" : String(item.quota[id])])));
  const write = useWrite();
  const body = {
    name, quota: Object.fromEntries(QUOTAS.map(([id]) => [id, quota[id] === "" ? null : Number(quota[id])])), expires_at: expires ? `${expires.length === 16 ? `${expires}:00` : expires}Z` : null,
    grants: grants.map((grant) => ({ verbs: grant.verbs, definitions: grant.definitions.split(/[\s,]+/).filter(Boolean) })),
  };
  if (!item && person) body.person = person;
  if (expires === begun) delete body.expires_at;
  if (item) {
    if (name === item.name) delete body.name;
    if (JSON.stringify(body.grants) === JSON.stringify(item.grants.map(({ verbs, definitions }) => ({ verbs, definitions: definitions ?? [] })))) delete body.grants;
    if (QUOTAS.every(([id]) => quota[id] === String(item.quota?.[id] ?? ""))) delete body.quota;
  }
  const request = item ? { method: "PATCH", path: `${PATH}${segment(item.key_id)}` } : { method: "POST", path: PATH };
  const set = (place, change) => setGrants(grants.map((grant, i) => (i === place ? { ...grant, ...change } : grant)));
  const submit = (event) => { event.preventDefault(); write.run(request.method, request.path, { body: JSON.stringify(body) }, (answer) => { say(item ? "The key is changed" : "The key is created"); onDone(answer); }); };
  return html`<${Dialog} title=${item ? `Change ${item.name}` : "New key"} onClose=${onClose} wide><form onSubmit=${submit} class="stack">
    <${Field} label="Name" hint="Who or what uses it"><input required value=${name} onInput=${(event) => setName(event.target.value)} /></${Field}>
    ${item ? "" : html`<${Field} label="Person" hint="Who alone holds it, such as ada@example.com; it never changes. Empty for the key of a machine"><input value=${person} maxlength="254" spellcheck=${false} onInput=${(event) => setPerson(event.target.value)} /></${Field}>`}
    ${grants.map((grant, place) => html`<fieldset><legend>Grant ${place + 1}</legend><div class="verbs">${VERBS.map(([verb, about]) => html`<label class="check"><input type="checkbox" checked=${grant.verbs.includes(verb)}
        onChange=${(event) => set(place, { verbs: event.target.checked ? [...grant.verbs, verb] : grant.verbs.filter((other) => other !== verb) })} /> <b>${verb}</b> <span class="muted small">${about}</span></label>`)}</div>
      <${Field} label="Definitions" hint="Keys, or beginnings with * at the end; several separated by spaces"><input value=${grant.definitions} spellcheck=${false} onInput=${(event) => set(place, { definitions: event.target.value })} /></${Field}>
      ${grants.length > 1 ? html`<button type="button" onClick=${() => setGrants(grants.filter((_, i) => i !== place))}>Remove this grant</button>` : ""}</fieldset>`)}
    <div><button type="button" onClick=${() => setGrants([...grants, { verbs: ["read"], definitions: "" }])}>Add a grant</button></div>
    <${Field} label="Expires (UTC)" hint="Empty: never"><input type="datetime-local" step="1" value=${expires} onInput=${(event) => setExpires(event.target.value)} /></${Field}>
    <details><summary>Quota</summary><p class="muted small">Empty: no limit of the key's own.</p><div class="verbs">${QUOTAS.map(([id, label]) => html`<${Field} label=${label}><input inputmode="numeric" pattern="[0-9]*" value=${quota[id]}
      onInput=${(event) => setQuota({ ...quota, [id]: event.target.value.replace(/\D/g, "") })} /></${Field}>`)}</div></details>
    <${Problem} error=${write.error} again=${write.again} />
    <footer><${CopyAs} requests=${[{ label: item ? "Change it" : "Create it", ...request, body: JSON.stringify(body) }]} /><span class="grow"></span><button type="button" onClick=${onClose}>Cancel</button>
      <button class="primary" disabled=${write.busy || !name || grants.some((grant) => grant.verbs.length === 0)}>${write.busy ? "Working…" : item ? "Change" : "Create the key"}</button></footer></form></${Dialog}>`;
}

function Made({ item, onClose }) {
  return html`<${Dialog} title="The key, this once" onClose=${onClose} wide><p>Keep it now: it is stored nowhere and can't be shown again.</p>
    <pre class="code" tabindex="0" aria-label="The key">${item.api_key}</pre>
    <footer><button class="primary" onClick=${() => copyText(item.api_key, "The key")}>Copy</button><button onClick=${onClose}>I have kept it</button></footer></${Dialog}>`;
}

function Rotate({ item, onClose, onDone }) {
  const [grace, setGrace] = useState("3600");
  const write = useWrite();
  const path = `${PATH}${segment(item.key_id)}/rotate`;
  const body = JSON.stringify({ grace_s: Number(grace) });
  return html`<${Confirm} title=${`Rotate ${item.name}?`} action="Make a new secret" write=${write} onClose=${onClose}
    onConfirm=${() => write.run("POST", path, { body }, (answer) => { say("There is a new secret"); onDone(answer); })}>
    <p>The key keeps its id and its permissions, and gets a new secret. The previous secret remains valid for a while.</p>
    <${Field} label="Seconds for which the old one is good"><input inputmode="numeric" required pattern="[0-9]+" value=${grace} onInput=${(event) => setGrace(event.target.value)} /></${Field}>
    <div><${CopyAs} requests=${[{ label: "Rotate it", method: "POST", path, body }]} /></div></${Confirm}>`;
}

function Attest({ item, onClose, onDone }) {
  const write = useWrite();
  const path = `${PATH}${segment(item.key_id)}/attest`;
  const body = JSON.stringify({ revision: item.revision });
  return html`<${Confirm} title=${`Attest ${item.name}?`} action="Attest it" write=${write} onClose=${onClose}
    onConfirm=${() => write.run("POST", path, { body }, (answer) => { say(answer.data.attested ? "The key is attested" : "One more person must attest the key"); onDone(); })}>
    <p>You confirm that <b>${item.person.label ?? item.person.person_id}</b>, and nobody else, holds this key at revision <b>${item.revision}</b>. Ask them which revision they see: it changes when the key gets another secret or other permissions.</p>
    ${item.own_secret ? "" : html`<p>Another key has made a secret of this key that is still valid, so nobody can attest it. Its person must rotate the key first, with the key itself.</p>`}
    <div><${CopyAs} requests=${[{ label: "Attest it", method: "POST", path, body }]} /></div></${Confirm}>`;
}

function Revoke({ item, onClose, onDone }) {
  const write = useWrite();
  const path = `${PATH}${segment(item.key_id)}`;
  return html`<${Confirm} title=${`Revoke ${item.name}?`} action="Revoke it" danger write=${write} onClose=${onClose}
    onConfirm=${() => write.run("DELETE", path, {}, () => { say(`${item.name} is revoked`); onDone(); })}>
    <p>From the moment of the answer on nothing is done in its name, on any node. It can't be undone.</p>
    <div><${CopyAs} requests=${[{ label: "Revoke it", method: "DELETE", path }]} /></div></${Confirm}>`;
}

function Disable({ onClose, onDone }) {
  const write = useWrite();
  const path = `${PATH}root/disable`;
  return html`<${Confirm} title="Disable the root key?" action="Disable it" danger type="root" write=${write} onClose=${onClose}
    onConfirm=${() => write.run("POST", path, { body: "{}" }, () => { say("The root key is disabled"); onDone(); })}>
    <p>Every node rejects it from then on, and so does this console. A key with the verb <b>keys</b> must exist; on a stopped node <code>concord recover-root</code> brings it back.</p>
    <div><${CopyAs} requests=${[{ label: "Disable it", method: "POST", path, body: "{}" }]} /></div></${Confirm}>`;
}
