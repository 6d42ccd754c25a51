// Tries a flag: who gets which variant, in each environment, as a program would see it. The node evaluates what is stored.
import { html, useEffect, useRef, useState } from "../vendor/preact.js";
import { call, segment } from "../lib/api.js";
import { environmentOf } from "../lib/flags.js";
import { JsonError, parse, print } from "../lib/json.js";
import { plain } from "../lib/format.js";
import { Field, Problem } from "./ui.js";
import { CopyAs } from "./copyas.js";
import { ValueInput } from "./flagrule.js";

/** Generated keys, by default and at most; and evaluations that are sent together. */
const [KEYS, KEYS_MAX, TOGETHER] = [100, 500, 8];
const PROGRAM = "the program's default";
const REASONS = { STATIC: "it has no rule", TARGETING_MATCH: "its rule has selected it", DEFAULT: "its rule selects nothing", DISABLED: "the flag is disabled" };

const request = (name, flag, context) => ({ method: "POST", path: `/flags/${segment(name)}/ofrep/v1/evaluate/flags/${segment(flag)}`, body: `{"context":${print(context, 0)}}` });

/** The response of OFREP, which says as well why there is none. */
async function evaluate(name, flag, context, signal) {
  const { method, path, body } = request(name, flag, context);
  try {
    return parse((await call(method, path, { body, safe: true, signal })).text);
  } catch (error) {
    const found = error.status === undefined ? null : bodyOf(error.message);
    if (!found?.has("errorCode")) throw error;
    if ([400, 404].includes(error.status)) return found;
    error.items = [{ msg: found.get("errorDetails") }];
    throw error;
  }
}

function bodyOf(text) {
  try {
    const body = parse(text);
    return body instanceof Map ? body : null;
  } catch (error) {
    if (!(error instanceof JsonError)) throw error;
    return null;
  }
}

/** Calls `run` with each, some at a time. */
async function each(items, run) {
  const rest = items.slice();
  await Promise.all(Array.from({ length: TOGETHER }, async () => { while (rest.length) await run(rest.shift()); }));
}

