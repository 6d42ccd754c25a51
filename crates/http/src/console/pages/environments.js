// Environments: which there are, how they may be changed, who could approve, when they are frozen and why. A person with the
// right changes their rules here, directly or as a change request; and two environments are compared.
import { html, useEffect, useState } from "../vendor/preact.js";
import { href, lacks, principal } from "../lib/state.js";
import { call, get } from "../lib/api.js";
import { count } from "../lib/format.js";
import { Empty, Loaded, Time, useLoad } from "../parts/ui.js";
import { By } from "../parts/by.js";
import { CopyAs } from "../parts/copyas.js";
import { ENVIRONMENTS } from "../parts/frozen.js";
import { End, Freeze, Remove, Rules, mayChange } from "../parts/rules.js";

/** Until the list is read again, in milliseconds: nothing tells the console of a change of an environment. */
const AGAIN = 30000;
const DIALOGS = { freeze: Freeze, rules: Rules, end: End, remove: Remove };

/** The environments, and what the key may know beside them. */
async function read(signal) {
  const answer = await get(ENVIRONMENTS, [], { signal });
  const all = answer.data.results;
  const [numbers, alarm] = await Promise.all([definitionsOf(all, signal), alarmOf(signal)]);
  return { all, numbers, alarm };
}

/** How many definitions each has, of those that the key may read; empty where that is not told. */
async function definitionsOf(all, signal) {
  const total = async (query) => (await get("/config_definition/", [...query, ["limit", 1]], { signal, once: true })).data.meta.total;
  try {
    const named = all.filter((one) => one.environment !== "default");
    const numbers = new Map(await Promise.all(named.map(async ({ environment: name }) => [name, await total([["definition", `${name}.*`]])])));
    // It has what no other one has.
    if (named.length < all.length) numbers.set("default", (await total([])) - [...numbers.values()].reduce((sum, number) => sum + number, 0));
    return numbers;
  } catch (error) {
    if (error.status === undefined) throw error;
    return new Map();
  }
}

/** What the cluster says of missing approvers, to those who may observe it. It names no environment. */
async function alarmOf(signal) {
  if (lacks("observe")) return null;
  try {
    const { data } = await call("GET", "/cluster", { signal, once: true });
    return data.alarms?.find((alarm) => alarm.type === "approvers_missing") ?? null;
  } catch (error) {
    if (error.status === undefined) throw error;
    return null;
  }
}

/** Whether an environment asks for more approvals than there are persons to give them. Nobody approves a change of their own. */
const isMissing = ({ approvals, approvers }) => approvers !== null && approvers < approvals + 1;

export default function Environments() {
  const [doing, setDoing] = useState(null);
  const list = useLoad(read, [principal.value?.key_id]);
  useEffect(() => {
    const timer = setInterval(() => { if (!document.hidden) list.reload(); }, AGAIN);
    return () => clearInterval(timer);
  }, []);
  const { all, numbers, alarm } = list.data ?? {};
  const done = () => { setDoing(null); list.reload(); };
  const Doing = DIALOGS[doing?.kind];
  return html`<div class="title"><h1>Environments</h1><span class="muted">${all ? count(all.length, "environment") : ""}</span><span class="grow"></span>
      <${CopyAs} requests=${[{ label: "List the environments", method: "GET", path: ENVIRONMENTS }]} />
      <a class="button" href=${href(["compare"])}>Compare…</a>
      ${lacks("define") && lacks("propose") ? "" : html`<button onClick=${() => setDoing({ kind: "rules" })}>New environment…</button>
        <button class="primary" data-key="n" onClick=${() => setDoing({ kind: "freeze" })}>Freeze…</button>`}</div>
    <p class="muted">An environment has the definitions whose keys begin with its name and a dot; <b>default</b> has those of no other one. While it is frozen, nobody changes them or their configs. If direct changes are refused, each change is a change request that others approve.</p>
    <${Loaded} of=${list} what="the environments">${all && html`
      ${alarm && !all.some(isMissing) ? html`<div class="banner warn" role="status"><strong>Approvers are missing:</strong> ${alarm.message}.</div>` : ""}
      ${all.length === 0 ? html`<${Empty} title="There is no environment yet">All definitions may be changed directly. The first freeze of an environment creates it, and so do rules of its own.</${Empty}>`
    : html`<div class="scroll" tabindex="0" role="region" aria-label="Environments"><table class="stacked" role="table"><thead role="rowgroup"><tr role="row">${["Environment", "Definitions", "Direct changes", "Approvals needed", "Freezes"].map((text) => html`<th role="columnheader">${text}</th>`)}<th role="columnheader"><span class="unseen">Actions</span></th></tr></thead>
        <tbody role="rowgroup">${all.map((item) => html`<${Row} key=${item.environment} item=${item} definitions=${numbers.get(item.environment)} onDo=${setDoing} />`)}</tbody></table></div>`}`}</${Loaded}>
    ${Doing ? html`<${Doing} ...${doing} onClose=${() => setDoing(null)} onDone=${done} />` : ""}`;
}

function Row({ item, definitions, onDo }) {
  const { environment: name, approvals, approvers } = item;
  const may = mayChange(name);
  const button = (kind, text, label, more) => html`<button class="quiet" aria-label=${label} onClick=${() => onDo({ kind, item, ...more })}>${text}</button>`;
  return html`<tr role="row"><th role="rowheader" scope="row">${name}</th>
    <td role="cell" data-name="definitions">${definitions === undefined ? html`<span class="muted">–</span>` : name === "default" ? definitions.toLocaleString("en") : html`<a href=${href([], { definition: `${name}.*` })}>${definitions.toLocaleString("en")}</a>`}</td>
    <td role="cell" data-name="direct changes">${item.frozen_until ? html`<div><span class="state bad">frozen until <${Time} of=${item.frozen_until} /></span></div>` : ""}
      ${item.direct === "refuse" ? html`<a href=${href(["reviews"], { view: "open", environment: name })}>by change request only</a>` : item.frozen_until ? "" : html`<span class="state good">allowed</span>`}</td>
    <td role="cell" data-name="approvals needed">${approvals}${isMissing(item) ? html`<div class="error small">${count(approvers, "person")} could approve, and ${approvals + 1} are needed: attest keys with approve and read on ${name === "default" ? "*" : `${name}.*`}</div>` : approvers !== null ? html`<div class="muted small">${count(approvers, "person")} could approve</div>` : ""}</td>
    <td role="cell" data-name=${item.freeze.length ? "freezes" : undefined}>${item.freeze.map((one) => html`<div>${one.active ? html`<span class="tag">now</span> ` : ""}<${Time} of=${one.from} /> <span class="muted">to</span> <${Time} of=${one.until} /> <b class="wrap">${one.reason}</b> <span class="muted">by</span> <${By} of=${one.by} />
      ${may ? button("end", "End…", `End the freeze of ${name}: ${one.reason}`, { one }) : ""}</div>`)}</td>
    <td role="cell" class="actions">${may ? html`${button("rules", "Rules…", `Rules of ${name}`)}${button("freeze", "Freeze…", `Freeze ${name}`)}` : ""}<a class="button quiet" aria-label=${`Compare with ${name}`} href=${href(["compare"], { to: name })}>Compare…</a>
      ${may ? button("remove", "Delete…", `Delete the environment ${name}`, { definitions }) : ""}</td></tr>`;
}
