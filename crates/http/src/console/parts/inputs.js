// The controls into which a value is typed. Each holds exactly the value that it was given: a control that can't is not used.
// What is typed and is not yet a value stays in the control; a value that comes from elsewhere takes its place.
import { html, useRef, useState } from "../vendor/preact.js";
import { JsonError, Num, parse, print } from "../lib/json.js";
import { hints } from "../lib/format.js";

const NUMBER = /^-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?$/;
/** Rows of a text at most; then it scrolls. */
const ROWS_MAX = 12;
/** Characters that fit into a row, more or less. */
const ROW = 60;

/** The number that a text is, or null. */
export const isNumber = (text) => (typeof text === "string" && NUMBER.test(text) ? new Num(text) : null);

/** What a control holds beside the value: kept while the value is what was typed here, replaced when it is another. */
function useHeld(value, begin) {
  const [, draw] = useState(0);
  const held = useRef(null);
  if (!held.current || held.current.value !== value) held.current = { value, ...begin(value) };
  return [held.current, (change) => { Object.assign(held.current, change); draw((count) => count + 1); }];
}

export function NumberInput({ common, value, onChange }) {
  const [held, hold] = useHeld(value, ({ text }) => ({ text }));
  const isOk = NUMBER.test(held.text);
  function type(text) {
    const number = isNumber(text);
    hold(number ? { text, value: number } : { text });
    if (number) onChange(number);
  }
  return html`<input ...${common} inputmode="decimal" aria-invalid=${!isOk || common["aria-invalid"]} value=${held.text} onInput=${(event) => type(event.target.value)} />
    ${isOk ? null : html`<small class="error">This is no number; ${value.text} is kept.</small>`}`;
}

/** The end of the lines of a text, or null where they end in several ways: a browser's text field makes them all one. */
function lineEnd(text) {
  if (!text.includes("\r")) return "\n";
  return /^(?:[^\r\n]|\r\n)*$/.test(text) ? "\r\n" : null;
}

function rows(text) {
  let count = 1 + Math.floor(text.length / ROW);
  for (let at = text.indexOf("\n"); at >= 0 && count < ROWS_MAX; at = text.indexOf("\n", at + 1)) count += 1;
  return Math.min(count, ROWS_MAX);
}

/** A text. One whose line ends a text field would change is edited as JSON. */
export function TextInput({ common, value, onChange }) {
  const [held, hold] = useHeld(value, (text) => ({ end: lineEnd(text) }));
  const type = (text) => { hold({ value: text, asks: false }); onChange(text); };
  if (held.end === null) {
    return html`<span class="grow"><${Raw} ...${{ common, value, onChange: type }} accepts=${(item) => typeof item === "string"} />
      <small class="muted">as JSON: its lines end in several ways</small></span>`;
  }
  // A key pressed by habit must not put a line end at the end of a name.
  const onKeyDown = (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing || value.includes("\n")) return;
    event.preventDefault();
    hold({ asks: true });
  };
  const seen = hints(value);
  return html`<span class="grow"><textarea ...${common} class="text" rows=${rows(value)} spellcheck=${false} value=${held.end === "\n" ? value : value.replaceAll("\r\n", "\n")} onKeyDown=${onKeyDown}
      onInput=${(event) => type(held.end === "\n" ? event.target.value : event.target.value.replaceAll("\n", held.end))}></textarea>
    ${held.asks ? html`<small class="muted">Shift and Enter begin a new line.</small>` : null}${seen.length ? html`<small class="unusual">${seen.join(", ")}</small>` : null}</span>`;
}

/** Any value as JSON; `accepts` says which. */
export function Raw({ common, value, onChange, accepts = () => true }) {
  const [held, hold] = useHeld(value, (item) => ({ text: print(item), wrong: "" }));
  function type(text) {
    try {
      const item = parse(text);
      if (!accepts(item)) throw new JsonError("a text in double quotes is expected here", 0);
      hold({ text, value: item, wrong: "" });
      onChange(item);
    } catch (error) {
      if (!(error instanceof JsonError)) throw error;
      hold({ text, wrong: error.message });
    }
  }
  return html`<textarea ...${common} class="mono" spellcheck=${false} rows=${rows(held.text)} value=${held.text} onInput=${(event) => type(event.target.value)}></textarea>
    ${held.wrong ? html`<small class="error">${held.wrong}; what was there is kept.</small>` : null}`;
}
