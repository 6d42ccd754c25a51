// Edits a config, or makes a new one: a form and JSON side by side over one value. While one types, dry runs say whether the
// node would take it. When somebody else changes the config meanwhile, both changes are put together.
//
// The value is what is saved. The JSON follows the form when typing rests, because to write a large value anew for each
// key takes longer than a key may; what follows is there before the editor takes the first key.
import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../vendor/preact.js";
import { onConfig } from "../lib/operations.js";
import { go, href, route, say, unsaved } from "../lib/state.js";
import { Refusal, configPath, definitionPath, dryRun, get, isUnanswered } from "../lib/api.js";
import { STRAYED, hasMarkers, placed, strayed } from "../lib/elements.js";
import { JsonError, identical, locate, parse, print, put, same, share } from "../lib/json.js";
import { hiddenPlaces, hiddenText, keeping } from "../lib/redacted.js";
import { ANY, initial } from "../lib/schema.js";
import { keepingUnnamed, masked } from "../lib/secrets.js";
import { collect, collected } from "../lib/together.js";
import { follow } from "../lib/watch.js";
import { Crumbs, Field, Loaded, Problem, UNCHECKED, useDebounced, useLoad, useWrite } from "../parts/ui.js";
import { Frozen } from "../parts/frozen.js";
import { Rolling } from "../parts/rolling.js";
import { CopyAs } from "../parts/copyas.js";
import { Editor } from "../parts/editor.js";
import { Form } from "../parts/form.js";
import { By, nameOf } from "../parts/by.js";
import { Merge } from "../parts/merge.js";
import { Offer, ProposeButton, TITLED, isForEnvironment, ofOperation, useProposal } from "../parts/propose.js";
import { reasonHeader } from "./config.js";

export default function Edit({ parts: [, name, , config] }) {
  const loaded = useLoad(async (signal) => {
    const schema = (await get(`${definitionPath(name)}/schema`, [], { signal })).exact.get("json_schema");
    const from = config ?? route.value.query.get("from");
    const key = config ?? route.value.query.get("collected");
    // What was collected goes on from what was there then: a change of others since is put together with it.
    const mine = key === null ? undefined : collected(name, key);
    const proposed = mine?.data;
    if (!from) return { schema, data: initial(schema ?? ANY, schema ?? ANY), etag: null, key, proposed };
    const record = await get(configPath(name, from), [], { signal });
    const hidden = hiddenPlaces(record);
    if (proposed && config) return { schema, data: mine.before, hidden, etag: `"${mine.revision}"`, proposed };
    return { schema, data: markedData(record, schema), hidden, etag: config ? record.etag : null };
  }, [name, config]);
  // What is loaded again, as after a new key, must not take away what was typed.
  const first = useRef(null);
  first.current ??= loaded.data ?? null;
  return html`<${Crumbs} items=${[{ text: "Definitions", href: "#/" }, { text: name, href: href(["d", name]) },
      ...(config ? [{ text: config, href: href(["d", name, "c", config]) }, { text: "Edit" }] : [{ text: "New config" }])]} />
    <${Loaded} of=${first.current ? { data: first.current } : loaded} what="the config">${first.current && html`<${Editing} name=${name} config=${config} start=${first.current} />`}</${Loaded}>`;
}

/** The data of an answer, with a marker for each value that the key may not see. */
function markedData(record, schema) {
  const hidden = hiddenPlaces(record);
  const data = keeping(record.exact.get("data"), hidden);
  return hidden.more ? keepingUnnamed(schema ?? ANY, data) : data;
}

