// A new definition: its key, its schema, its indexed fields; tried on the node while one types.
import { html, useMemo, useState } from "../vendor/preact.js";
import { onDefinition } from "../lib/operations.js";
import { go, say, unsaved } from "../lib/state.js";
import { dryRun, isUnanswered } from "../lib/api.js";
import { JsonError, locate, parse } from "../lib/json.js";
import { Crumbs, Field, Problem, UNCHECKED, useDebounced, useWrite } from "../parts/ui.js";
import { CopyAs } from "../parts/copyas.js";
import { Editor } from "../parts/editor.js";
import { Offer, ProposeButton, isForEnvironment, ofOperation, useProposal } from "../parts/propose.js";
import { scalars } from "../lib/schema.js";

const EXAMPLE = `{
  "type": "object",
  "required": ["owner"],
  "properties": {
    "owner": {"type": "string", "description": "The team that answers for it"},
    "enabled": {"type": "boolean"}
  }
}`;

/** Fields that are offered to be indexed. */
const OFFERED_MAX = 200;

export default function NewDefinition() {
  const [key, setKey] = useState("");
  const [text, setText] = useState(EXAMPLE);
  const [indexes, setIndexes] = useState([]);
  const [dry, setDry] = useState({});
  const write = useWrite();
  const propose = useProposal(key ? [key] : [], "define");
  const { schema, wrong } = useMemo(() => {
    try {
      return { schema: text.trim() === "" ? null : parse(text) };
    } catch (error) {
      if (!(error instanceof JsonError)) throw error;
      return { wrong: error };
    }
  }, [text]);
  const offered = schema instanceof Map ? scalars(schema, OFFERED_MAX) : [];
  const request = {
    method: "POST", path: "/config_definition/",
    body: `{"config_definition_key":${JSON.stringify(key)},"indexes":${JSON.stringify(indexes)}${schema ? `,"json_schema":${text}` : ""}}`,
  };
  useDebounced(async (signal) => {
    unsaved.value = key || text !== EXAMPLE ? "The definition is not created yet." : "";
    if (!key || wrong || propose.isOnly) { setDry({}); return false; }
    try {
      await dryRun("POST", request.path, { ...request, signal });
      setDry({ fits: true });
    } catch (error) {
      if (error.name === "AbortError") return false;
      setDry({ error });
      return isUnanswered(error);
    }
    return false;
  }, [key, text, JSON.stringify(indexes), propose.isOnly], 350);
  const save = () => write.run("POST", request.path, request, () => { unsaved.value = ""; say(`${key} is created`); go(["d", key]); });
  const proposal = () => ({
    title: `create ${key}`, operations: [onDefinition("create_definition", key, [["indexes", JSON.stringify(indexes)], ["json_schema", schema ? text : undefined]])],
    onRefused: (error) => setDry({ error: ofOperation(error) }),
  });
  const items = (dry.error?.items ?? []).filter((item) => item.loc?.[0] === "json_schema");
  const problems = wrong ? [{ from: wrong.at, to: wrong.at + 1, message: wrong.message }]
    : locate(text, items.map((item) => item.loc.slice(1))).map(([from, to], place) => ({ from, to, message: items[place].msg }));
  const state = wrong ? ["bad", `No JSON: ${wrong.message}`] : !key ? ["", "It needs a key"] : dry.fits ? ["good", "The node would take it"] : isUnanswered(dry.error) ? UNCHECKED : dry.error ? ["bad", "The node would not take it"] : ["", propose.isOnly ? "The node checks it when you propose it" : "Checking…"];
  const toggle = (path) => setIndexes(indexes.includes(path) ? indexes.filter((other) => other !== path) : [...indexes, path]);
  return html`<${Crumbs} items=${[{ text: "Definitions", href: "#/" }, { text: "New definition" }]} />
    <div class="title"><h1>New definition</h1><span class=${`state ${state[0]}`} role="status">${state[1]}</span><span class="grow"></span>
      <${CopyAs} requests=${[{ label: "Create it", ...request }]} /><a class="button" href="#/">Cancel</a>
      <${ProposeButton} of=${propose} proposal=${proposal} primary=${propose.isOnly} disabled=${!key || Boolean(wrong) || write.busy} />
      ${propose.isOnly ? "" : html`<button class="primary" disabled=${!key || Boolean(wrong) || write.busy} onClick=${save}>${write.busy ? "Making it…" : "Create it"}</button>`}</div>
    <${Problem} error=${write.error} again=${write.again} /><${Problem} error=${write.error ? null : dry.error} />
    <${Offer} error=${[write.error, dry.error].find(isForEnvironment)} proposal=${proposal} of=${propose} />${propose.dialog}
    <div class="split"><section aria-label="Key and indexes"><${Field} label="Key" hint="1 to 255 of A-Z a-z 0-9 _ . ~ -; it can't be changed later">
        <input value=${key} autocomplete="off" spellcheck=${false} onInput=${(event) => setKey(event.target.value.trim())} /></${Field}>
        <fieldset><legend>Indexed fields</legend><p class="muted small">Configs are found and sorted by these. They can be changed later.</p>
          ${offered.length ? offered.map((path) => html`<label class="check line"><input type="checkbox" checked=${indexes.includes(path)} onChange=${() => toggle(path)} /> <code>${path}</code></label>`) : html`<p class="muted">The schema names no field.</p>`}
          ${indexes.filter((path) => !offered.includes(path)).map((path) => html`<p class="error small"><code>${path}</code> is not in the schema <button type="button" onClick=${() => toggle(path)}>Remove</button></p>`)}</fieldset></section>
      <section aria-label="Schema"><h2>JSON schema</h2><p class="muted small">Without any text every object is accepted.</p><${Editor} text=${text} onText=${setText} problems=${problems} label="JSON schema" onSave=${() => { if (!key || wrong) return; if (propose.isOnly) propose.ask(proposal()); else save(); }} /></section></div>`;
}
