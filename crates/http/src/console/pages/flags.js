// Feature flags: each in a row, each environment in a column. From here a flag is made, or opened.
import { html, useEffect, useState } from "../vendor/preact.js";
import { onConfig } from "../lib/operations.js";
import { go, href, lacks, say } from "../lib/state.js";
import { get, segment } from "../lib/api.js";
import { count } from "../lib/format.js";
import { print } from "../lib/json.js";
import { DEFINITIONS_MAX, SHARED, definitionsOf, environmentOf, newFlag, served } from "../lib/flags.js";
import { follow, recordsOf } from "../lib/watch.js";
import { Confirm, Empty, Field, Loaded, useLoad, useWrite } from "../parts/ui.js";
import { CopyAs } from "../parts/copyas.js";
import { Offer, ProposeButton, TITLED, useProposal } from "../parts/propose.js";
import { reasonHeader } from "./config.js";

/** Definitions that are searched for those of flags. */
const SEARCHED = 1000;

/** The definitions of flags that the key can read. */
export async function readDefinitions(signal) {
  const answer = await get("/config_definition/", [["search", "flags"], ["limit", SEARCHED]], { signal });
  return definitionsOf(answer.data.results.map((one) => one.config_definition_key));
}

/** The flags by their keys, each with its data by definition, all of one revision. */
async function read(signal) {
  const all = await readDefinitions(signal);
  const names = all.slice(0, DEFINITIONS_MAX);
  const flags = new Map();
  if (names.length) {
    const { configs } = await recordsOf(names.map((name) => ["definition", name]), signal);
    for (const config of configs) {
      const key = config.get("config_key");
      if (key === SHARED) continue;
      if (!flags.has(key)) flags.set(key, new Map());
      flags.get(key).set(config.get("config_definition_key"), config.get("data"));
    }
  }
  return { names, more: all.length - names.length, flags: [...flags].sort(([a], [b]) => (a < b ? -1 : 1)) };
}

/** What a flag serves, in a few words. */
export function Served({ data }) {
  if (data === undefined) return html`<span class="muted">–</span>`;
  const { text, kind, hasRule } = served(data);
  return html`<span class=${`state ${kind}`}>${text}</span>${hasRule ? html` <span class="tag" title="Its rule decides first">rule</span>` : ""}`;
}

export default function Flags() {
  const [search, setSearch] = useState("");
  const [making, setMaking] = useState(false);
  const list = useLoad(read, []);
  const { names = [], more, flags } = list.data ?? {};
  useEffect(() => {
    if (names.length === 0) return undefined;
    const stop = new AbortController();
    follow(names.map((name) => ["definition", name]), { change: list.reload, state() {}, gone: list.reload, refused() {} }, stop.signal);
    return () => stop.abort();
  }, [names.join()]);
  const rows = (flags ?? []).filter(([key]) => key.includes(search.trim()));
  const may = names.some((name) => !lacks("propose", name));
  return html`<div class="title"><h1>Flags</h1><span class="muted">${flags ? count(flags.length, "flag") : ""}</span><span class="grow"></span>
      ${names.length ? html`<${CopyAs} requests=${names.map((name) => ({ label: `List ${name}`, method: "GET", path: `/config_definition/${segment(name)}/config/` }))} />` : ""}
      ${may ? html`<button class="primary" data-key="n" onClick=${() => setMaking(true)}>New flag…</button>` : ""}</div>
    <${Loaded} of=${list} what="the flags">${flags && (names.length === 0
      ? html`<${Empty} title="There is no definition of flags yet">The configs of the definition <b>flags</b>, or <b>prod.flags</b> for the environment <b>prod</b>, are feature flags. ${lacks("define") ? "" : html`<a href=${href(["new"])}>Create one.</a>`}</${Empty}>`
      : html`<div class="bar"><input type="search" aria-label="Search flags by key" placeholder="Search by key" value=${search} onInput=${(event) => setSearch(event.target.value)} />
          ${more ? html`<span class="muted">${count(more, "more definition")} of flags: see <a href="#/">Definitions</a></span>` : ""}</div>
        ${rows.length === 0 ? html`<${Empty} title=${flags.length ? "No flag fits" : "There is no flag yet"}>${flags.length ? html`<button onClick=${() => setSearch("")}>Show all</button>` : "A flag turns a feature on and off for a program, without a release of it."}</${Empty}>`
        : html`<div class="scroll" tabindex="0" role="region" aria-label="Flags"><table class="stacked" role="table"><thead role="rowgroup"><tr role="row"><th role="columnheader">Flag</th>${names.map((name) => html`<th role="columnheader" title=${name}>${environmentOf(name)}</th>`)}</tr></thead>
          <tbody role="rowgroup">${rows.map(([key, found]) => html`<tr role="row" key=${key}><th role="rowheader" scope="row"><a href=${href(["flags", names.find((name) => found.has(name)), key])}>${key}</a></th>
            ${names.map((name) => html`<td role="cell" data-name=${environmentOf(name)}>${found.has(name) ? html`<a class="bare" href=${href(["flags", name, key])}><span class="unseen">${`${key} in ${environmentOf(name)}: `}</span><${Served} data=${found.get(name)} /></a>` : html`<${Served} />`}</td>`)}</tr>`)}</tbody></table></div>`}`)}</${Loaded}>
    ${making ? html`<${NewFlag} names=${names} onClose=${() => setMaking(false)} />` : ""}`;
}

