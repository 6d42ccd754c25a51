// The way back from a revision: what would be set back and what is left, tried before it is offered, and done as one batch.
import { html, useState } from "../vendor/preact.js";
import { say } from "../lib/state.js";
import { dryRun, isUnanswered } from "../lib/api.js";
import { count } from "../lib/format.js";
import { ANY } from "../lib/schema.js";
import { masked } from "../lib/secrets.js";
import { undoBody, undoOf } from "../lib/undo.js";
import { Dialog, Field, Loaded, Problem, useDebounced, useLoad, useWrite } from "./ui.js";
import { CopyAs } from "./copyas.js";
import { Diff } from "./diff.js";
import { Offer, ProposeButton, TITLED, isForEnvironment, useProposal } from "./propose.js";
import { reasonHeader } from "../pages/config.js";

/** Configs whose differences are shown. */
const SHOWN_MAX = 50;

export function Undo({ revision, onClose }) {
  const loaded = useLoad((signal) => undoOf(revision, signal).then((plan) => ({ plan })), [revision]);
  return html`<${Dialog} title=${`Undo revision ${revision}?`} onClose=${onClose} wide>
    <${Loaded} of=${loaded} what="what it changed">${loaded.data && html`<${Plan} revision=${revision} plan=${loaded.data.plan} onClose=${onClose} />`}</${Loaded}></${Dialog}>`;
}

function Plan({ revision, plan, onClose }) {
  const reversals = plan?.reversals ?? [];
  const [reason, setReason] = useState(`undo of revision ${revision}`);
  const propose = useProposal([...new Set(reversals.map(({ definition }) => definition))], "write");
  const isSecret = () => reversals.some(({ definition, after }) => masked(plan.schemas.get(definition) ?? ANY, after) !== after);
  const proposal = () => ({ title: reason.trim() || `undo of revision ${revision}`, operations: reversals.map(({ operation }) => operation), isSecret });
  const [dry, setDry] = useState({ busy: reversals.length > 0 });
  const write = useWrite();
  const request = { method: "POST", path: "/batch", headers: reasonHeader(reason), body: undoBody(reversals) };
  useDebounced(async (signal) => {
    if (reversals.length === 0) return false;
    if (propose.isOnly) { setDry({}); return false; }
    try {
      await dryRun("POST", "/batch", { ...request, signal });
      setDry({});
    } catch (error) {
      if (error.name === "AbortError") return false;
      setDry({ error });
      return isUnanswered(error);
    }
    return false;
  }, [plan, propose.isOnly], 0);
  if (plan === null) return html`<p>It changed nothing that your key may read.</p><footer><button type="button" onClick=${onClose}>Close</button></footer>`;
  if (propose.dialog) return propose.dialog;
  const submit = (event) => {
    event.preventDefault();
    if (propose.isOnly) { propose.ask(proposal()); return; }
    write.run("POST", "/batch", request, (answer) => { say(`${count(reversals.length, "config")} set back as revision ${answer.data.revision}`); onClose(); });
  };
  const isStopped = write.busy || dry.busy || (dry.error && !isUnanswered(dry.error));
  return html`<form onSubmit=${submit}><div class="stack">
    ${reversals.length === 0 ? html`<p><b>Nothing to undo.</b></p>` : html`<p>${count(reversals.length, "config")} would be set back in one batch, as a new change: nothing of the history is lost. If somebody changes one of them meanwhile, nothing is done.</p>`}
    ${plan.left.length ? html`<div class="banner warn"><strong>${count(plan.left.length, "record")} not undone:</strong><ul>${plan.left.slice(0, SHOWN_MAX).map((one) => html`<li><b>${one.name}</b>: ${one.why}</li>`)}${plan.left.length > SHOWN_MAX ? html`<li>and ${plan.left.length - SHOWN_MAX} more</li>` : ""}</ul></div>` : ""}
    ${reversals.slice(0, SHOWN_MAX).map((one) => html`<section aria-label=${`${one.definition} / ${one.key}`} key=${`${one.definition}/${one.key}`}><h3><span class="tag">${one.after === undefined ? "delete" : one.now === undefined ? "create" : "set back"}</span> ${one.definition} / ${one.key}</h3>
      <${Diff} schema=${plan.schemas.get(one.definition)} from=${one.now} to=${one.after} label=${`What changes in ${one.key}`} /></section>`)}
    ${reversals.length > SHOWN_MAX ? html`<p class="muted">and ${reversals.length - SHOWN_MAX} more configs</p>` : ""}
    <${Problem} error=${write.error ? null : dry.error} />
    ${reversals.length ? html`<${Field} label="Reason" hint=${propose.isOnly ? TITLED : "Stored in the history"}><input value=${reason} maxlength="300" onInput=${(event) => setReason(event.target.value)} /></${Field}>
      <div><${CopyAs} isSecret=${isSecret} requests=${[{ label: "Undo it", ...request, command: `undo ${revision}` }]} /></div>` : ""}</div>
    <${Problem} error=${write.error} again=${write.again} />
    ${propose.isOnly ? "" : html`<${Offer} error=${[write.error, dry.error].find(isForEnvironment)} proposal=${proposal} of=${propose} />`}
    <footer><button type="button" onClick=${onClose}>${reversals.length ? "Cancel" : "Close"}</button>
      ${reversals.length ? html`${propose.isOnly ? "" : html`<${ProposeButton} of=${propose} proposal=${proposal} disabled=${write.busy} />`}
        <button class="primary" disabled=${isStopped}>${propose.isOnly ? "Propose…" : write.busy ? "Working…" : `Undo ${count(reversals.length, "config")}`}</button>` : ""}</footer></form>`;
}
