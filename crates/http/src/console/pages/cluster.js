// The cluster as the node that answers knows it: leader, members, how far each is, alarms; and the changes of members.
import { html, useEffect, useState } from "../vendor/preact.js";
import { lacks, members, say } from "../lib/state.js";
import { call } from "../lib/api.js";
import { bytes, count } from "../lib/format.js";
import { health } from "../lib/health.js";
import { Confirm, Field, Loaded, useLoad, useWrite } from "../parts/ui.js";
import { CopyAs } from "../parts/copyas.js";

const POLL_MS = 1500;
/** What is measured is asked for less often: it is a long text. */
const HEALTH_POLL_MS = 5000;
const KNOWN = ["cluster_id", "node_id", "leader_id", "term", "revision", "digest", "feature_level", "members", "alarms"];
const MEMBER_KNOWN = ["id", "role", "api_addr", "peer_addr", "lag", "reachable", "last_contact_ms", "version", "feature_level_max", "memory_bytes", "disk_free_bytes", "disk_reserve_bytes"];

export default function Cluster() {
  const view = useLoad(async (signal) => {
    const answer = await call("GET", "/cluster", { signal });
    members.value = answer.data.members;
    return answer.data;
  }, []);
  const [seen, setSeen] = useState([]);
  const [doing, setDoing] = useState(null);
  useEffect(() => {
    const timer = setTimeout(view.reload, POLL_MS);
    return () => clearTimeout(timer);
  }, [view.data, view.error]);
  const data = view.data;
  // The elections since the page was opened.
  useEffect(() => {
    if (!data) return;
    setSeen((old) => (old[0]?.term === data.term && old[0]?.leader === data.leader_id ? old
      : [{ term: data.term, leader: data.leader_id, at: new Date().toISOString() }, ...old].slice(0, 20)));
  }, [data?.term, data?.leader_id]);
  const may = !lacks("cluster");
  const requests = [{ label: "Show the cluster", method: "GET", path: "/cluster", command: "status" },
    { label: "Download a backup", method: "GET", path: "/cluster/backup", output: "concord.backup", command: "backup --out concord.backup" }];
  return html`<div class="title"><h1>Cluster</h1><span class="muted">as node ${data?.node_id ?? "…"} knows it</span><span class="grow"></span>
      <${CopyAs} requests=${requests} />${may ? html`<button onClick=${() => setDoing({ kind: "add" })}>Add a member…</button>` : ""}</div>
    <${Loaded} of=${view} what="the cluster">${data && html`
      ${(data.alarms ?? []).map((alarm) => html`<div class="banner bad" role="alert"><strong>${alarm.type}</strong>${alarm.node_id ? ` on node ${alarm.node_id}` : ""}: ${alarm.message}</div>`)}
      ${data.leader_id === null ? html`<div class="banner warn" role="alert"><strong>No leader.</strong> Nothing can be written until the members have elected one; a majority must be reachable.</div>` : ""}
      <dl class="facts"><div><dt>Leader</dt><dd>${data.leader_id === null ? "none" : `node ${data.leader_id}`}</dd></div><div><dt>Term</dt><dd>${data.term}</dd></div>
        <div><dt>Revision here</dt><dd>${data.revision}</dd></div><div><dt>Alarms</dt><dd>${data.alarms === undefined ? "not told" : data.alarms.length || "none"}</dd></div>
        ${data.feature_level !== undefined ? html`<div><dt>Feature level</dt><dd>${data.feature_level}</dd></div>` : ""}
        <div><dt>Digest</dt><dd><code class="small" title="At equal revisions all nodes have the same">${data.digest}</code></dd></div>
        <div><dt>Cluster id</dt><dd><code class="small">${data.cluster_id ?? "none yet"}</code></dd></div>
        ${Object.entries(data).filter(([name]) => !KNOWN.includes(name)).map(([name, value]) => html`<div><dt>${name.replaceAll("_", " ")}</dt><dd>${typeof value === "object" ? JSON.stringify(value) : String(value)}</dd></div>`)}</dl>
      <${Health} node=${data.node_id} />
      <h2>Members</h2><div class="scroll" tabindex="0" role="region" aria-label="Members"><table><thead><tr><th>Node</th><th>Role</th><th>Lag</th><th>Reachable</th><th>Memory</th><th>Free on its volume</th><th>Address for callers</th><th>Address for nodes</th><th>Version</th>
        ${extras(data).map((name) => html`<th>${name.replaceAll("_", " ")}</th>`)}<th><span class="unseen">Actions</span></th></tr></thead>
        <tbody>${data.members.map((member) => html`<tr key=${member.id}><td><b>${member.id}</b>${member.id === data.node_id ? html` <span class="tag">this one</span>` : ""}</td>
          <td><span class=${`role ${member.role}`}>${member.role}</span></td><td>${lag(member, data)}</td><td>${reachable(member, data)}</td><td>${told(member.memory_bytes)}</td><td>${free(member)}</td>
          <td>${member.id === data.node_id ? html`<code>${member.api_addr}</code>` : html`<a href=${`${location.protocol}//${member.api_addr}/ui/#/cluster`} target="_blank" rel="noopener noreferrer"><code>${member.api_addr}</code></a>`}</td>
          <td><code>${member.peer_addr}</code></td><td>${member.version ?? html`<span class="muted">not told</span>`}${member.feature_level_max ? html` <span class="muted small">level ${member.feature_level_max}</span>` : ""}</td>
          ${extras(data).map((name) => html`<td>${String(member[name] ?? "–")}</td>`)}
          <td class="actions">${may ? html`${member.role === "follower" ? html`<button class="quiet" onClick=${() => setDoing({ kind: "lead", member })}>Make leader…</button>` : ""}
            ${member.role === "learner" ? html`<button class="quiet" onClick=${() => setDoing({ kind: "promote", member })}>Give a vote…</button>` : ""}
            <button class="quiet" onClick=${() => setDoing({ kind: "remove", member })}>Remove…</button>` : ""}</td></tr>`)}</tbody></table></div>
      ${data.leader_id !== null && data.leader_id !== data.node_id ? html`<p class="muted small">How far the others lag, and whether they answer, is known on the leader: open the console of node ${data.leader_id}.</p>` : ""}
      <h2>Leaders since this page was opened</h2><ol class="plain">${seen.map((item) => html`<li><time>${item.at.slice(11, 19)}Z</time> term ${item.term}: ${item.leader === null ? "no leader" : `node ${item.leader}`}</li>`)}</ol>`}</${Loaded}>
    ${doing ? html`<${Change} ...${doing} voters=${data.members.filter((member) => member.role !== "learner").length} onClose=${() => setDoing(null)} onDone=${() => { setDoing(null); view.reload(); }} />` : ""}`;
}

