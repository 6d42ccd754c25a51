// A list of changes, newest first: who, when, why; and what one of them did, beside the change before it or what is there
// now.
import { html, useEffect, useState } from "../vendor/preact.js";
import { session } from "../lib/state.js";
import { get } from "../lib/api.js";
import { Empty, Problem, Time } from "./ui.js";
import { By } from "./by.js";
import { Diff } from "./diff.js";
import { JsonView } from "./jsonview.js";

const LIMIT = 25;
const WORDS = { create: "created", update: "changed", delete: "deleted" };

/**
 * `path` of the history; `schema` says which of the values are secret; `children(entry, newest)` is what can be done with
 * the chosen change; `turn` loads it again.
 */
export function History({ path, label, turn, schema, children }) {
  const [entries, setEntries] = useState([]);
  const [more, setMore] = useState({ before: null, end: false, oldest: null });
  const [state, setState] = useState({ busy: true });
  const [chosen, setChosen] = useState(null);
  const [beside, setBeside] = useState("before");
  async function load(before, signal) {
    setState({ busy: true });
    try {
      const answer = await get(path, [["limit", LIMIT], ...(before ? [["before", before]] : [])], { signal });
      const meta = answer.data.meta;
      const found = answer.exact.get("results").map((entry) => Object.fromEntries([...entry].map(([name, value]) => [name, name === "revision" ? Number(value.text) : value])));
      setEntries((old) => (before ? [...old, ...found] : found));
      if (!before) setChosen(found[0]?.revision ?? null);
      setMore({ before: meta.next_before, end: meta.next_before === null, oldest: meta.floor });
      setState({});
    } catch (error) {
      if (error.name !== "AbortError") setState({ error });
    }
  }
  useEffect(() => {
    const stop = new AbortController();
    load(null, stop.signal);
    return () => stop.abort();
  }, [path, turn, session.value]);
  const at = entries.findIndex((entry) => entry.revision === chosen);
  const entry = entries[at];
  const previous = entries[at + 1];
  const other = beside === "now" ? entries[0] : previous;
  if (entries.length === 0) {
    return state.busy ? html`<p class="loading" role="status">Loading the history…</p>`
      : state.error ? html`<${Problem} error=${state.error} />` : html`<${Empty} title="No change is retained">Nothing of this name was written, or it was so long ago that it is compacted.</${Empty}>`;
  }
  return html`<div class="history"><section aria-label=${label}>
      <ol class="changes">${entries.map((item) => html`<li key=${item.revision}><button aria-pressed=${item.revision === chosen} onClick=${() => setChosen(item.revision)}>
        <span class="bar"><b>${item.revision}</b><span class=${`op ${item.operation}`}>${WORDS[item.operation] ?? item.operation}</span><span class="muted">by <${By} of=${item.by} /></span></span>
        <span class="small"><${Time} of=${item.at} /></span>${item.reason ? html`<span class="reason">${item.reason}</span>` : ""}</button></li>`)}</ol>
      ${more.end ? html`<p class="muted small">${more.oldest ? `Changes before revision ${more.oldest} are not retained.` : "This is the first one."}</p>` : html`<button disabled=${state.busy} onClick=${() => load(more.before)}>Earlier changes</button>`}
      <${Problem} error=${state.error} /></section>
    ${entry ? html`<section aria-label="The chosen change"><div class="bar"><h2>Revision ${entry.revision}</h2><span class="grow"></span>
        <div class="segments" role="group" aria-label="Compare with"><button aria-pressed=${beside === "before"} onClick=${() => setBeside("before")}>With the one before</button>
        <button aria-pressed=${beside === "now"} onClick=${() => setBeside("now")}>With the newest</button></div>${children?.(entry, entries[0])}</div>
      ${beside === "before" && !previous && !more.end ? html`<p class="muted">The change before it is on the next page: load earlier changes.</p>`
        : html`<${Diff} schema=${schema} label=${`What revision ${entry.revision} did`} ...${beside === "now" ? { from: entry.data, to: other.data } : { from: other?.data, to: entry.data }} />`}
      ${entry.data ? html`<details><summary>The whole content</summary><${JsonView} value=${entry.data} schema=${schema} /></details>` : ""}</section>` : ""}</div>`;
}
