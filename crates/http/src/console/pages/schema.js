// The schema of a definition: to be read, and to be changed with the effect in view. While one types, the node tries the new
// schema on every config and names those that would break.
import { html, useEffect, useMemo, useState } from "../vendor/preact.js";
import { onDefinition } from "../lib/operations.js";
import { href, lacks, say, unsaved } from "../lib/state.js";
import { definitionPath, dryRun, get, isUnanswered } from "../lib/api.js";
import { JsonError, locate, parse, print, same } from "../lib/json.js";
import { count } from "../lib/format.js";
import { Confirm, Field, Loaded, Problem, UNCHECKED, useDebounced, useLoad, useWrite } from "../parts/ui.js";
import { CopyAs } from "../parts/copyas.js";
import { DefinitionHead } from "../parts/definitionhead.js";
import { Editor } from "../parts/editor.js";
import { JsonView } from "../parts/jsonview.js";
import { Offer, ProposeButton, TITLED, isForEnvironment, ofOperation, useProposal } from "../parts/propose.js";
import { reasonHeader } from "./config.js";

export default function Schema({ parts: [, name] }) {
  const [editing, setEditing] = useState(false);
  const path = `${definitionPath(name)}/schema`;
  const loaded = useLoad(async (signal) => {
    const answer = await get(path, [], { signal });
    return { schema: answer.exact.get("json_schema"), etag: answer.etag };
  }, [name]);
  const schema = loaded.data?.schema;
  return html`<${DefinitionHead} name=${name} here="schema"><${CopyAs} requests=${[{ label: "Read the schema", method: "GET", path }]} />
      ${editing || !loaded.data || lacks("propose", name) ? "" : html`<button class="primary" data-key="e" onClick=${() => setEditing(true)}>Edit the schema</button>`}</${DefinitionHead}>
    <${Loaded} of=${loaded} what="the schema">${loaded.data && (editing
      ? html`<${Editing} name=${name} path=${path} start=${loaded.data} onDone=${() => { setEditing(false); loaded.reload(); }} />`
      : schema === null ? html`<div class="empty"><h2>No schema</h2><p>Any object is accepted as data. With a schema every write is checked.</p></div>`
        : html`<${JsonView} value=${schema} label="Schema" />`)}</${Loaded}>`;
}

