// The audit logs of all members as one list: who asked for what, and what was decided. Newest first.
import { html, useEffect, useState } from "../vendor/preact.js";
import { href, route, session, setQuery } from "../lib/state.js";
import { MergedLogs } from "../lib/merged.js";
import { count } from "../lib/format.js";
import { By } from "../parts/by.js";
import { Empty, Problem, Time } from "../parts/ui.js";
import { CopyAs } from "../parts/copyas.js";

const LIMIT = 100;
const FILTERS = [["key", "Key id", "root"], ["definition", "Definition", ""], ["outcome", "Outcome", "ok"], ["since", "Since", "2026-01-31T00:00:00Z"], ["until", "Until", "2026-01-31T00:00:00Z"]];
const SHOWN = ["seq", "time", "log_time", "node", "key", "verb", "method", "route", "definition", "config", "outcome", "status", "address", "dry_run"];

export default function Audit() {
  const query = route.value.query;
  const chosen = FILTERS.map(([name]) => [name, query.get(name) ?? ""]).filter(([, value]) => value);
  const [form, setForm] = useState(Object.fromEntries(chosen));
  const [lines, setLines] = useState([]);
  const [logs, setLogs] = useState(null);
  const [state, setState] = useState({ busy: true });
  const [withDry, setWithDry] = useState(false);
  const seen = withDry ? lines : lines.filter((line) => !line.dry_run);
  const dry = lines.filter((line) => line.dry_run).length;
  async function load(earlier, signal) {
    setState({ busy: true });
    try {
      const all = earlier ?? new MergedLogs(chosen);
      const found = await all.read(LIMIT, signal);
      if (signal?.aborted) return;
      setLines((old) => (earlier ? [...old, ...found] : found));
      setLogs(all);
      setState({});
    } catch (error) {
      if (error.name !== "AbortError") setState({ error });
    }
  }
  useEffect(() => {
    const stop = new AbortController();
    load(null, stop.signal);
    return () => stop.abort();
  }, [JSON.stringify(chosen), session.value]);
  const submit = (event) => { event.preventDefault(); setQuery(Object.fromEntries(Object.entries(form).filter(([, value]) => value))); };
  return html`<div class="title"><h1>Audit</h1><span class="muted">${logs ? `of ${count(logs.logs.length, "node")}` : ""}</span><span class="grow"></span>
      <${CopyAs} requests=${[{ label: "Read the audit log of this node", method: "GET", path: "/audit", query: [...chosen, ["limit", LIMIT]] }]} /><button onClick=${() => load(null)}>Reload</button></div>
    <form class="bar low" onSubmit=${submit}>${FILTERS.map(([name, label, hint]) => html`<label class=${`field small ${hint.length > 12 ? "long" : ""}`}><span>${label}</span><input placeholder=${hint} spellcheck=${false} value=${form[name] ?? ""} onInput=${(event) => setForm({ ...form, [name]: event.target.value.trim() })} /></label>`)}
      <button class="primary">Filter</button>
      <label class="check"><input type="checkbox" checked=${withDry} onChange=${(event) => setWithDry(event.target.checked)} /> Dry runs</label>${chosen.length ? html`<button type="button" onClick=${() => { setForm({}); setQuery({}); }}>Show all</button>` : ""}</form>
    <${Problem} error=${state.error} />
    ${logs?.failed.map(({ node, error }) => html`<div class="banner warn" role="alert" key=${node}><strong>Lines of node ${node} are missing:</strong> ${error.message}</div>`)}
    ${lines.length === 0 ? (state.busy ? html`<p class="loading" role="status">Loading the audit log…</p>` : state.error ? "" : html`<${Empty} title=${chosen.length ? "No line fits" : "The audit log is empty"}>What is written, denied or administered is recorded here.</${Empty}>`)
      : html`<div class="scroll" tabindex="0" role="region" aria-label="Audit log"><table class="dense stacked" role="table"><thead role="rowgroup"><tr role="row">${["Time", "Node", "Line", "Key", "From", "What", "About", "Outcome", "Revision"].map((text) => html`<th role="columnheader">${text}</th>`)}</tr></thead>
        <tbody role="rowgroup">${seen.map((line) => html`<tr role="row" key=${`${line.node} ${line.seq}`}><td role="cell"><${Time} of=${line.time} /></td><td role="cell" data-name="node">${line.node}</td><td role="cell" data-name="line">${line.seq}</td><td role="cell" data-name="key"><${By} of=${line.key} /></td><td role="cell" data-name=${line.address ? "from" : undefined}>${line.address ?? ""}</td>
          <td role="cell">${line.event ? html`<b>${line.event.replaceAll("_", " ")}</b>` : html`${line.verb ? html`<span class="tag">${line.verb}</span> ` : ""}${line.method}${line.dry_run ? html` <span class="tag">dry run</span>` : ""}`}<div class="muted small" title=${line.request_id}>${line.route ?? ""}</div></td><td role="cell"><${About} of=${line} /></td>
          <td role="cell">${line.outcome ? html`<span class=${line.outcome === "ok" ? "good" : "error"}>${line.outcome}</span> <span class="muted small">${line.status ?? ""}</span>` : ""}${line.count ? html`${line.count} times` : ""}</td>
          <td role="cell" data-name=${line.revision_after ? "revision" : undefined}>${line.revision_after ? html`${line.revision_before !== undefined ? `${line.revision_before} → ` : ""}${line.revision_after}` : ""}</td></tr>`)}</tbody></table></div>
        ${dry && !withDry ? html`<p class="muted small">${count(dry, "dry run")} not shown: nothing was stored by ${dry === 1 ? "it" : "them"}.</p>` : ""}
        ${logs?.hasMore ? html`<button disabled=${state.busy} onClick=${() => load(logs)}>Earlier lines</button>` : html`<p class="muted small">These are all lines that are kept.</p>`}`}`;
}

function About({ of }) {
  if (of.definition && of.config) return html`<a href=${href(["d", of.definition, "c", of.config])}>${of.definition} / ${of.config}</a>`;
  if (of.definition) return html`<a href=${href(["d", of.definition])}>${of.definition}</a>`;
  if (of.definitions) return of.definitions.join(", ");
  if (of.id) return html`<code>${of.id}</code>`;
  const rest = Object.entries(of).filter(([name, value]) => !SHOWN.includes(name) && !["prev", "request_id", "event", "count", "revision_before", "revision_after"].includes(name) && value !== null);
  return html`<span class="small">${rest.map(([name, value]) => `${name}: ${typeof value === "object" ? JSON.stringify(value) : value}`).join(", ")}</span>`;
}
