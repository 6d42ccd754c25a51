// The indexes of a definition with their progress, its unique paths, its protection, and its end.
import { html, useEffect, useState } from "../vendor/preact.js";
import { onDefinition } from "../lib/operations.js";
import { go, lacks, say } from "../lib/state.js";
import { definitionPath, get } from "../lib/api.js";
import { count } from "../lib/format.js";
import { Confirm, Loaded, Problem, useLoad, useWrite } from "../parts/ui.js";
import { CopyAs } from "../parts/copyas.js";
import { DefinitionHead } from "../parts/definitionhead.js";
import { Offer, ProposeButton, useProposal } from "../parts/propose.js";

const POLL_MS = 1000;

export default function Indexes({ parts: [, name] }) {
  const path = definitionPath(name);
  const [deleting, setDeleting] = useState(false);
  const loaded = useLoad(async (signal) => {
    const [definition, states, unique, protection] = await Promise.all([
      get(path, [], { signal }), get(`${path}/indexes`, [], { signal }), get(`${path}/unique`, [], { signal }), get(`${path}/protection`, [], { signal })]);
    return { definition: definition.data, etag: definition.etag, states: states.data.indexes, unique: unique.data.paths, isProtected: protection.data.protected };
  }, [name]);
  const building = loaded.data?.states.some((state) => state.state === "building");
  useEffect(() => {
    if (!building) return undefined;
    const timer = setTimeout(loaded.reload, POLL_MS);
    return () => clearTimeout(timer);
  }, [loaded.data]);
  const may = !lacks("define", name) || !lacks("propose", name), mayDelete = !lacks("delete", name) || !lacks("propose", name);
  return html`<${DefinitionHead} name=${name} here="indexes"><${CopyAs} requests=${[
      { label: "Progress of the indexes", method: "GET", path: `${path}/indexes` }, { label: "Unique paths", method: "GET", path: `${path}/unique` },
      ...(loaded.data ? [{ label: "Set the indexes", method: "PUT", path, body: JSON.stringify({ indexes: loaded.data.definition.indexes }) },
        { label: loaded.data.isProtected ? "End the protection" : "Protect it", method: "PUT", path: `${path}/protection`, body: protectionBody(!loaded.data.isProtected) }] : []),
    ]} /></${DefinitionHead}>
    <${Loaded} of=${loaded} what="the indexes">${loaded.data && html`
      <div class="split"><section aria-label="Indexes"><h2>Indexed fields</h2><p class="muted">What configs are found and sorted by. Many configs are indexed in the background.</p>
        <${Paths} key=${`i${loaded.data.etag}`} name=${name} op="set_indexes" may=${may} items=${loaded.data.definition.indexes} member="indexes" path=${path} etag=${loaded.data.etag} what="indexed field" onDone=${loaded.reload}
          about=${(index) => html`<${Progress} of=${loaded.data.states.find((state) => state.path === index)} />`} /></section>
      <section aria-label="Unique paths"><h2>Unique fields</h2><p class="muted">No two configs have the same value there. Only indexed fields can be unique.</p>
        <${Paths} key=${`u${loaded.data.etag}`} name=${name} op="set_unique" may=${may} items=${loaded.data.unique} member="paths" path=${`${path}/unique`} etag=${loaded.data.etag} what="unique field" onDone=${loaded.reload}
          choices=${loaded.data.definition.indexes} /></section></div>
      ${may || mayDelete ? html`<section class="ending" aria-label="Deletion"><h2>Delete the definition</h2><p>All its configs go with it, in one revision. The deletion can be undone for a while.</p>
        <${Protection} key=${`p${loaded.data.etag}`} name=${name} path=${path} etag=${loaded.data.etag} isProtected=${loaded.data.isProtected} may=${may} onDone=${loaded.reload} />
        ${mayDelete ? html`<button class="danger" disabled=${loaded.data.isProtected} onClick=${() => setDeleting(true)}>Delete ${name}…</button>` : ""}</section>` : ""}`}</${Loaded}>
    ${deleting ? html`<${Delete} name=${name} path=${path} etag=${loaded.data.etag} onClose=${() => setDeleting(false)} />` : ""}`;
}

/** The body that protects a definition, or ends that. */
function protectionBody(isProtected) {
  return JSON.stringify({ protected: isProtected });
}

/** Whether the definition can be deleted. */
function Protection({ name, path, etag, isProtected, may, onDone }) {
  const write = useWrite();
  const propose = useProposal([name], "define");
  const proposal = () => ({ title: `${isProtected ? "end the protection of" : "protect"} ${name}`, operations: [onDefinition("set_protection", name, [["protected", String(!isProtected)]], etag)] });
  const save = () => write.run("PUT", `${path}/protection`, { body: protectionBody(!isProtected), headers: { "If-Match": etag } }, () => { say(isProtected ? `${name} is no longer protected` : `${name} is protected`); onDone(); });
  return html`<p>${isProtected ? "It is protected: a delete is rejected until the protection ends." : "It is not protected from deletion."}</p>
    ${may ? html`<div class="bar">${propose.isOnly ? "" : html`<button disabled=${write.busy} onClick=${save}>${isProtected ? "End the protection" : "Protect it"}</button>`}
      ${propose.isPossible ? html`<button disabled=${write.busy} onClick=${() => propose.ask(proposal())}>${isProtected ? "Propose to end it…" : "Propose to protect it…"}</button>` : ""}</div>` : ""}
    <${Problem} error=${write.error} again=${write.again} />${propose.dialog}`;
}

