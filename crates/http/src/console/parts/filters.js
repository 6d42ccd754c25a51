// The filters of a list: one chip for each, and a small form to add one. They are those of the interface.
import { html, useState } from "../vendor/preact.js";

export const OPERATORS = [
  ["", "="], ["ne", "≠"], ["gte", "≥"], ["gt", ">"], ["lte", "≤"], ["lt", "<"],
  ["prefix", "begins with"], ["in", "is one of"], ["exists", "exists"],
];
const PARAMETERS = ["page", "limit", "sort_by", "sort_order", "search", "consistency", "max_staleness_ms", "min_revision", "cursor"];

/** The name of a filter's parameter: a field with the name of a parameter is reached as `data.<path>`. */
export const parameter = (path, operator) =>
  `${PARAMETERS.includes(path) ? `data.${path}` : path}${operator ? `[${operator}]` : ""}`;

/** `filters` is a list of [parameter, text]. */
export function Filters({ paths, filters, onChange }) {
  const [adding, setAdding] = useState(false);
  const all = [...paths, "config_key", "created_at", "modified_at"];
  const [path, setPath] = useState(all[0]);
  const [operator, setOperator] = useState("");
  const [text, setText] = useState("");
  function add(event) {
    event.preventDefault();
    onChange([...filters, [parameter(path, operator), text]]);
    setText("");
    setAdding(false);
  }
  const words = (name) => {
    const found = /^(.*?)(?:\[(\w+)\])?$/.exec(name);
    return `${found[1]} ${OPERATORS.find(([id]) => id === (found[2] ?? ""))?.[1] ?? found[2]}`;
  };
  return html`<div class="filters">
    ${filters.map(([name, value], place) => html`<span class="chip">${words(name)} <b>${value || "(empty)"}</b>
      <button aria-label=${`Remove the filter ${words(name)} ${value}`} onClick=${() => onChange(filters.filter((_, i) => i !== place))}>✕</button></span>`)}
    ${adding ? html`<form class="bar" onSubmit=${add}>
      <select aria-label="Field" value=${path} onChange=${(event) => setPath(event.target.value)}>${all.map((name) => html`<option value=${name}>${name}</option>`)}</select>
      <select aria-label="Comparison" value=${operator} onChange=${(event) => { setOperator(event.target.value); if (event.target.value === "exists") setText("true"); }}>
        ${OPERATORS.map(([id, word]) => html`<option value=${id}>${word}</option>`)}</select>
      ${operator === "exists" ? html`<select aria-label="Value" value=${text} onChange=${(event) => setText(event.target.value)}><option>true</option><option>false</option></select>`
        : html`<input aria-label="Value" placeholder=${operator === "in" ? "a,b,c" : path.endsWith("_at") ? "2026-01-31T00:00:00Z" : "value"} value=${text} onInput=${(event) => setText(event.target.value)} autofocus />`}
      <button class="primary">Add</button><button type="button" onClick=${() => setAdding(false)}>Cancel</button></form>`
    : html`<button class="quiet" data-key="f" onClick=${() => { setPath(all[0]); setAdding(true); }}>+ Filter</button>`}
    ${filters.length > 1 ? html`<button class="quiet" onClick=${() => onChange([])}>Clear all</button>` : ""}
  </div>`;
}
