// The history of a config: what each change did, and the way back. A rollback is a new change, checked by the current schema,
// and it is tried before it is offered. A deleted config comes back the same way.
import { html, useState } from "../vendor/preact.js";
import { onConfig } from "../lib/operations.js";
import { lacks, say } from "../lib/state.js";
import { configPath, definitionPath, dryRun, get, isUnanswered } from "../lib/api.js";
import { Confirm, Field, Loaded, Problem, useDebounced, useLoad, useWrite } from "../parts/ui.js";
import { CopyAs } from "../parts/copyas.js";
import { Diff } from "../parts/diff.js";
import { History } from "../parts/history.js";
import { Offer, ProposeButton, TITLED, useProposal } from "../parts/propose.js";
import { ConfigHead, reasonHeader } from "./config.js";

export default function ConfigHistory({ parts: [, name, , config] }) {
  const [turn, setTurn] = useState(0);
  const [back, setBack] = useState(null);
  const path = configPath(name, config);
  // What of it is secret.
  const loaded = useLoad(async (signal) => ({ schema: (await get(`${definitionPath(name)}/schema`, [], { signal })).exact.get("json_schema") }), [name]);
  return html`<${ConfigHead} name=${name} config=${config} here="history"><${CopyAs} requests=${[{ label: "Its history", method: "GET", path: `${path}/history` }]} /></${ConfigHead}>
    <${Loaded} of=${loaded} what="the schema">${loaded.data && html`<${History} schema=${loaded.data.schema} path=${`${path}/history`} label="Changes" turn=${turn} children=${(entry, newest) => (entry.data && entry.revision !== newest.revision && !lacks("propose", name)
      ? html`<button class="primary" onClick=${() => setBack({ entry, newest })}>${newest.operation === "delete" ? "Bring it back" : "Roll back to this"}</button>` : "")} />`}</${Loaded}>
    ${back ? html`<${Rollback} name=${name} path=${path} config=${config} ...${back} schema=${loaded.data.schema} onClose=${() => setBack(null)} onDone=${() => { setBack(null); setTurn(turn + 1); }} />` : ""}`;
}

function Rollback({ name, path, config, entry, newest, schema, onClose, onDone }) {
  const [reason, setReason] = useState(`back to revision ${entry.revision}`);
  const propose = useProposal([name], "write");
  const [dry, setDry] = useState({ busy: true });
  const write = useWrite();
  const isDeleted = newest.operation === "delete";
  const condition = isDeleted ? { "If-None-Match": "*" } : { "If-Match": `"${newest.revision}"` };
  const request = { method: "POST", path: `${path}/rollback`, body: JSON.stringify({ revision: entry.revision }), headers: { ...condition, ...reasonHeader(reason) } };
  const proposal = () => ({
    title: `${config} ${reason.trim()}`, operations: [onConfig("rollback_config", name, config, [["revision", String(entry.revision)]], isDeleted ? undefined : String(newest.revision))],
  });
  useDebounced(async (signal) => {
    if (propose.isOnly) { setDry({}); return false; }
    try {
      await dryRun("POST", request.path, { ...request, signal });
      setDry({});
    } catch (error) {
      if (error.name === "AbortError") return false;
      setDry({ error });
      return isUnanswered(error);
    }
    return false;
  }, [propose.isOnly], 0);
  const confirm = () => write.run("POST", request.path, request, () => { say(`${config} is what it was at revision ${entry.revision}`); onDone(); });
  if (propose.dialog) return propose.dialog;
  return html`<${Confirm} title=${`Roll back to revision ${entry.revision}?`} action=${propose.isOnly ? "Propose…" : "Roll back"} beside=${propose.isOnly ? null : html`<${ProposeButton} of=${propose} proposal=${proposal} />`} write=${dry.busy || (dry.error && !isUnanswered(dry.error)) ? { busy: true } : write} onClose=${onClose} onConfirm=${propose.isOnly ? () => propose.ask(proposal()) : confirm}>
    <p>It becomes a new change: nothing of the history is lost.</p>
    <${Diff} schema=${schema} from=${newest.data} to=${entry.data} label="What the rollback changes" />
    <${Problem} error=${dry.error} /><${Offer} error=${dry.error ?? write.error} proposal=${proposal} of=${propose} />
    <${Field} label="Reason" hint=${propose.isOnly ? TITLED : "Stored in the history"}><input value=${reason} onInput=${(event) => setReason(event.target.value)} /></${Field}>
    <div><${CopyAs} requests=${[{ label: "Roll back", ...request }]} /></div>
  </${Confirm}>`;
}