function Progress({ of }) {
  if (!of) return null;
  if (of.state === "ready") return html`<span class="good small">ready</span>`;
  return html`<progress max=${of.of || 1} value=${of.done} aria-label=${`Index of ${of.path}`}></progress><span class="small" role="status">${of.done} of ${count(of.of, "config")}</span>`;
}

/** A list of paths that is set as a whole. */
function Paths({ name, op, items, member, path, etag, what, about, choices, may, onDone }) {
  const [list, setList] = useState(items);
  const [text, setText] = useState("");
  const write = useWrite();
  const changed = JSON.stringify(list) !== JSON.stringify(items);
  const add = () => { if (text && !list.includes(text)) setList([...list, text]); setText(""); };
  const left = choices?.filter((choice) => !list.includes(choice));
  const body = JSON.stringify({ [member]: list });
  const propose = useProposal([name], "define");
  const proposal = () => ({ title: `set the ${what}s of ${name}`, operations: [onDefinition(op, name, [[member, JSON.stringify(list)]], etag)] });
  const save = () => write.run("PUT", path, { body, headers: { "If-Match": etag } }, () => { say("Saved"); onDone(); });
  return html`<ul class="paths">${list.map((item) => html`<li key=${item}><code>${item}</code><span class="grow"></span>${items.includes(item) ? about?.(item) : html`<span class="small muted">new</span>`}
      ${may ? html`<button class="quiet" aria-label=${`Remove the ${what} ${item}`} onClick=${() => setList(list.filter((other) => other !== item))}>✕</button>` : ""}</li>`)}
      ${list.length === 0 ? html`<li class="muted">none</li>` : ""}</ul>
    ${may ? html`<form class="bar" onSubmit=${(event) => { event.preventDefault(); add(); }}>
      ${choices ? html`<select aria-label=${`A further ${what}`} value=${text} onChange=${(event) => setText(event.target.value)}><option value="">${left.length ? "choose…" : "no further indexed field"}</option>${left.map((choice) => html`<option value=${choice}>${choice}</option>`)}</select>`
        : html`<input aria-label=${`A further ${what}`} placeholder="quota.requests" spellcheck=${false} value=${text} onInput=${(event) => setText(event.target.value)} />`}
      <button disabled=${!text}>Add</button><span class="grow"></span>
      ${changed ? html`<${CopyAs} requests=${[{ label: "Save", method: "PUT", path, body, headers: { "If-Match": etag } }]} /><button type="button" onClick=${() => setList(items)}>Undo</button><${ProposeButton} of=${propose} proposal=${proposal} primary=${propose.isOnly} disabled=${write.busy} />${propose.isOnly ? "" : html`<button type="button" class="primary" disabled=${write.busy} onClick=${save}>${write.busy ? "Saving…" : "Save"}</button>`}` : ""}</form>` : ""}
    <${Problem} error=${write.error} again=${write.again} />${propose.dialog}`;
}

function Delete({ name, path, etag, onClose }) {
  const configs = useLoad((signal) => get(`${path}/config/`, [["limit", 1]], { signal }), [path]);
  const write = useWrite();
  const total = configs.data?.data.meta.total;
  const propose = useProposal([name], "delete");
  const proposal = () => ({ title: `delete ${name}`, operations: [onDefinition("delete_definition", name, [], etag)] });
  if (propose.dialog) return propose.dialog;
  return html`<${Confirm} title=${`Delete ${name}?`} action=${propose.isOnly ? "Propose…" : "Delete it"} danger type=${propose.isOnly ? undefined : name} write=${write} onClose=${onClose}
    beside=${propose.isOnly ? null : html`<${ProposeButton} of=${propose} proposal=${proposal} />`}
    onConfirm=${() => (propose.isOnly ? propose.ask(proposal()) : write.run("DELETE", path, { headers: { "If-Match": etag } }, () => { say(`${name} is deleted`); go([]); }))}>
    <p>${total === undefined ? "Its configs" : total === 0 ? "It has no configs. The definition" : html`<b>${count(total, "config")}</b>`} ${total === 0 ? "goes" : "go with it"}, and <code>concord definition undelete</code> brings ${total === 0 ? "it" : "them"} back as long as the cluster keeps deleted definitions.</p><${Offer} error=${write.error} proposal=${proposal} of=${propose} /></${Confirm}>`;
}
