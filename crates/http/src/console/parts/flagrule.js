// The rule of a flag as a form: conditions in their order, and what everybody else gets.
import { html, useState } from "../vendor/preact.js";
import { OPERATORS, typedValue, valueOf } from "../lib/flags.js";

/** The shares that begin with a percentage, in percent. */
const FIRST_SHARE = 10;
const HUNDRED = 100;
let lastId = 0;
/** A form whose conditions are known apart while they are moved. */
export const withIds = (form) => form && { ...form, rules: form.rules.map((rule) => ({ ...rule, id: (lastId += 1) })) };

const sumOf = (shares) => shares.reduce((sum, [, weight]) => sum + weight, 0);
const percent = (weight, sum) => `${sum ? Number(((weight * HUNDRED) / sum).toFixed(2)) : 0} %`;
/** Whether something is missing. */
const isOpen = ({ rules, rest }) => rules.some(({ attribute, value, variant }) => !attribute || value === undefined || !variant)
  || (rest.kind === "share" && (rest.shares.length === 0 || sumOf(rest.shares) === 0)) || (rest.kind === "variant" && !rest.variant);

/** `onChange` is told the form, and whether something in it is missing. */
export function FlagRule({ form, variants, onChange }) {
  const { rules, rest } = form;
  const set = (change) => { const next = { ...form, ...change }; onChange(next, isOpen(next)); };
  // Without a condition, a variant for everybody is the default variant.
  const setRules = (next) => set({ rules: next, rest: next.length === 0 && rest.kind === "variant" ? { kind: "default", isWritten: true } : rest });
  const change = (id, what) => setRules(rules.map((rule) => (rule.id === id ? { ...rule, ...what } : rule)));
  const move = (place, by) => { const next = rules.slice(); next.splice(place + by, 0, ...next.splice(place, 1)); setRules(next); };
  const missing = [...rules.map((rule) => rule.variant), ...(rest.kind === "share" ? rest.shares.map(([variant]) => variant) : rest.kind === "variant" ? [rest.variant] : [])].filter((one) => !variants.includes(one));
  const begin = (kind) => set({ rest: kind === "share" ? { kind, shares: variants.length > 1 ? [[variants[0], FIRST_SHARE], [variants[1], HUNDRED - FIRST_SHARE]] : [[variants[0], HUNDRED]] }
    : kind === "variant" ? { kind, variant: variants[0] } : { kind, isWritten: true } });
  return html`<section class="rule" aria-label="Rule"><h3>Rule</h3>
    ${missing.length ? html`<p class="error">The flag has no variant <b>${missing.join(", ")}</b>: users for whom the rule selects it get an error.</p>` : ""}
    ${rules.length === 0 ? html`<p class="muted">There is no condition: everybody gets what is below.</p>` : ""}
    <ol class="plain">${rules.map((rule, place) => html`<li key=${rule.id}><div class="bar" role="group" aria-label=${`Condition ${place + 1}`}><span class="muted">${place ? "else if" : "if"}</span>
      <input class="short" aria-label="Attribute" placeholder="attribute" spellcheck=${false} autocomplete="off" aria-invalid=${!rule.attribute} value=${rule.attribute} onInput=${(event) => change(rule.id, { attribute: event.target.value.trim() })} />
      <select aria-label="Operator" value=${rule.operator} onChange=${(event) => change(rule.id, { operator: event.target.value, value: fitted(rule, event.target.value) })}>${Object.entries(OPERATORS).map(([operator, [text]]) => html`<option value=${operator}>${text}</option>`)}</select>
      <${ValueInput} key=${OPERATORS[rule.operator][1]} label="Value" value=${rule.value} kind=${OPERATORS[rule.operator][1]} onChange=${(value) => change(rule.id, { value })} />
      <span class="muted">then</span><${VariantSelect} label="Variant" value=${rule.variant} variants=${variants} onChange=${(variant) => change(rule.id, { variant })} />
      <button type="button" class="quiet" aria-label=${`Move condition ${place + 1} up`} disabled=${place === 0} onClick=${() => move(place, -1)}>↑</button><button type="button" class="quiet" aria-label=${`Move condition ${place + 1} down`} disabled=${place === rules.length - 1} onClick=${() => move(place, 1)}>↓</button>
      <button type="button" class="quiet" aria-label=${`Remove condition ${place + 1}`} onClick=${() => setRules(rules.filter((other) => other !== rule))}>Remove</button></div></li>`)}</ol>
    <div class="bar"><button type="button" onClick=${() => setRules([...rules, { id: (lastId += 1), attribute: "", operator: "==", value: undefined, variant: variants[0] }])}>Add a condition</button></div>
    <div class="bar"><label class="check">${rules.length ? "Everybody else gets" : "Everybody gets"} <select value=${rest.kind} onChange=${(event) => begin(event.target.value)}>
      <option value="default">the default variant</option>${rules.length || rest.kind === "variant" ? html`<option value="variant">another variant</option>` : ""}<option value="share">a variant by percentage</option></select></label>
      ${rest.kind === "variant" ? html`<${VariantSelect} label="Variant of everybody else" value=${rest.variant} variants=${variants} onChange=${(variant) => set({ rest: { kind: "variant", variant } })} />` : ""}</div>
    ${rest.kind === "share" ? html`<${Shares} shares=${rest.shares} variants=${variants} onChange=${(shares) => set({ rest: { kind: "share", shares } })} />` : ""}</section>`;
}

