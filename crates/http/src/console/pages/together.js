// The change set: what was collected, what it would do, whether the node would take it, and the batch that does it. All of
// it is done at one revision, or nothing.
import { html, useEffect, useState } from "../vendor/preact.js";
import { href, say, session } from "../lib/state.js";
import { dryRun, isUnanswered } from "../lib/api.js";
import { count } from "../lib/format.js";
import { ANY } from "../lib/schema.js";
import { masked } from "../lib/secrets.js";
import { batchBody, drop, itemsByChange, operationsOf, together } from "../lib/together.js";
import { Confirm, Empty, Field, Problem, UNCHECKED, useDebounced, useWrite } from "../parts/ui.js";
import { CopyAs } from "../parts/copyas.js";
import { Diff } from "../parts/diff.js";
import { Offer, ProposeButton, TITLED, isForEnvironment, useProposal } from "../parts/propose.js";
import { reasonHeader } from "./config.js";

const WORDS = { create_config: "create", put_config: "replace", delete_config: "delete" };

export default function Together() {
  const changes = together.value;
  const [reason, setReason] = useState("");
  const [dry, setDry] = useState({});
  const [asking, setAsking] = useState(false);
  const write = useWrite();
  const propose = useProposal([...new Set(changes.map(({ definition }) => definition))], "write");
  const isSecret = () => changes.some(({ schema, data }) => masked(schema ?? ANY, data) !== data);
  const proposal = () => ({
    title: reason.trim() || count(changes.length, "change"), operations: operationsOf(changes), isSecret,
    onRefused: (error) => setDry({ error }), onDone: () => { together.value = []; },
  });
  const request = { method: "POST", path: "/batch", headers: reasonHeader(reason), body: batchBody(changes) };
  useEffect(() => { write.clear(); setDry({}); }, [changes]);
  useDebounced(async (signal) => {
    if (changes.length === 0 || propose.isOnly) return false;
    setDry({ busy: true });
    try {
      await dryRun("POST", "/batch", { ...request, signal });
      setDry({ fits: true });
    } catch (error) {
      if (error.name === "AbortError") return false;
      setDry({ error });
      return isUnanswered(error);
    }
    return false;
  }, [changes, session.value, propose.isOnly], 150);
  const error = write.error ?? dry.error;
  const wrong = itemsByChange(error?.items ?? []);
  const save = () => write.run("POST", "/batch", request, (answer) => {
    together.value = [];
    setAsking(false);
    say(`${count(changes.length, "change")} made as revision ${answer.data.revision}`);
  });
  if (changes.length === 0) {
    return html`<div class="title"><h1>Change set</h1></div>
      <${Empty} title="The change set is empty">Edit or delete a config, and choose <b>Add to the change set</b> instead of saving: what is collected is made as one change, all of it or nothing.</${Empty}>`;
  }
  const state = write.error?.unknown ? ["bad", "Nobody knows whether it was made"] : write.error ? ["bad", "The node refused it: nothing is made"] : dry.busy ? ["", "Checking…"] : dry.fits ? ["good", "The node would take all of it"] : isUnanswered(dry.error) ? UNCHECKED : dry.error ? ["bad", "The node would not take it"] : ["", propose.isOnly ? "The node checks it when you propose it" : ""];
  return html`<div class="title"><h1>Change set</h1><span class=${`state ${state[0]}`} role="status">${state[1]}</span><span class="grow"></span>
      <${CopyAs} isSecret=${isSecret} requests=${[{ label: "Make all of them", ...request }, { label: "Try all of them (dry run)", ...request, query: [["dry_run", "true"]] }]} />
      <button onClick=${() => setAsking(true)}>Empty the change set…</button>
      <${ProposeButton} of=${propose} proposal=${proposal} primary=${propose.isOnly} disabled=${write.busy} />
      ${propose.isOnly ? "" : html`<button class="primary" disabled=${write.busy || (Boolean(dry.error) && !isUnanswered(dry.error))} onClick=${save}>${write.busy ? "Working…" : `Make ${count(changes.length, "change")}`}</button>`}</div>
    ${propose.isOnly ? "" : html`<${Offer} error=${[write.error, dry.error].find(isForEnvironment)} proposal=${proposal} of=${propose} />`}${propose.dialog}
    ${error && (wrong.has(-1) || error.unknown || wrong.size === 0) ? html`<${Problem} error=${error} again=${write.again} />` : ""}
    <div class="bar spaced"><${Field} label="Reason" hint=${propose.isOnly ? TITLED : "Stored in the history of each"}><input value=${reason} maxlength="300" onInput=${(event) => setReason(event.target.value)} /></${Field}></div>
    <ol class="plain">${changes.map((change, place) => html`<li key=${`${change.definition}/${change.key}`}><section class="together" aria-label=${`${change.definition} / ${change.key}`}>
      <div class="bar"><h2><span class="tag">${WORDS[change.op]}</span> <a href=${href(["d", change.definition, "c", change.key])}>${change.definition} / ${change.key}</a></h2>
        <span class="muted small">${change.revision === null ? "only if there is none" : `only at revision ${change.revision}`}</span><span class="grow"></span>
        ${change.op === "delete_config" ? "" : html`<a class="button quiet" href=${change.op === "create_config" ? href(["d", change.definition, "new"], { collected: change.key }) : href(["d", change.definition, "c", change.key, "edit"])}>Edit again</a>`}
        <button class="quiet" aria-label=${`Leave out ${change.key}`} onClick=${() => drop(change)}>Leave out</button></div>
      ${wrong.has(place) ? html`<div class="banner bad" role="alert"><ul>${wrong.get(place).map((item) => html`<li>${item.loc.length ? html`<code>${item.loc.join(" › ")}</code> ` : ""}${item.msg}</li>`)}</ul></div>` : ""}
      <${Diff} schema=${change.schema} from=${change.before} to=${change.data} label=${`What changes in ${change.key}`} /></section></li>`)}</ol>
    ${asking ? html`<${Confirm} title="Empty the change set?" action="Empty it" danger onClose=${() => setAsking(false)} onConfirm=${() => { together.value = []; setAsking(false); }}>
      <p>${count(changes.length, "change")} would be gone. Nothing of it is stored yet.</p></${Confirm}>` : ""}`;
}
