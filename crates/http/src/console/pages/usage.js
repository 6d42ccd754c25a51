// Who uses the node that answers, and which definitions: access keys and definitions with what they used and store.
import { html, useEffect, useState } from "../vendor/preact.js";
import { href, lacks, members } from "../lib/state.js";
import { get } from "../lib/api.js";
import { bytes, count } from "../lib/format.js";
import { since } from "../lib/usage.js";
import { Empty, Loaded, useLoad } from "../parts/ui.js";
import { CopyAs } from "../parts/copyas.js";

const POLL_MS = 3000;
const PATH = "/cluster/usage";
const ROWS = 20;
const time = (micros) => `${(micros / 1e6).toFixed(3)} s`;
const number = (value) => value.toLocaleString("en");
const signed = (value) => `${value < 0 ? "−" : ""}${bytes(Math.abs(value))}`;
const USED = [["busy_us", "Busy", time], ["requests", "Requests", number], ["bytes_in", "In", bytes], ["bytes_out", "Out", bytes], ["records_read", "Read", number], ["records_written", "Written", number]];
const STORED = [["stored_bytes", "Stored", bytes], ["grown", "Grown", signed], ["configs", "Configs", number]];

export default function Usage() {
  const [first, setFirst] = useState(null);
  const [whole, setWhole] = useState(false);
  const view = useLoad(async (signal) => (await get(PATH, [], { signal })).data, []);
  const data = view.data;
  useEffect(() => {
    const timer = setTimeout(view.reload, POLL_MS);
    return () => clearTimeout(timer);
  }, [view.data, view.error]);
  // Another node, or one that has started again, has other counts.
  useEffect(() => { if (data && (!first || first.node_id !== data.node_id || first.counted_ms > data.counted_ms)) setFirst(data); }, [data]);
  const from = whole ? null : first?.node_id === data?.node_id ? first : data;
  const seconds = data ? Math.round((data.counted_ms - (from?.counted_ms ?? 0)) / 1000) : 0;
  const others = members.value.filter((member) => member.id !== data?.node_id);
  return html`<div class="title"><h1>Usage</h1><span class="muted">of node ${data?.node_id ?? "…"}, in ${count(seconds, "second")}</span><span class="grow"></span>
      <div class="segments" role="group" aria-label="Counted since"><button aria-pressed=${!whole} onClick=${() => setWhole(false)} title="Since this page was opened">Since opened</button><button aria-pressed=${whole} onClick=${() => setWhole(true)} title="Since the node started">Since start</button></div>
      <${CopyAs} requests=${[{ label: "Show the usage", method: "GET", path: PATH }]} /></div>
    <${Loaded} of=${view} what="the usage">${data && html`
      <${Rows} title="Access keys" begin="busy_us" figures=${USED} rows=${since(data.keys, from?.keys, "key_id")} head=${["Key", "Name"]}
        cells=${(row) => html`<td><code>${row.key_id}</code></td><td>${row.name ?? html`<span class="muted">–</span>`}</td>`} />
      <${Rows} title="Definitions" begin=${from ? "grown" : "stored_bytes"} figures=${[...STORED, ...USED]} rows=${since(data.definitions, from?.definitions, "config_definition_key")} head=${["Definition"]}
        cells=${(row) => html`<td>${row.configs === null ? html`${row.config_definition_key} <span class="tag">deleted</span>` : html`<a href=${href(["d", row.config_definition_key])}>${row.config_definition_key}</a>`}</td>`} />
      <p class="muted small">A node counts the requests that it receives.${others.length ? html` The others: ${others.map((member) => html` <a href=${`${location.protocol}//${member.api_addr}/ui/#/usage`} target="_blank" rel="noopener noreferrer">node ${member.id}</a>`)}.` : ""} <code>concord top</code> adds up all nodes.
        ${lacks("observe", "*") && lacks("read", "*") ? " You see the definitions for which your key has a permission, and its own use." : ""}</p>`}</${Loaded}>`;
}

/** A table with the rows that have most of a figure; its buttons choose the figure. */
function Rows({ title, begin, figures, rows, head, cells }) {
  const [chosen, setChosen] = useState(null);
  const by = chosen ?? begin;
  const sorted = rows.filter((row) => figures.some(([name]) => row[name])).sort((one, two) => (two[by] ?? -Infinity) - (one[by] ?? -Infinity) || (two.stored_bytes ?? 0) - (one.stored_bytes ?? 0));
  if (sorted.length === 0) return html`<h2>${title}</h2><${Empty} title="Nothing was used">Leave the page open, or look at what was used since the node started.</${Empty}>`;
  return html`<h2>${title}</h2><div class="scroll" tabindex="0" role="region" aria-label=${title}><table class="dense"><thead><tr>${head.map((text) => html`<th>${text}</th>`)}
      ${figures.map(([name, text]) => html`<th aria-sort=${name === by ? "descending" : undefined}><button class="sort" onClick=${() => setChosen(name)}>${text} <span aria-hidden="true">${name === by ? "▼" : ""}</span></button></th>`)}</tr></thead>
    <tbody>${sorted.slice(0, ROWS).map((row) => html`<tr key=${row.key_id ?? row.config_definition_key}>${cells(row)}${figures.map(([name, , show]) => html`<td>${row[name] === null || row[name] === undefined ? html`<span class="muted">–</span>` : show(row[name])}</td>`)}</tr>`)}</tbody></table></div>
    ${sorted.length > ROWS ? html`<p class="muted small">${count(sorted.length - ROWS, "more row")} not shown.</p>` : ""}`;
}