function Editing({ name, config, start }) {
  const [base, setBase] = useState({ data: start.data instanceof Map ? start.data : new Map(), etag: start.etag });
  // `text` is null until it follows `value`.
  const [{ value, text, wrong }, setDoc] = useState(() => ({ value: start.proposed ?? base.data, text: print(start.proposed ?? base.data) }));
  const [key, setKey] = useState(config ?? start.key ?? "");
  const [reason, setReason] = useState("");
  const [dry, setDry] = useState({});
  const [other, setOther] = useState(null);
  const [merging, setMerging] = useState(null);
  const root = start.schema ?? ANY;
  const isSecret = (data) => masked(root, data) !== data;
  const [isCovered, setCovered] = useState(() => (start.hidden !== undefined || start.proposed !== undefined) && isSecret(value));
  const write = useWrite();
  const lastText = useRef(text);
  lastText.current = text ?? lastText.current;
  const form = useRef({ root, turn: 0, wanted: null, change: (path, item) => setDoc((old) => ({ value: put(old.value, path, item), text: null })) }).current;
  /** Takes a value from elsewhere than the form. */
  const take = (doc) => { form.turn += 1; setDoc(doc); };
  const catchUp = () => setDoc((old) => (old.text === null ? { ...old, text: print(old.value) } : old));
  useLayoutEffect(() => {
    if (text !== null) return undefined;
    const timer = setTimeout(catchUp, 50 + lastText.current.length / 1000);
    return () => clearTimeout(timer);
  }, [value, text]);
  function typed(newText) {
    try {
      const shared = share(value, parse(newText));
      take({ value: hasMarkers(base.data) ? placed(root, value, shared) : shared, text: newText });
    } catch (error) {
      if (!(error instanceof JsonError)) throw error;
      take({ value, text: newText, wrong: error });
    }
  }
  const isNew = config === undefined;
  const propose = useProposal([name], "write");
  const dirty = useMemo(() => Boolean(wrong) || !identical(value, base.data), [value, wrong, base.data]) || (isNew && key !== "");
  useEffect(() => { unsaved.value = dirty ? "What you have changed is not saved." : ""; return () => { unsaved.value = ""; }; }, [dirty]);
  const request = {
    method: isNew ? "POST" : "PUT",
    path: isNew ? `${definitionPath(name)}/config/` : configPath(name, config),
    headers: { ...(isNew ? {} : { "If-Match": base.etag }), ...reasonHeader(reason) },
  };
  const written = (indent) => ({ ...request, body: isNew ? `{"config_key":${JSON.stringify(key)},"data":${print(value, indent)}}` : `{"data":${print(value, indent)}}` });
  /** Whether a secret value would go to another element; it is said then, and nothing is to be sent. */
  function isStrayed() {
    const items = strayed(root, base.data, value).map((path) => ({ loc: ["data", ...path], msg: STRAYED }));
    if (items.length) setDry({ error: new Refusal({ status: 422, items, requestId: null, write: false }) });
    return items.length > 0;
  }
  useDebounced(async (signal) => {
    if (wrong || (isNew && !key)) { setDry({}); return false; }
    if (isStrayed()) return false;
    // A dry run would be refused as the write is: the node checks a change request when it is made.
    if (propose.isOnly) { setDry({}); return false; }
    setDry((old) => ({ ...old, busy: true }));
    try {
      await dryRun(request.method, request.path, { ...written(0), signal });
      setDry({ fits: true });
    } catch (error) {
      if (error.name === "AbortError") return false;
      setDry({ error });
      // Somebody who types is not interrupted: the bar says it, and the dialog opens when it is asked for or at the save.
      if (error.status === 412) setOther((old) => old ?? { by: null, revision: Infinity });
      return isUnanswered(error);
    }
    return false;
  }, [value, wrong, key, base.etag, propose.isOnly], 300);
  useEffect(() => {
    if (isNew) return undefined;
    const stop = new AbortController();
    follow([["definition", name], ["config_key", config]], {
      change(event) {
        const item = event.changes.find((change) => change.config_key === config);
        if (item && `"${event.revision}"` !== saved.current) setOther({ by: event.by, deleted: item.type === "config_deleted", revision: event.revision });
      },
      state() {}, gone() {}, refused() {},
    }, stop.signal);
    return () => stop.abort();
  }, [name, config]);
  const saved = useRef(null);
  /** Reads what the config is now, and lays it beside what was there before and what is here. */
  async function meet() {
    try {
      const now = await get(configPath(name, config), []);
      if (now.etag === base.etag) { setOther(null); return; }
      setMerging({ theirs: markedData(now, start.schema), etag: now.etag });
    } catch (error) {
      if (error.status === undefined) throw error;
      setMerging({ error });
    }
  }
  const proposal = () => ({
    title: reason.trim() || `${isNew ? "create" : "change"} ${name} / ${isNew ? key : config}`, isSecret: () => isSecret(value),
    operations: [onConfig(isNew ? "create_config" : "put_config", name, isNew ? key : config, [["data", print(value, 0)]], isNew ? undefined : base.etag)],
    onRefused: (error) => setDry({ error: ofOperation(error) }),
  });
  async function save() {
    if (wrong || write.busy || (isNew ? !key : !dirty) || isStrayed()) return;
    if (propose.isOnly) { propose.ask(proposal()); return; }
    await write.run(request.method, request.path, written(0), (answer) => {
      saved.current = answer.etag;
      unsaved.value = "";
      say(isNew ? `${key} is created` : `${config} is saved as revision ${answer.etag?.replaceAll('"', "") ?? ""}`);
      go(["d", name, "c", isNew ? key : config]);
    });
  }
  /** Keeps the change for later, to be made with others as one. */
  function add() {
    if (isStrayed()) return;
    collect({ op: isNew ? "create_config" : "put_config", definition: name, key: isNew ? key : config, data: value,
      before: isNew ? undefined : base.data, schema: start.schema, revision: isNew ? null : Number(base.etag.replaceAll('"', "")) });
    unsaved.value = "";
    say("Added to the change set");
    go(["together"]);
  }
  useEffect(() => { if (write.error?.status === 412) meet(); }, [write.error]);
  useEffect(() => {
    const onKey = (event) => { if ((event.ctrlKey || event.metaKey) && event.key === "s") { event.preventDefault(); save(); } };
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  });
  const errors = useMemo(() => (dry.error?.items ?? []).filter((item) => item.loc?.[0] === "data").map((item) => ({ path: item.loc.slice(1), message: item.msg })), [dry.error]);
  const problems = useMemo(() => {
    if (wrong) return [{ from: wrong.at, to: wrong.at + 1, message: wrong.message }];
    if (text === null || errors.length === 0) return [];
    const found = locate(text, errors.map((error) => error.path));
    return errors.map(({ path, message }, i) => ({ from: found[i][0], to: path.length ? found[i][1] : found[i][0] + 1, message }));
  }, [text, errors, wrong]);
  const elsewhere = dry.error && dry.error.status !== 412 && errors.length < dry.error.items.length ? dry.error : null;
  const state = wrong ? ["bad", `No JSON: ${wrong.message}`] : dry.busy ? ["", "Checking…"] : !dirty ? ["", "Nothing is changed yet"] : dry.fits ? ["good", "The node would take it"]
    : errors.length ? ["bad", `${errors.length} ${errors.length === 1 ? "place breaks" : "places break"} the schema`] : dry.error?.status === 412 ? ["bad", "It was changed meanwhile"] : isUnanswered(dry.error) ? UNCHECKED : dry.error ? ["bad", "The node would not take it"] : ["", isNew && !key ? "It needs a key" : propose.isOnly ? "The node checks it when you propose it" : ""];
  const isIdle = write.busy || Boolean(wrong) || (isNew ? !key : !dirty);
  return html`<div class="title"><h1>${isNew ? "New config" : `Edit ${config}`}</h1><span class=${`state ${state[0]}`} role="status">${state[1]}</span><span class="grow"></span>
      <${CopyAs} isSecret=${() => isSecret(value)} requests=${() => [{ label: isNew ? "Create it" : "Save it", ...written(2) }, { label: "Try it (dry run)", ...written(2), query: [["dry_run", "true"]] }]} />
      <button onClick=${() => setDoc({ value, text: print(value) })} disabled=${Boolean(wrong) || text === null} title="Indents the JSON; no value changes">Format the JSON</button>
      <a class="button" href=${isNew ? href(["d", name]) : href(["d", name, "c", config])}>Cancel</a>
      <button disabled=${isIdle} title="Collects this change, to make several at once" onClick=${add}>Add to the change set</button>
      ${propose.isOnly ? "" : html`<${ProposeButton} of=${{ ...propose, ask: (what) => { if (!isStrayed()) propose.ask(what); } }} proposal=${proposal} disabled=${isIdle} />`}
      <button class="primary" disabled=${isIdle} onClick=${save}>${propose.isOnly ? "Propose…" : write.busy ? "Saving…" : "Save"}</button></div>
    <${Frozen} name=${name} />${isNew ? "" : html`<${Rolling} name=${name} config=${config} />`}
    ${other && !merging && other.revision > Number(base.etag?.replaceAll('"', "")) ? html`<div class="banner warn" role="alert"><strong>${other.deleted ? "Deleted" : "Changed"} by ${other.by ? html`<${By} of=${other.by} />` : "somebody"} while you edit</strong>${Number.isFinite(other.revision) ? ` (revision ${other.revision})` : null}.
      ${write.error?.unknown ? " It may be your own, whose outcome is unknown." : other.deleted ? " Saving would not bring it back: its history does." : html` <button onClick=${meet}>Put both together</button>`}</div>` : null}
    ${write.error?.status === 412 ? null : html`<${Problem} error=${write.error} again=${write.again} />`}
    ${elsewhere?.message === write.error?.message ? null : html`<${Problem} error=${elsewhere} />`}
    ${propose.isOnly ? null : html`<${Offer} error=${[write.error, dry.error].find(isForEnvironment)} proposal=${proposal} of=${propose} />`}${propose.dialog}
    ${merging?.error ? html`<${Problem} error=${merging.error} />` : null}
    ${merging && !merging.error ? html`<${Merge} schema=${start.schema} base=${base.data} mine=${value} theirs=${merging.theirs} by=${other?.by && nameOf(other.by)} onClose=${() => setMerging(null)}
      onUse=${(result) => { if (isSecret(result) && !isSecret(value)) setCovered(true); setBase({ data: merging.theirs, etag: merging.etag }); take({ value: result, text: null }); setMerging(null); setOther(null); write.clear(); setDry({}); if (same(result, merging.theirs)) say("What is there now is what you wanted: nothing to save"); }} />` : null}
    ${start.hidden?.paths.length ? html`<p class="banner warn">Your key may not see the secret values at <b>${hiddenText(start.hidden)}</b>. ${isNew ? "A new config needs values of its own there." : "They stay as they are unless you replace them."}</p>` : null}
    <div class="bar spaced">
      ${isNew ? html`<${Field} label="Key" hint="1 to 255 of A-Z a-z 0-9 _ . ~ -"><input required value=${key} autocomplete="off" spellcheck=${false} onInput=${(event) => setKey(event.target.value.trim())} /></${Field}>` : null}
      <${Field} label="Reason" hint=${propose.isOnly ? TITLED : "Stored in the history"}><input value=${reason} maxlength="300" onInput=${(event) => setReason(event.target.value)} /></${Field}></div>
    <div class="split"><section aria-label="Form"><h2>Form</h2><fieldset class="plain" disabled=${Boolean(wrong)}>${wrong ? html`<p class="muted">The form waits until the JSON is whole again.</p>` : null}
        <${Form} form=${form} value=${value} errors=${errors} /></fieldset></section>
      <section aria-label="JSON editor" onFocusIn=${catchUp}><h2>JSON</h2>${isCovered
        ? html`<div class="empty"><p>The JSON has secret values.</p><button type="button" onClick=${() => setCovered(false)}>Show the JSON</button></div>`
        : html`<${Editor} text=${lastText.current} onText=${typed} problems=${problems} label="Data of the config as JSON" onSave=${() => save()} />`}</section></div>`;
}