function Editing({ name, path, start, onDone }) {
  const [text, setText] = useState(() => print(start.schema ?? new Map([["type", "object"], ["properties", new Map()]])));
  const [reason, setReason] = useState("");
  const [report, setReport] = useState({});
  const [forcing, setForcing] = useState(false);
  const write = useWrite();
  const propose = useProposal([name], "define");
  const { value, wrong } = useMemo(() => {
    try {
      return { value: parse(text) };
    } catch (error) {
      if (!(error instanceof JsonError)) throw error;
      return { wrong: error };
    }
  }, [text]);
  const dirty = wrong || !same(value, start.schema);
  useEffect(() => { unsaved.value = dirty ? "The schema is not saved." : ""; return () => { unsaved.value = ""; }; }, [Boolean(dirty)]);
  const request = { method: "PUT", path, body: `{"json_schema":${text}}`, headers: { "If-Match": start.etag, ...reasonHeader(reason) } };
  useDebounced(async (signal) => {
    if (wrong || !dirty || propose.isOnly) { setReport({}); return false; }
    setReport((old) => ({ ...old, busy: true }));
    try {
      const answer = await dryRun("PUT", path, { ...request, signal });
      setReport({ data: answer.data });
    } catch (error) {
      if (error.name === "AbortError") return false;
      setReport({ error });
      return isUnanswered(error);
    }
    return false;
  }, [text, propose.isOnly], 500);
  const proposal = () => ({
    title: reason.trim() || `change the schema of ${name}`, choice: "Store it even if configs break it",
    operations: (force) => [onDefinition("set_schema", name, [["json_schema", text], ["policy", force ? '"force"' : undefined]], start.etag)],
    onRefused: (error) => setReport({ error: ofOperation(error) }), onDone,
  });
  const save = (force) => write.run("PUT", path, { ...request, query: force ? [["policy", "force"]] : [] }, () => {
    unsaved.value = "";
    say(`The schema of ${name} is changed`);
    onDone();
  });
  const breaking = report.data?.breaking_count ?? 0;
  const items = (report.error?.items ?? []).filter((item) => item.loc?.[0] === "json_schema");
  const problems = wrong ? [{ from: wrong.at, to: wrong.at + 1, message: wrong.message }]
    : locate(text, items.map((item) => item.loc.slice(1))).map(([from, to], place) => ({ from, to: items[place].loc.length > 1 ? to : from + 1, message: items[place].msg }));
  const state = wrong ? ["bad", `No JSON: ${wrong.message}`] : report.busy ? ["", "Trying it on every config…"] : !dirty ? ["", "Nothing is changed yet"]
    : isUnanswered(report.error) ? UNCHECKED : report.error ? ["bad", "The node would not take it"] : report.data ? (breaking ? ["bad", `${count(breaking, "config")} would break`] : ["good", report.data.scan === "skipped" ? "It asks nothing of data" : `All ${report.data.checked} configs fit`]) : ["", propose.isOnly ? "The node tries it on every config when it is applied" : ""];
  return html`<div class="bar"><span class=${`state ${state[0]}`} role="status">${state[1]}</span><span class="grow"></span>
      <${CopyAs} requests=${[{ label: "Try it (dry run)", ...request, query: [["dry_run", "true"]] }, { label: "Change it", ...request }]} />
      <button onClick=${onDone}>Cancel</button>
      ${breaking ? html`<button class="danger" onClick=${() => setForcing(true)}>Store all the same…</button>` : ""}
      <${ProposeButton} of=${propose} proposal=${proposal} primary=${propose.isOnly} disabled=${Boolean(wrong) || !dirty || write.busy} />
      ${propose.isOnly ? "" : html`<button class="primary" disabled=${Boolean(wrong) || !dirty || write.busy || breaking > 0 || Boolean(report.error)} onClick=${() => save(false)}>${write.busy ? "Saving…" : "Save"}</button>`}</div>
    <${Problem} error=${write.error} again=${write.again} /><${Offer} error=${[write.error, report.error].find(isForEnvironment)} proposal=${proposal} of=${propose} />${propose.dialog}
    ${write.error?.status === 412 ? html`<p><button onClick=${onDone}>Show what it is now</button> <span class="muted">What you typed is lost then: copy it first.</span></p>` : ""}
    <${Problem} error=${report.error} />
    <div class="split"><section aria-label="Schema editor"><${Field} label="Reason" hint=${propose.isOnly ? TITLED : "Stored in the history"}><input value=${reason} onInput=${(event) => setReason(event.target.value)} /></${Field}>
        <${Editor} text=${text} onText=${setText} problems=${problems} label="JSON schema" onSave=${() => { if (wrong || !dirty) return; if (propose.isOnly) propose.ask(proposal()); else if (!breaking) save(false); }} /></section>
      <section aria-label="What would break"><h2>What would break</h2><${Breaking} name=${name} report=${report} /></section></div>
    ${forcing ? html`<${Confirm} title="Store a schema that configs break?" action="Store it" danger type=${name} write=${write} onClose=${() => setForcing(false)} onConfirm=${() => save(true)}>
      <p>${count(breaking, "config")} ${breaking === 1 ? "stays" : "stay"} as ${breaking === 1 ? "it is" : "they are"} and must fit when written next. Readers may meet data that break the schema.</p></${Confirm}>` : ""}`;
}

function Breaking({ name, report }) {
  const { data } = report;
  if (!data) return html`<p class="muted">${report.busy ? "…" : "Nothing to show until the schema is changed."}</p>`;
  if (data.breaking_count === 0) return html`<p>No config. ${data.scan === "skipped" ? "The schema asks nothing of data." : `${count(data.checked, "config")} ${data.checked === 1 ? "was" : "were"} checked.`}</p>`;
  return html`<p><b>${data.breaking_count}</b> of ${count(data.checked, "config")}${data.breaking.length < data.breaking_count ? `, the first ${data.breaking.length} of them` : ""}:</p>
    <ul class="breaking">${data.breaking.map((item) => html`<li><a href=${href(["d", name, "c", item.config_key])} target="_blank" rel="noopener">${item.config_key}</a>
      <ul>${item.errors.map((error) => html`<li class="small"><code>${(error.loc ?? []).slice(1).join(".")}</code> ${error.msg}</li>`)}</ul></li>`)}</ul>`;
}
