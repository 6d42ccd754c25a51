// "Copy as": the requests behind what a page shows, or behind a form before it is sent, as text for a terminal. What makes
// the texts is loaded when somebody asks for them.
import { html, useEffect, useState } from "../vendor/preact.js";
import { timely } from "../lib/silence.js";
import { Dialog, Problem, copyText } from "./ui.js";

/**
 * A button; `requests` are { label, method, path, query, headers, body, command }, or a function that makes them.
 * `isSecret`, a function, says whether they hold secret values: these are copied, and shown when they are asked for.
 */
export function CopyAs({ requests, isSecret, label = "Copy as…" }) {
  const [open, setOpen] = useState(false);
  return html`<button type="button" class="quiet" onClick=${() => setOpen(true)}>${label}</button>
    ${open ? html`<${CopyDialog} requests=${typeof requests === "function" ? requests() : requests} isSecret=${isSecret?.()} onClose=${() => setOpen(false)} />` : ""}`;
}

function CopyDialog({ onClose, ...of }) {
  const [loaded, setLoaded] = useState({});
  useEffect(() => { timely(import("../lib/copy.js")).then((module) => setLoaded({ forms: module.forms }), (error) => setLoaded({ error })); }, []);
  return html`<${Dialog} title="Copy as" onClose=${onClose} wide>${loaded.forms ? html`<${Copied} forms=${loaded.forms} ...${of} />` : loaded.error ? html`<${Problem} error=${loaded.error} />` : html`<p class="loading" role="status">Loading…</p>`}</${Dialog}>`;
}

function Copied({ forms, requests, isSecret }) {
  const [isShown, setShown] = useState(!isSecret);
  const [which, setWhich] = useState(0);
  const [form, setForm] = useState("curl");
  const request = requests[which];
  const offered = forms.filter(([, make]) => make(request) !== null);
  const [name, make] = offered.find(([name]) => name === form) ?? offered[0];
  const text = make(request);
  return html`<div class="bar">
      ${requests.length > 1 ? html`<select aria-label="Request" value=${which} onChange=${(event) => setWhich(Number(event.target.value))}>
        ${requests.map((item, place) => html`<option value=${place}>${item.label}</option>`)}</select>` : html`<span>${request.label}</span>`}
      <div class="segments" role="group" aria-label="Form">${offered.map(([other]) => html`<button type="button" aria-pressed=${other === name}
        onClick=${() => setForm(other)}>${other}</button>`)}</div>
      <button type="button" class="primary" onClick=${() => copyText(text, name)}>Copy</button>
    </div>
    ${isShown ? html`<pre class="code" tabindex="0" aria-label=${`${name} text`}>${text}</pre>`
      : html`<div class="empty"><p>The text has secret values.</p><button type="button" onClick=${() => setShown(true)}>Show the text</button></div>`}
    <p class="muted small">The key is not in the text: it is read from the environment variable <code>CONCORD_API_KEY</code>.</p>`;
}