/** The value of a condition, as another operator takes it. */
function fitted({ value, operator }, next) {
  const [was, kind] = [OPERATORS[operator][1], OPERATORS[next][1]];
  if (was === kind || value === undefined) return value;
  const one = was === "list" ? value[0] : value;
  return kind === "list" ? [one] : kind === "text" && typeof one !== "string" ? typedValue(one) : one;
}

/** How many of the users get each variant. A slider moves two shares that make a hundred. */
function Shares({ shares, variants, onChange }) {
  const sum = sumOf(shares);
  const change = (place, share) => onChange(shares.map((old, other) => (other === place ? share : old)));
  const slide = (value) => onChange([[shares[0][0], value], [shares[1][0], HUNDRED - value]]);
  return html`<fieldset><legend>Percentage of users</legend>
    ${shares.length === 2 && sum === HUNDRED ? html`<label class="check">${shares[0][0]} <input type="range" min="0" max=${HUNDRED} step="1" aria-label=${`Percentage that gets ${shares[0][0]}`} value=${shares[0][1]} onInput=${(event) => slide(Number(event.target.value))} /> ${shares[1][0]}</label>` : ""}
    ${shares.map(([variant, weight], place) => html`<div class="bar" role="group" aria-label=${`Share ${place + 1}`}><${VariantSelect} label="Variant of the share" value=${variant} variants=${variants} onChange=${(next) => change(place, [next, weight])} />
      <input class="short" type="number" min="0" max="999999999" step="1" aria-label="Weight" value=${weight} onInput=${(event) => { if (/^\d{1,9}$/.test(event.target.value)) change(place, [variant, Number(event.target.value)]); }} /><span class="number">${percent(weight, sum)}</span>
      <button type="button" class="quiet" aria-label=${`Remove share ${place + 1}`} disabled=${shares.length === 1} onClick=${() => onChange(shares.filter((_, other) => other !== place))}>Remove</button></div>`)}
    <div class="bar"><button type="button" onClick=${() => onChange([...shares, [variants[0], 0]])}>Add a share</button></div>
    <p class="muted small">A user, by the targeting key, gets the same variant each time. While the first share grows, those who have its variant keep it.</p></fieldset>`;
}

function VariantSelect({ label, value, variants, onChange }) {
  return html`<select aria-label=${label} value=${value} onChange=${(event) => onChange(event.target.value)}>${variants.includes(value) ? "" : html`<option value=${value}>${value} (missing)</option>`}${variants.map((one) => html`<option value=${one}>${one}</option>`)}</select>`;
}

/** A value that is typed; `onChange` is told undefined while it is none. */
export function ValueInput({ label, value, kind, onChange }) {
  const [text, setText] = useState(value === undefined ? "" : typedValue(value, kind));
  return html`<input aria-label=${label} placeholder=${kind === "list" ? "a, b, c" : "value"} spellcheck=${false} autocomplete="off" aria-invalid=${valueOf(text, kind) === undefined} value=${text}
    onInput=${(event) => { setText(event.target.value); onChange(valueOf(event.target.value, kind)); }} />`;
}
