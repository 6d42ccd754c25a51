// The readers of a config: the programs that follow it now, on all nodes, and how they run with it. It is looked at now and
// then, as no event tells of readers. A cluster that does not list them yet shows nothing here.
import { html, useEffect } from "../vendor/preact.js";
import { href, session } from "../lib/state.js";
import { configPath, get } from "../lib/api.js";
import { count, escaped } from "../lib/format.js";
import { Loaded, Time, useLoad } from "./ui.js";

/** Until it is looked at again, in milliseconds. */
const AGAIN = 10000;
/** The most readers that are shown: failed ones come first. */
const SHOWN = 100;
const STATES = { healthy: "yes", failed: "no", unknown: "muted" };

export function Readers({ name, config }) {
  const loaded = useLoad(async (signal) => (await get(`${configPath(name, config)}/readers`, [], { signal })).data, [name, config, session.value]);
  useEffect(() => {
    // A page that nobody looks at asks no node.
    const timer = setInterval(() => { if (!document.hidden) loaded.reload(); }, AGAIN);
    return () => clearInterval(timer);
  }, [name, config, session.value]);
  if ([404, 409].includes(loaded.error?.status)) return null;
  const { results, meta } = loaded.data ?? {};
  return html`<section aria-label="Readers"><h2>Readers</h2><${Loaded} of=${loaded} what="the readers">${results && html`
    <p class="muted">${summary(meta)}</p>
    ${meta.missing_nodes.length ? html`<p class="banner warn">No answer from node ${meta.missing_nodes.join(", ")}: its readers are missing.</p>` : ""}
    ${meta.truncated ? html`<p class="banner warn">There are more readers than are listed.</p>` : ""}
    ${results.length ? html`<div class="scroll" tabindex="0" role="region" aria-label="List of readers"><table class="dense">
      <thead><tr><th>Reader</th><th>State</th><th>Revision</th><th>Node</th><th>Since</th><th>Says</th></tr></thead>
      <tbody>${results.slice(0, SHOWN).map((reader) => html`<tr><td>${escaped(reader.reader)}${labels(reader)}</td><td><span class=${STATES[reader.state]}>${reader.state}</span></td>
        <td>${revision(reader)}</td><td>${reader.node_id ?? "–"}</td><td>${reader.since ? html`<${Time} of=${reader.since} />` : "–"}</td>
        <td class="wrap">${reader.detail ? escaped(reader.detail) : ""}${reader.reported_at ? html` <span class="muted"><${Time} of=${reader.reported_at} /></span>` : ""}</td></tr>`)}</tbody></table></div>` : ""}
    ${results.length > SHOWN ? html`<p class="muted small">${count(results.length - SHOWN, "more reader")} not shown: <code>concord config readers</code> lists all.</p>` : ""}`}</${Loaded}></section>`;
}

function summary({ healthy, failed, watches }) {
  const said = healthy === null ? "no leader says how they run" : `${failed} failed and ${healthy} healthy by their reports of the last minute`;
  return `${count(watches.identified, "watch", "watches")} with a reader; ${said}; ${count(watches.unidentified, "watch", "watches")} without a name.`;
}

function labels(reader) {
  const names = Object.entries(reader.labels).map(([name, value]) => `${name}=${value}`);
  return names.length ? html` <span class="muted">${escaped(names.join(", "))}</span>` : "";
}

function revision({ revision: upto, variant }) {
  if (variant) return html`candidate of <a href=${href(["reviews", variant.change_id])}>${variant.change_id}</a>`;
  return upto ?? "–";
}
