// What a change did: the places with their old and new values, and the text line by line.
import { html, useEffect, useMemo, useState } from "../vendor/preact.js";
import { differences } from "../lib/compare.js";
import { Secret, print } from "../lib/json.js";
import { ANY } from "../lib/schema.js";
import { masked } from "../lib/secrets.js";
import { brief, count, escaped, pathText } from "../lib/format.js";
import { load } from "./editor.js";

/** Places that are shown before somebody asks for all. */
const SHOWN_MAX = 500;

/**
 * Two contents, called `names`; undefined or null where there is none. `schema` says which of the values are secret: one, or a
 * list of which each does.
 */
export function Diff({ from, to, label, schema, names = ["Before", "After"] }) {
  const [lines, setLines] = useState(false);
  const [max, setMax] = useState(SHOWN_MAX);
  const changes = useMemo(() => differences(from ?? undefined, to ?? undefined), [from, to]);
  const covered = (item, path) => [schema ?? ANY].flat().reduce((found, one) => (found instanceof Secret ? found : masked(one ?? ANY, found, path)), item);
  if (changes.length === 0) return html`<p class="muted">Nothing differs in the content.</p>`;
  return html`<div class="diff"><div class="bar"><span class="muted">${count(changes.length, "place")} ${changes.length === 1 ? "differs" : "differ"}</span><span class="grow"></span>
      <div class="segments" role="group" aria-label="Show as"><button type="button" aria-pressed=${!lines} onClick=${() => setLines(false)}>Places</button><button type="button" aria-pressed=${lines} onClick=${() => setLines(true)}>Lines</button></div></div>
    ${lines ? html`<${Lines} a=${print(covered(from ?? undefined))} b=${print(covered(to ?? undefined))} label=${label} />`
      : html`<div class="scroll" tabindex="0" role="region" aria-label=${label}><table class="stacked" role="table"><thead role="rowgroup"><tr role="row">${["Place", ...names].map((text) => html`<th role="columnheader">${text}</th>`)}</tr></thead>
        <tbody role="rowgroup">${changes.slice(0, max).map((change) => html`<tr role="row"><th role="rowheader" scope="row">${pathText(change.path)}</th><td role="cell" data-name=${names[0]}>${value(covered(change.old, change.path), "minus")}</td><td role="cell" data-name=${names[1]}>${value(covered(change.new, change.path), "plus")}</td></tr>`)}</tbody></table></div>
        ${changes.length > max ? html`<p><b>${count(changes.length - max, "more place")} not shown.</b> <button type="button" onClick=${() => setMax(Infinity)}>Show all</button></p>` : ""}`}</div>`;
}

const BRIEF = 400;
/** A value; a long one is shortened until somebody asks for the rest. */
const value = (item, sign) => (item === undefined ? html`<span class="muted">–</span>` : html`<${Value} item=${item} sign=${sign} />`);

function Value({ item, sign }) {
  const [whole, setWhole] = useState(false);
  const text = brief(item, whole ? Infinity : BRIEF);
  const isCut = !whole && text.length > BRIEF;
  return html`<code class=${`wrap ${sign}`}>${text}</code>${isCut ? html` <button type="button" class="quiet" onClick=${() => setWhole(true)}>Show the whole value</button>` : ""}`;
}

/** Unified lines, with three lines around each change. */
function Lines({ a, b, label }) {
  const [cm, setCm] = useState(null);
  const [failed, setFailed] = useState(false);
  useEffect(() => { load().then((module) => setCm(module), () => setFailed(true)); }, []);
  const rows = useMemo(() => (cm ? unified(cm, a, b) : []), [cm, a, b]);
  if (failed) return html`<p class="muted">What compares lines could not be loaded; the places are complete.</p>`;
  if (!cm) return html`<p class="loading">Comparing…</p>`;
  return html`<pre class="code lines" tabindex="0" role="region" aria-label=${label}>${rows.map((row) => html`<div class=${row.kind}><span class="sign" aria-hidden="true">${{ plus: "+", minus: "-" }[row.kind] ?? " "}</span>${escaped(row.text)}${"\n"}</div>`)}</pre>`;
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
