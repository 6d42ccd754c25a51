// What a change request changed when it was applied, from the history: each record before and after.
import { html, useState } from "../vendor/preact.js";
import { href } from "../lib/state.js";
import { get } from "../lib/api.js";
import { count, escaped } from "../lib/format.js";
import { print } from "../lib/json.js";
import { schemasFor } from "../lib/schemas.js";
import { Loaded, useLoad } from "./ui.js";
import { Diff } from "./diff.js";

/** Records that are shown before somebody asks for more, and places that are named in a line. */
const [RECORDS, PLACES_MAX] = [25, 20];
/** Definitions that a request for changes may name. */
const NAMED_MAX = 64;
const WORDS = { created: "created", updated: "changed", deleted: "deleted" };

/** The changes of a revision as they are written, and the schemas that say what of them is secret; null when they are compacted. */
async function read(revision, definitions, signal) {
  const named = definitions.length > NAMED_MAX ? [] : definitions.map((name) => ["definition", name]);
  try {
    const answer = await get("/changes", [...named, ["from", revision], ["wait", 0], ["prev", "true"]], { signal });
    const event = answer.status === 304 ? undefined : answer.exact.get("events")[0];
    if (event === undefined || Number(print(event.get("revision"))) !== revision) return { changes: [], schemas: new Map() };
    const changes = event.get("changes");
    return { changes, schemas: await schemasFor(changes.filter((one) => one.has("config_key")).map((one) => one.get("config_definition_key")), signal) };
  } catch (error) {
    if (error.status !== 410) throw error;
    return { isGone: true };
  }
}

export function Applied({ change }) {
  const { revision } = change.applied;
  const [max, setMax] = useState(RECORDS);
  const loaded = useLoad((signal) => read(revision, change.config_definition_keys, signal), [revision]);
  const { changes = [], schemas, isGone } = loaded.data ?? {};
  const rest = changes.length - max;
  return html`<section aria-label="What it changed"><h2>What it changed <span class="muted">${loaded.data && !isGone ? count(changes.length, "record") : ""}</span></h2>
    <p class="muted">At <a href=${href(["watch"], { from: revision })}>revision ${revision}</a>. Later changes are not shown here.</p>
    <${Loaded} of=${loaded} what="what it changed">${isGone ? html`<p class="muted">The changes of this revision are compacted.</p>`
    : loaded.data && changes.length === 0 ? html`<p class="muted">The history of definitions and configs has nothing of it that your key may read.</p>`
      : changes.slice(0, max).map((one, place) => html`<${Changed} key=${place} of=${one} schemas=${schemas} />`)}</${Loaded}>
    ${rest > 0 ? html`<p><b>${count(rest, "more record")} not shown.</b> <button type="button" onClick=${() => setMax(Infinity)}>Show all</button></p>` : ""}</section>`;
}

function Changed({ of, schemas }) {
  const [definition, config, type] = [of.get("config_definition_key"), of.get("config_key"), of.get("type").split("_")[1]];
  const name = config === undefined ? definition : `${definition} / ${config}`;
  const hidden = [...new Set([...(of.get("redacted") ?? []), ...(of.get("prev_redacted") ?? [])])];
  const isUnknown = config !== undefined && type !== "created" && !of.has("prev");
  const number = of.get("count");
  return html`<section class="together" aria-label=${name}><div class="bar"><h3><span class="tag">${WORDS[type] ?? type}</span> <a href=${href(config === undefined ? ["d", definition, "history"] : ["d", definition, "c", config, "history"])}>${name}</a></h3></div>
    ${hidden.length || isUnknown || number !== undefined ? html`<ul class="notes">
      ${hidden.length ? html`<li>Your key may not see ${count(hidden.length, "value")}, nor whether ${hidden.length === 1 ? "it was" : "they were"} changed: ${placesText(hidden)}.</li>` : ""}
      ${isUnknown ? html`<li>What it was before is not known here.</li>` : ""}
      ${number !== undefined ? html`<li>${count(Number(print(number)), "config")} of it ${type === "deleted" ? "went" : "came back"} with it.</li>` : ""}</ul>` : ""}
    ${config === undefined ? html`<p class="muted">Its history shows what was changed.</p>`
    : html`<${Diff} schema=${schemas.get(definition)} from=${of.get("prev") ?? undefined} to=${of.get("data")} label=${`What changed in ${name}`} />`}</section>`;
}

/** Pointers to places that are not shown. */
export const placesText = (pointers) => `${pointers.slice(0, PLACES_MAX).map((one) => escaped(one.replace(/^#/, "")) || "all of it").join(", ")}${pointers.length > PLACES_MAX ? ` and ${pointers.length - PLACES_MAX} more` : ""}`;
