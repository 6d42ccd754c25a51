// The three-way view: what was there, what you made of it, what somebody else made of it. Places that one side has changed
// are taken; where both did, a person chooses.
import { html, useMemo, useState } from "../vendor/preact.js";
import { merged, threeWay } from "../lib/compare.js";
import { ANY } from "../lib/schema.js";
import { masked } from "../lib/secrets.js";
import { brief, count, pathText } from "../lib/format.js";
import { Dialog } from "./ui.js";
import { JsonView } from "./jsonview.js";

/** `schema` says which of the values are secret. */
export function Merge({ base, mine, theirs, by, schema, onUse, onClose }) {
  const places = useMemo(() => threeWay(base, mine, theirs), [base, mine, theirs]);
  const [choices, setChoices] = useState(() => places.map((place) => (place.conflict ? null : place.byMe ? "mine" : "theirs")));
  const open = choices.filter((choice) => choice === null).length;
  const result = merged(theirs, places, choices);
  const choose = (place, choice) => setChoices(choices.map((old, i) => (i === place ? choice : old)));
  const value = (item, path) => (item === undefined ? html`<span class="muted">not there</span>` : html`<code class="wrap">${brief(masked(schema ?? ANY, item, path), 300)}</code>`);
  return html`<${Dialog} title="Somebody has changed it while you edit" onClose=${onClose} wide>
    <p>${by ? `${by} has saved another version.` : "Another version was saved."} ${open ? `${count(open, "place")} ${open === 1 ? "was" : "were"} changed by both: choose.` : "Nothing was changed by both at the same place."}</p>
    <div class="scroll" tabindex="0" role="region" aria-label="Places that differ"><table class="merge"><thead><tr><th>Place</th><th>Before</th><th>Yours</th><th>Theirs</th></tr></thead>
      <tbody>${places.map((place, i) => html`<tr class=${place.conflict && choices[i] === null ? "conflict" : ""}><th scope="row">${pathText(place.path)}</th><td>${value(place.base, place.path)}</td>
        ${["mine", "theirs"].map((side) => html`<td class=${choices[i] === side ? "chosen" : ""}><label class="check"><input type="radio" name=${`place-${i}`} checked=${choices[i] === side}
          aria-label=${`${side === "mine" ? "Yours" : "Theirs"} at ${pathText(place.path)}`} onChange=${() => choose(i, side)} /> ${value(place[side], place.path)}</label></td>`)}</tr>`)}</tbody></table></div>
    <details><summary>The result</summary><${JsonView} value=${result} schema=${schema} label="Result" /></details>
    <footer><button onClick=${() => onUse(theirs)}>Give mine up</button><span class="grow"></span><button onClick=${onClose}>Not now</button>
      <button class="primary" disabled=${open > 0} onClick=${() => onUse(result)}>Go on with the result</button></footer>
  </${Dialog}>`;
}