/** A new boolean flag, in the environments that are chosen: one batch, or one change request. */
export function NewFlag({ names, flag = "", chosen = names, onClose, onDone }) {
  const [key, setKey] = useState(flag);
  const [picked, setPicked] = useState(chosen);
  const [isOn, setOn] = useState(false);
  const [reason, setReason] = useState("");
  const write = useWrite();
  const propose = useProposal(picked, "write");
  const operations = picked.map((name) => onConfig("create_config", name, key, [["data", print(newFlag(isOn), 0)]]));
  const isIdle = !key || picked.length === 0;
  const proposal = () => ({ title: reason.trim() || `create the flag ${key}`, operations });
  const done = () => { say(`The flag ${key} is created`); (onDone ?? (() => go(["flags", picked[0], key])))(); };
  const confirm = () => {
    if (isIdle) return;
    if (propose.isOnly) propose.ask(proposal());
    else write.run("POST", "/batch", { headers: reasonHeader(reason), body: `{"operations":[\n${operations.join(",\n")}\n]}` }, done);
  };
  if (propose.dialog) return propose.dialog;
  const toggle = (name) => setPicked(names.filter((other) => (other === name ? !picked.includes(name) : picked.includes(other))));
  return html`<${Confirm} title="New flag" action=${propose.isOnly ? "Propose…" : "Create it"} write=${write} onClose=${onClose} onConfirm=${confirm}
    beside=${propose.isOnly || isIdle ? null : html`<${ProposeButton} of=${propose} proposal=${proposal} />`}>
    <${Field} label="Key" hint="The name that programs use: A-Z a-z 0-9 _ . ~ -"><input required value=${key} disabled=${flag !== ""} autocomplete="off" spellcheck=${false} onInput=${(event) => setKey(event.target.value.trim())} /></${Field}>
    <fieldset><legend>Environments</legend>${names.map((name) => html`<label class="check line"><input type="checkbox" checked=${picked.includes(name)} onChange=${() => toggle(name)} /> ${environmentOf(name)} <span class="muted small">${name}</span></label>`)}
      ${picked.length ? "" : html`<p class="error small">Choose one at least.</p>`}</fieldset>
    <fieldset><legend>For everybody</legend><label class="check line"><input type="radio" name="on" checked=${!isOn} onChange=${() => setOn(false)} /> off</label>
      <label class="check line"><input type="radio" name="on" checked=${isOn} onChange=${() => setOn(true)} /> on</label></fieldset>
    <${Field} label="Reason" hint=${propose.isOnly ? TITLED : "Stored in the history"}><input value=${reason} maxlength="300" onInput=${(event) => setReason(event.target.value)} /></${Field}>
    <${Offer} error=${write.error} proposal=${proposal} of=${propose} />
  </${Confirm}>`;
}