/** `version` says of which state of the flag the results are. */
export function FlagTester({ names, flag, version }) {
  const [key, setKey] = useState("");
  const [attributes, setAttributes] = useState([]);
  const [many, setMany] = useState(String(KEYS));
  const [found, setFound] = useState({});
  const stop = useRef(null);
  const number = Number(many);
  const isNumber = Number.isInteger(number) && number >= 1 && number <= KEYS_MAX;
  const isOpen = attributes.some(({ name, value }) => !name || value === undefined);
  const contextOf = (targetingKey) => new Map([...(targetingKey ? [["targetingKey", targetingKey]] : []), ...attributes.map(({ name, value }) => [name, value])]);
  useEffect(() => { setFound({}); return () => stop.current?.abort(); }, [version]);
  /** Runs `work`, which returns what is found. */
  async function run(work) {
    const running = new AbortController();
    stop.current = running;
    setFound({ isBusy: true });
    try {
      const result = await work(running.signal);
      if (!running.signal.aborted) setFound(result);
    } catch (error) {
      if (error.name !== "AbortError") setFound({ error });
      running.abort();
    }
  }
  const one = (signal) => Promise.all(names.map(async (name) => [name, await evaluate(name, flag, contextOf(key), signal)])).then((all) => ({ one: all }));
  async function all(signal) {
    const counts = new Map();
    const keys = Array.from({ length: number }, (_, place) => `user-${place + 1}`);
    await each(names.flatMap((name) => keys.map((user) => [name, user])), async ([name, user]) => {
      const body = await evaluate(name, flag, contextOf(user), signal);
      const variant = body.get("errorCode") ?? (body.get("variant") || PROGRAM);
      if (!counts.has(variant)) counts.set(variant, new Map());
      counts.get(variant).set(name, (counts.get(variant).get(name) ?? 0) + 1);
    });
    return { counts: [...counts].sort(([a], [b]) => (a < b ? -1 : 1)), number };
  }
  const change = (place, what) => setAttributes(attributes.map((old, other) => (other === place ? { ...old, ...what } : old)));
  return html`<section class="part" aria-label="Try it"><div class="title"><h2>Try it</h2><span class="grow"></span><${CopyAs} requests=${() => names.map((name) => ({ label: `Evaluate it in ${environmentOf(name)}`, ...request(name, flag, contextOf(key)) }))} /></div>
    <form onSubmit=${(event) => { event.preventDefault(); run(one); }}>
      <div class="bar spaced"><${Field} label="Targeting key" hint="The user, tenant or device"><input value=${key} spellcheck=${false} autocomplete="off" onInput=${(event) => setKey(event.target.value)} /></${Field}></div>
      ${attributes.map(({ id, name, value }, place) => html`<div class="bar" key=${id} role="group" aria-label=${`Attribute ${place + 1}`}><input class="short" aria-label="Name" placeholder="attribute" spellcheck=${false} autocomplete="off" aria-invalid=${!name} value=${name} onInput=${(event) => change(place, { name: event.target.value.trim() })} />
        <${ValueInput} label="Value" value=${value} onChange=${(next) => change(place, { value: next })} /><button type="button" class="quiet" aria-label=${`Remove attribute ${place + 1}`} onClick=${() => setAttributes(attributes.filter((_, other) => other !== place))}>Remove</button></div>`)}
      <div class="bar"><button type="button" onClick=${() => setAttributes([...attributes, { id: Math.random(), name: "", value: undefined }])}>Add an attribute</button>
        <button class="primary" disabled=${isOpen || found.isBusy}>Evaluate</button><span class="grow"></span>
        <label class="check">Keys <input class="short" type="number" min="1" max=${KEYS_MAX} value=${many} aria-invalid=${!isNumber} onInput=${(event) => setMany(event.target.value)} /></label>
        <button type="button" disabled=${isOpen || !isNumber || found.isBusy} onClick=${() => run(all)}>Who gets what</button></div></form>
    <p class="muted small">The node evaluates what is stored. ${isNumber ? html`<b>Who gets what</b> does so for the targeting keys user-1 to user-${number}, with the same attributes.` : `At most ${KEYS_MAX} keys are tried.`}</p>
    <div role="status">${found.isBusy ? html`<p class="loading">Evaluating…</p>` : ""}</div><${Problem} error=${found.error} />
    ${found.one ? html`<${One} all=${found.one} />` : ""}${found.counts ? html`<${Counts} names=${names} counts=${found.counts} number=${found.number} />` : ""}</section>`;
}

function One({ all }) {
  return html`<div class="scroll" tabindex="0" role="region" aria-label="What is served"><table class="stacked" role="table"><thead role="rowgroup"><tr role="row">${["Environment", "Variant", "Value", "Reason"].map((text) => html`<th role="columnheader">${text}</th>`)}</tr></thead>
    <tbody role="rowgroup">${all.map(([name, body]) => html`<tr role="row" key=${name}><th role="rowheader" scope="row">${environmentOf(name)}</th><td role="cell" data-name="variant">${body.get("variant") || html`<span class="muted">–</span>`}</td>
      <td role="cell" class="wrap" data-name="value">${body.has("value") ? plain(body.get("value")) : body.has("errorCode") ? html`<span class="error">${body.get("errorDetails")}</span>` : html`<span class="muted">${PROGRAM}</span>`}</td>
      <td role="cell" data-name="reason"><code>${body.get("reason") ?? body.get("errorCode")}</code>${REASONS[body.get("reason")] ? html` <span class="muted small">${REASONS[body.get("reason")]}</span>` : ""}</td></tr>`)}</tbody></table></div>`;
}

function Counts({ names, counts, number }) {
  return html`<div class="scroll" tabindex="0" role="region" aria-label="Who gets what"><table class="stacked" role="table"><thead role="rowgroup"><tr role="row"><th role="columnheader">Variant</th>${names.map((name) => html`<th role="columnheader">${environmentOf(name)}</th>`)}</tr></thead>
    <tbody role="rowgroup">${counts.map(([variant, found]) => html`<tr role="row" key=${variant}><th role="rowheader" scope="row">${variant}</th>${names.map((name) => html`<td role="cell" class="number" data-name=${environmentOf(name)}>${found.get(name) ?? 0} <span class="muted small">${Math.round(((found.get(name) ?? 0) * 100) / number)} %</span></td>`)}</tr>`)}</tbody></table></div>`;
}