const extras = (data) => [...new Set(data.members.flatMap((member) => Object.keys(member)))].filter((name) => !MEMBER_KNOWN.includes(name));

function lag(member, data) {
  if (member.lag !== null && member.lag !== undefined) return member.lag === 0 ? html`<span class="good">none</span>` : count(member.lag, "entry", "entries");
  return html`<span class="muted">${member.id === data.leader_id ? "leads" : "not known here"}</span>`;
}

function reachable(member, data) {
  if (member.id === data.leader_id || member.reachable === null || member.reachable === undefined) return html`<span class="muted">${member.id === data.leader_id ? "leads" : "not known here"}</span>`;
  const since = member.last_contact_ms === null || member.last_contact_ms === undefined ? "" : html` <span class="muted small">${contact(member.last_contact_ms)}</span>`;
  return member.reachable ? html`<span class="yes">yes</span>${since}` : html`<span class="no">no</span>${since}`;
}

const told = (value) => (value === null || value === undefined ? html`<span class="muted">not told</span>` : bytes(value));

/** What is free on a member's volume. Writes stop below its reserve. */
function free({ disk_free_bytes: left, disk_reserve_bytes: reserve }) {
  return isLow(left, reserve) ? html`<span class="no">${bytes(left)}</span> <span class="muted small">writes stop below ${bytes(reserve)}</span>` : told(left);
}

const isLow = (left, reserve) => typeof left === "number" && typeof reserve === "number" && left < 2 * reserve;

const contact = (ms) => (ms < 1000 ? `${ms} ms ago` : `${Math.round(ms / 1000)} s ago`);

