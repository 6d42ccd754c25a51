// When a change request is applied, and taken back: the fields of a form, and what of a request they are.
import { html, useState } from "../vendor/preact.js";
import { duration } from "../lib/format.js";
import { Field } from "./ui.js";

/** Times after which the cluster takes a change back, in seconds. */
const BACK = [900, 3600, 7200, 14400, 86400, 259200, 604800];
const utc = (text) => `${text.length === 16 ? `${text}:00` : text}Z`;

/** The members of a change request that say when it is applied and taken back. */
export function timingOf({ apply, from, until, back }) {
  return {
    ...(apply === "manual" ? {} : { apply }),
    ...(from ? { schedule: { not_before: utc(from), ...(until ? { not_after: utc(until) } : {}) } } : {}),
    ...(back ? { revert_after_s: Number(back) } : {}),
  };
}

/** The fields of what was sent; a time to the second. */
export const fieldsOf = ({ apply, schedule, revert_after_s: back }) => ({ apply, from: schedule?.not_before.slice(0, 19) ?? "", until: schedule?.not_after.slice(0, 19) ?? "", back: back === null ? "" : String(back) });

export function Timing({ when, setWhen, isOfConfigs }) {
  const lengths = [...new Set([...BACK, ...(when.back ? [Number(when.back)] : [])])].sort((a, b) => a - b);
  // What is set is shown; afterwards the person opens and closes it.
  const [isOpen] = useState(when.apply !== "manual" || Boolean(when.from || when.back));
  return html`<details open=${isOpen}><summary>When it is applied, and taken back</summary>
    <${Field} label="Who applies it"><select value=${when.apply} onChange=${(event) => setWhen({ ...when, apply: event.target.value })}><option value="manual">a person</option><option value="when_approved">the cluster, once it is approved</option></select></${Field}>
    <${Field} label="Not before (UTC)" hint="It is applied at no earlier time; a person can leave it to the cluster before"><input type="datetime-local" value=${when.from} onInput=${(event) => setWhen({ ...when, from: event.target.value })} /></${Field}>
    ${when.from ? html`<${Field} label="Not after (UTC)" hint="An hour later unless given"><input type="datetime-local" value=${when.until} onInput=${(event) => setWhen({ ...when, until: event.target.value })} /></${Field}>` : ""}
    ${isOfConfigs ? html`<${Field} label="Take it back after" hint="The cluster then gives its configs back the data that they had"><select value=${when.back} onChange=${(event) => setWhen({ ...when, back: event.target.value })}><option value="">never</option>${lengths.map((seconds) => html`<option value=${seconds}>${duration(seconds)}</option>`)}</select></${Field}>` : ""}</details>`;
}
