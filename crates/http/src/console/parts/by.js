// Who made a change: the name of the access key, where this key may see names, and its id where it may not.
import { html, signal, useEffect } from "../vendor/preact.js";
import { lacks, principal, session } from "../lib/state.js";
import { get } from "../lib/api.js";

const LIMIT = 100;
/** Pages of keys that are read for their names. */
const PAGES_MAX = 20;
const ROOT = "root";
const names = signal(new Map());
/** The ids for whose names the keys were read, with the key of the session: a key without a name here may be a new one. */
let asked = { session: null, ids: new Set() };

async function ask(id) {
  if (asked.session !== session.value) asked = { session: session.value, ids: new Set() };
  if (asked.ids.has(id) || names.value.has(id) || id === principal.value?.key_id || !principal.value || lacks("keys")) return;
  asked.ids.add(id);
  await readNames();
}

async function readNames() {
  const found = new Map();
  try {
    for (let page = 1; page <= PAGES_MAX; page += 1) {
      const { data } = await get("/api_key/", [["page", page], ["limit", LIMIT]], { once: true });
      for (const item of data.results) found.set(item.key_id, item.name);
      if (page * LIMIT >= data.meta.total) break;
    }
  } catch (error) {
    if (error.status === undefined) throw error;
    // The id is shown then, which is as true.
    return;
  }
  names.value = found;
}

/** The ids of the access keys with a name; what is the name of none that can be listed is taken as an id. */
export async function idsOf(text) {
  if (text === ROOT) return [ROOT];
  if (!lacks("keys")) await readNames();
  const ids = [...names.value].filter(([id, name]) => name === text && id !== text).map(([id]) => id);
  if (ids.length === 0 && principal.value?.name === text) return [principal.value.key_id];
  return ids.length ? ids : [text];
}

export function nameOf(id) {
  if (id === ROOT) return id;
  return names.value.get(id) ?? (id === principal.value?.key_id ? principal.value.name : id);
}

export function By({ of }) {
  useEffect(() => { if (of && of !== ROOT) ask(of); }, [of, session.value, principal.value]);
  if (!of) return html`<span class="muted">–</span>`;
  const name = nameOf(of);
  return html`<span class="by" title=${name === of ? undefined : of}>${name}</span>`;
}

/** Somebody in a change request: the person, where this key may know them, else the access key. */
export function Party({ of }) {
  if (!of) return html`<span class="muted">the cluster</span>`;
  return of.person ? html`<span class="by" title=${of.key_id}>${of.person}</span>` : html`<${By} of=${of.key_id} />`;
}