/** The disk and the memory of the node that answers, part by part: of the others, the table of the members has the sums. */
function Health({ node }) {
  const view = useLoad((signal) => health(signal), []);
  useEffect(() => {
    const timer = setTimeout(view.reload, HEALTH_POLL_MS);
    return () => clearTimeout(timer);
  }, [view.data, view.error]);
  const found = view.data;
  if (!found) return view.data === null ? html`<p class="muted small">This node does not tell its disk and memory to this key.</p>` : "";
  return html`<section aria-label=${`Disk and memory of node ${node}`}><h2>Disk and memory of node ${node}</h2>
    <dl class="facts"><div><dt>Memory in use</dt><dd>${size(found.memory)}</dd></div>
      <div><dt>Reserved by requests</dt><dd>${size(found.inFlight)} of ${size(found.inFlightMax)}</dd></div>
      <div><dt>Free on its volume</dt><dd>${isLow(found.free, found.reserve) ? html`<span class="no">${size(found.free)}</span>` : size(found.free)} <span class="muted small">writes stop below ${size(found.reserve)}</span></dd></div>
      ${found.parts.map(([name, value]) => html`<div><dt>Its ${name}</dt><dd>${size(value)}</dd></div>`)}</dl></section>`;
}

const size = (value) => (value === undefined ? "not told" : bytes(value));

function Change({ kind, member, voters, onClose, onDone }) {
  const [form, setForm] = useState({ id: "", api_addr: "", peer_addr: "" });
  const write = useWrite();
  const address = `${form.id}=${form.api_addr}@${form.peer_addr}`;
  const plans = {
    lead: { title: `Make node ${member?.id} the leader?`, action: "Make it leader", done: "Leadership moved", method: "POST", path: "/cluster/leader", body: { id: member?.id }, command: `transfer --to ${member?.id}`,
      text: "The present leader hands over at once; writes wait for some milliseconds." },
    promote: { title: `Give node ${member?.id} a vote?`, action: "Give a vote", done: "It has a vote", method: "POST", path: `/cluster/members/${member?.id}/promote`, body: {}, command: `member promote ${member?.id}`,
      text: `The majority is then ${Math.floor((voters + 1) / 2) + 1} of ${voters + 1}.` },
    remove: { title: `Remove node ${member?.id}?`, action: "Remove it", done: "It is removed", danger: true, method: "DELETE", path: `/cluster/members/${member?.id}`, command: `member remove ${member?.id} --yes`,
      text: `Its id can't be used again. ${member?.role === "learner" ? "" : `The majority is then ${Math.floor((voters - 1) / 2) + 1} of ${voters - 1}.`}` },
    add: { title: "Add a member", action: "Add it", done: "It is added, without a vote yet", method: "POST", path: "/cluster/members", body: { ...form, id: Number(form.id) }, command: `member add ${address}`,
      text: "A running node that belongs to no cluster. It catches up first and gets a vote later." },
  };
  const plan = plans[kind];
  const request = { label: plan.action, method: plan.method, path: plan.path, command: plan.command, ...(plan.body ? { body: JSON.stringify(plan.body) } : {}) };
  const set = (name) => (event) => setForm({ ...form, [name]: event.target.value.trim() });
  const complete = kind !== "add" || (form.id && form.api_addr && form.peer_addr);
  return html`<${Confirm} title=${plan.title} action=${plan.action} danger=${plan.danger} type=${kind === "remove" ? String(member.id) : undefined} write=${write} onClose=${onClose}
    onConfirm=${() => complete && write.run(plan.method, plan.path, { body: request.body, plain: true }, () => { say(plan.done); onDone(); })}>
    <p>${plan.text}</p>
    ${kind === "add" ? html`<${Field} label="Id" hint="A number that no node of this cluster has had"><input inputmode="numeric" required value=${form.id} onInput=${set("id")} /></${Field}>
      <${Field} label="Address for callers"><input required placeholder="node4:8100" value=${form.api_addr} onInput=${set("api_addr")} /></${Field}>
      <${Field} label="Address for nodes"><input required placeholder="node4:8200" value=${form.peer_addr} onInput=${set("peer_addr")} /></${Field}>` : ""}
    <div><${CopyAs} requests=${[request]} /></div></${Confirm}>`;
}
