// One config, to be read: its fields as the schema names them, its JSON, its version; from here it is edited, deleted,
// followed back. It is kept up to date while it is looked at.
import { html, useEffect, useState } from "../vendor/preact.js";
import { onConfig } from "../lib/operations.js";
import { go, href, lacks, say } from "../lib/state.js";
import { configPath, definitionPath, get } from "../lib/api.js";
import { hiddenPlaces, hiddenText } from "../lib/redacted.js";
import { collect } from "../lib/together.js";
import { follow } from "../lib/watch.js";
import { Confirm, Crumbs, Field, Loaded, Tabs, Time, useLoad, useWrite } from "../parts/ui.js";
import { Frozen } from "../parts/frozen.js";
import { Readers } from "../parts/readers.js";
import { Rolling } from "../parts/rolling.js";
import { CopyAs } from "../parts/copyas.js";
import { Fields } from "../parts/fields.js";
import { JsonView } from "../parts/jsonview.js";
import { Offer, ProposeButton, TITLED, useProposal } from "../parts/propose.js";

export function ConfigHead({ name, config, here, children }) {
  const base = ["d", name, "c", config];
  return html`<${Crumbs} items=${[{ text: "Definitions", href: "#/" }, { text: name, href: href(["d", name]) }, { text: config }]} />
    <div class="title"><h1>${config}</h1><span class="grow"></span>${children}</div>
    <${Frozen} name=${name} /><${Rolling} name=${name} config=${config} />
    <${Tabs} label="Parts of the config" items=${[
      { text: "Content", here: here === "view", href: href(base) },
      { text: "History", here: here === "history", href: href([...base, "history"]) }]} />`;
}

/** The requests about one config, for "copy as". */
export const configRequests = (name, config) => [
  { label: "Read it", method: "GET", path: configPath(name, config) },
  { label: "Its history", method: "GET", path: `${configPath(name, config)}/history` },
  { label: "Its readers", method: "GET", path: `${configPath(name, config)}/readers` },
  { label: "Follow it", method: "GET", path: "/watch", query: [["definition", name], ["config_key", config]], stream: true },
];

export default function Config({ parts: [, name, , config] }) {
  const [deleting, setDeleting] = useState(false);
  const loaded = useLoad(async (signal) => {
    const [record, schema] = await Promise.all([
      get(configPath(name, config), [], { signal }), get(`${definitionPath(name)}/schema`, [], { signal })]);
    return { record: record.exact, etag: record.etag, hidden: hiddenPlaces(record), schema: schema.exact.get("json_schema") };
  }, [name, config]);
  useEffect(() => {
    const stop = new AbortController();
    follow([["definition", name], ["config_key", config]], {
      change: (event) => { if (event.changes.some((item) => item.config_key === config)) loaded.reload(); },
      state() {}, gone: loaded.reload, refused() {},
    }, stop.signal);
    return () => stop.abort();
  }, [name, config]);
  const record = loaded.data?.record;
  const revision = loaded.data?.etag?.replaceAll('"', "");
  const missing = loaded.error?.status === 404;
  return html`<${ConfigHead} name=${name} config=${config} here="view">
      <${CopyAs} requests=${configRequests(name, config)} />
      ${record && !missing && !lacks("propose", name) ? html`<button onClick=${() => setDeleting(true)}>Delete</button>
        <a class="button primary" href=${href(["d", name, "c", config, "edit"])} data-key="e">Edit</a>` : ""}
    </${ConfigHead}>
    <a class="unseen" tabindex="-1" href=${href(["d", name, "c", config, "history"])} data-key="h" aria-hidden="true">History</a>
    ${missing ? html`<div class="empty"><h2>There is no such config now</h2><p>If it was deleted, <a href=${href(["d", name, "c", config, "history"])}>its history</a> brings it back.</p></div>`
      : html`<${Loaded} of=${loaded} what="the config">${record && html`
      <dl class="facts"><div><dt>Revision</dt><dd>${revision}</dd></div><div><dt>Changed</dt><dd><${Time} of=${record.get("modified_at")} /></dd></div>
        <div><dt>Created</dt><dd><${Time} of=${record.get("created_at")} /></dd></div></dl>
      ${loaded.data.hidden.paths.length ? html`<p class="banner warn">Your key may not see the secret values at <b>${hiddenText(loaded.data.hidden)}</b>: they are shown as null.</p>` : ""}
      <div class="split"><section aria-label="Fields"><h2>Fields</h2><${Fields} schema=${loaded.data.schema} value=${record.get("data")} /></section>
        <section aria-label="JSON"><h2>JSON</h2><${JsonView} value=${record.get("data")} schema=${loaded.data.schema} label="JSON of the config" /></section></div>
      <${Readers} name=${name} config=${config} />`}</${Loaded}>`}
    ${deleting ? html`<${Delete} name=${name} config=${config} etag=${loaded.data.etag} data=${record.get("data")} schema=${loaded.data.schema} onClose=${() => setDeleting(false)} />` : ""}`;
}

function Delete({ name, config, etag, data, schema, onClose }) {
  const [reason, setReason] = useState("");
  const write = useWrite();
  const confirm = () => write.run("DELETE", configPath(name, config), { headers: { "If-Match": etag, ...reasonHeader(reason) } }, () => {
    say(`${config} is deleted; its history brings it back`);
    go(["d", name]);
  });
  const propose = useProposal([name], "write");
  const proposal = () => ({ title: reason.trim() || `delete ${name} / ${config}`, operations: [onConfig("delete_config", name, config, [], etag)] });
  const add = () => {
    collect({ op: "delete_config", definition: name, key: config, data: undefined, before: data, schema, revision: Number(etag.replaceAll('"', "")) });
    say("Added to the change set");
    go(["together"]);
  };
  if (propose.dialog) return propose.dialog;
  return html`<${Confirm} title=${`Delete ${config}?`} action=${propose.isOnly ? "Propose…" : "Delete"} danger write=${write} onClose=${onClose} onConfirm=${propose.isOnly ? () => propose.ask(proposal()) : confirm}
    beside=${propose.isOnly ? null : html`<${ProposeButton} of=${propose} proposal=${proposal} />`}>
    <p>Readers get 404 from then on. Its history stays, and a rollback brings it back.</p>
    <${Field} label="Reason" hint=${propose.isOnly ? TITLED : "Stored in the history"}><input value=${reason} onInput=${(event) => setReason(event.target.value)} /></${Field}>
    <p><button type="button" onClick=${add}>Add to the change set</button> <span class="muted small">to delete it together with other changes</span></p>
    <${Offer} error=${write.error} proposal=${proposal} of=${propose} />
  </${Confirm}>`;
}

/** The header of a reason. */
export const reasonHeader = (text) => (text.trim() ? { "X-Change-Reason": text.trim() } : {});
