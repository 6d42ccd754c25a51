// Environments: which there are, when they are frozen and why. Here a freeze is added and ended.
import { html, useState } from "../vendor/preact.js";
import { say } from "../lib/state.js";
import { get, segment } from "../lib/api.js";
import { count } from "../lib/format.js";
import { Confirm, Dialog, Empty, Field, Loaded, Problem, Time, useLoad, useWrite } from "../parts/ui.js";
import { By } from "../parts/by.js";
import { CopyAs } from "../parts/copyas.js";
import { ENVIRONMENTS } from "../parts/frozen.js";

const LENGTHS = [["15", "15 minutes"], ["60", "1 hour"], ["240", "4 hours"], ["1440", "24 hours"], ["", "until…"]];
const pathOf = (name) => `${ENVIRONMENTS}${segment(name)}`;
/** What a request has of the freezes of an answer. */
const sent = (freezes) => freezes.map(({ from, until, reason }) => ({ from, until, reason }));

export default function Environments() {
  const [doing, setDoing] = useState(null);
  const list = useLoad((signal) => get(ENVIRONMENTS, [], { signal }), []);
  const all = list.data?.data.results;
  const done = () => { setDoing(null); list.reload(); };
  return html`<div class="title"><h1>Environments</h1><span class="muted">${all ? count(all.length, "environment") : ""}</span><span class="grow"></span>
      <${CopyAs} requests=${[{ label: "List the environments", method: "GET", path: ENVIRONMENTS }]} />
      <button class="primary" data-key="n" onClick=${() => setDoing({ kind: "freeze" })}>Freeze…</button></div>
    <p class="muted">An environment has the definitions whose keys begin with its name and a dot; <b>default</b> has those of no other one. While it is frozen, nobody changes them or their configs.</p>
    <${Loaded} of=${list} what="the environments">${all && (all.length === 0
      ? html`<${Empty} title="There is no environment yet">The first freeze of one creates it.</${Empty}>`
      : html`<div class="scroll" tabindex="0" role="region" aria-label="Environments"><table><thead><tr><th>Environment</th><th>Changes</th><th>Freezes</th><th><span class="unseen">Actions</span></th></tr></thead>
        <tbody>${all.map((item) => html`<tr key=${item.environment}><td><b>${item.environment}</b></td>
          <td>${item.frozen_until ? html`<span class="state bad">frozen until <${Time} of=${item.frozen_until} /></span>` : html`<span class="state good">allowed</span>`}</td>
          <td>${item.freeze.map((one) => html`<div>${one.active ? html`<span class="tag">now</span> ` : ""}<${Time} of=${one.from} /> <span class="muted">to</span> <${Time} of=${one.until} /> <b>${one.reason}</b> <span class="muted">by</span> <${By} of=${one.by} />
            <button class="quiet" aria-label=${`End the freeze of ${item.environment}: ${one.reason}`} onClick=${() => setDoing({ kind: "end", item, one })}>End…</button></div>`)}</td>
          <td class="actions"><button class="quiet" aria-label=${`Freeze ${item.environment}`} onClick=${() => setDoing({ kind: "freeze", item })}>Freeze…</button></td></tr>`)}</tbody></table></div>`)}</${Loaded}>
    ${doing?.kind === "freeze" ? html`<${Freeze} item=${doing.item} onClose=${() => setDoing(null)} onDone=${done} />` : ""}
    ${doing?.kind === "end" ? html`<${End} item=${doing.item} one=${doing.one} onClose=${() => setDoing(null)} onDone=${done} />` : ""}`;
}

/** The environment as it is now, and the condition that it is still so when it is replaced. */
async function present(name) {
  try {
    const answer = await get(pathOf(name), []);
    return { freezes: sent(answer.data.freeze), headers: { "If-Match": answer.etag } };
  } catch (error) {
    if (error.status !== 404) throw error;
    return { freezes: [], headers: { "If-None-Match": "*" } };
  }
}

/** Replaces the freezes of an environment by what `change` makes of them. */
function useFreezes() {
  const write = useWrite();
  const [error, setError] = useState(null);
  async function run(name, change, done) {
    setError(null);
    try {
      const { freezes, headers } = await present(name);
      await write.run("PUT", pathOf(name), { headers, body: JSON.stringify({ freeze: change(freezes) }) }, done);
    } catch (problem) {
      if (problem.status === undefined) throw problem;
      setError(problem);
    }
  }
  return { ...write, error: write.error ?? error, run };
}

function Freeze({ item, onClose, onDone }) {
  const [name, setName] = useState(item?.environment ?? "");
  const [minutes, setMinutes] = useState("60");
  const [until, setUntil] = useState("");
  const [reason, setReason] = useState("");
  const write = useFreezes();
  const end = () => (minutes ? new Date(Date.now() + Number(minutes) * 60000).toISOString() : `${until.length === 16 ? `${until}:00` : until}Z`);
  const submit = (event) => {
    event.preventDefault();
    write.run(name, (freezes) => [...freezes, { until: end(), reason }], () => { say(`${name} is frozen`); onDone(); });
  };
  return html`<${Dialog} title=${item ? `Freeze ${item.environment}` : "Freeze an environment"} onClose=${onClose}><form onSubmit=${submit} class="stack">
    ${item ? "" : html`<${Field} label="Environment" hint="What stands before the first dot in the keys of its definitions, or default"><input required value=${name} spellcheck=${false} autocomplete="off" onInput=${(event) => setName(event.target.value.trim())} /></${Field}>`}
    <${Field} label="For"><select value=${minutes} onChange=${(event) => setMinutes(event.target.value)}>${LENGTHS.map(([value, label]) => html`<option value=${value}>${label}</option>`)}</select></${Field}>
    ${minutes ? "" : html`<${Field} label="Until (UTC)"><input type="datetime-local" required step="1" value=${until} onInput=${(event) => setUntil(event.target.value)} /></${Field}>`}
    <${Field} label="Reason" hint="Those whose changes are refused can read it"><input required maxlength="255" value=${reason} onInput=${(event) => setReason(event.target.value)} /></${Field}>
    <${Problem} error=${write.error} again=${write.again} />
    <footer><button type="button" onClick=${onClose}>Cancel</button><button class="primary" disabled=${write.busy || !name || !reason || (!minutes && !until)}>${write.busy ? "Working…" : "Freeze it"}</button></footer></form></${Dialog}>`;
}

function End({ item, one, onClose, onDone }) {
  const write = useFreezes();
  const isOther = (freeze) => freeze.from !== one.from || freeze.until !== one.until || freeze.reason !== one.reason;
  const confirm = () => write.run(item.environment, (freezes) => freezes.filter(isOther), () => { say("The freeze is ended"); onDone(); });
  return html`<${Confirm} title=${`End the freeze of ${item.environment}?`} action="End it" write=${write} onClose=${onClose} onConfirm=${confirm}>
    <p>${one.reason}: until <${Time} of=${one.until} />. ${one.active ? "Changes are possible at once." : "It does not begin."}</p></${Confirm}>`;
}
