// What a change did: the places with their old and new values, and the text line by line.
import { html, useEffect, useMemo, useState } from "../vendor/preact.js";
import { differences } from "../lib/compare.js";
import { print } from "../lib/json.js";
import { ANY } from "../lib/schema.js";
import { masked } from "../lib/secrets.js";
import { brief, count, pathText } from "../lib/format.js";
import { load } from "./editor.js";

/** Two contents; undefined or null where there is none. `schema` says which of the values are secret. */
export function Diff({ from, to, label, schema }) {
  const [lines, setLines] = useState(false);
  const changes = useMemo(() => differences(from ?? undefined, to ?? undefined), [from, to]);
  if (changes.length === 0) return html`<p class="muted">Nothing differs in the content.</p>`;
  return html`<div class="diff"><div class="bar"><span class="muted">${count(changes.length, "place")} ${changes.length === 1 ? "differs" : "differ"}</span><span class="grow"></span>
      <div class="segments" role="group" aria-label="Show as"><button type="button" aria-pressed=${!lines} onClick=${() => setLines(false)}>Places</button><button type="button" aria-pressed=${lines} onClick=${() => setLines(true)}>Lines</button></div></div>
    ${lines ? html`<${Lines} a=${print(masked(schema ?? ANY, from ?? undefined))} b=${print(masked(schema ?? ANY, to ?? undefined))} label=${label} />`
      : html`<div class="scroll" tabindex="0" role="region" aria-label=${label}><table><thead><tr><th>Place</th><th>Before</th><th>After</th></tr></thead>
        <tbody>${changes.slice(0, 500).map((change) => html`<tr><th scope="row">${pathText(change.path)}</th><td>${value(masked(schema ?? ANY, change.old, change.path), "minus")}</td><td>${value(masked(schema ?? ANY, change.new, change.path), "plus")}</td></tr>`)}</tbody></table></div>`}</div>`;
}

const value = (item, sign) => (item === undefined ? html`<span class="muted">–</span>` : html`<code class=${`wrap ${sign}`}>${brief(item, 400)}</code>`);

/** Unified lines, with three lines around each change. */
function Lines({ a, b, label }) {
  const [cm, setCm] = useState(null);
  const [failed, setFailed] = useState(false);
  useEffect(() => { load().then((module) => setCm(module), () => setFailed(true)); }, []);
  const rows = useMemo(() => (cm ? unified(cm, a, b) : []), [cm, a, b]);
  if (failed) return html`<p class="muted">What compares lines could not be loaded; the places are complete.</p>`;
  if (!cm) return html`<p class="loading">Comparing…</p>`;
  return html`<pre class="code lines" tabindex="0" role="region" aria-label=${label}>${rows.map((row) => html`<div class=${row.kind}><span class="sign" aria-hidden="true">${{ plus: "+", minus: "-" }[row.kind] ?? " "}</span>${row.text}${"\n"}</div>`)}</pre>`;
}

function unified(cm, a, b) {
  const [one, two] = [a, b].map((text) => cm.Text.of(text.split("\n")));
  const chunks = cm.Chunk.build(one, two);
  const rows = [];
  const lines = (text, from, to) => text.slice(from, to).toString().split("\n");
  let done = 0;
  const context = (from, to, isFirst, isLast) => {
    if (to < from) return;
    const all = lines(two, from, to);
    if (all.length <= 7) rows.push(...all.map((text) => ({ text })));
    else {
      if (!isFirst) rows.push(...all.slice(0, 3).map((text) => ({ text })));
      rows.push({ kind: "gap", text: "…" });
      if (!isLast) rows.push(...all.slice(-3).map((text) => ({ text })));
    }
  };
  chunks.forEach((chunk, place) => {
    if (chunk.fromB > done) context(done, Math.min(chunk.fromB - 1, two.length), place === 0, false);
    if (chunk.endA > chunk.fromA || chunk.toA > chunk.fromA) rows.push(...lines(one, chunk.fromA, Math.min(chunk.toA - 1, one.length)).map((text) => ({ kind: "minus", text })));
    if (chunk.toB > chunk.fromB) rows.push(...lines(two, chunk.fromB, Math.min(chunk.toB - 1, two.length)).map((text) => ({ kind: "plus", text })));
    done = chunk.toB;
  });
  if (done <= two.length) context(done, two.length, chunks.length === 0, true);
  return rows;
}
