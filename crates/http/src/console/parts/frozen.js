// What the environments say of a definition: whether it is frozen, and whether it takes change requests only. They are read
// again and again, as nothing tells the console of a change of them. The node decides; what it refuses is shown where it
// was sent.
import { html, signal, useEffect } from "../vendor/preact.js";
import { href, session } from "../lib/state.js";
import { get } from "../lib/api.js";
import { Time } from "./ui.js";

export const ENVIRONMENTS = "/environment/";
/** Until the environments are read again, in milliseconds. */
const AGAIN = 30000;

/** The environments that the node named last, for the key of the session; null before. */
const known = signal({ session: null, list: null });
/** How many parts of the page look at them. */
let watchers = 0;
let timer = null;
/** When they were asked for last: the parts of one page ask together. */
let asked = 0;
const TOGETHER = 500;

export async function readEnvironments() {
  const own = session.value;
  asked = Date.now();
  try {
    const { data } = await get(ENVIRONMENTS, [], { once: true });
    if (own === session.value) known.value = { session: own, list: data.results };
  } catch (error) {
    // Without an answer nothing new is known: then the answer to a write tells.
    if (error.status === undefined) throw error;
  }
}

/** The environments, kept up to date while a part of the page looks at them; null until they are read. */
export function useEnvironments() {
  useEffect(() => {
    watchers += 1;
    if (watchers === 1) timer = setInterval(() => { if (!document.hidden) readEnvironments(); }, AGAIN);
    return () => {
      watchers -= 1;
      if (watchers === 0) clearInterval(timer);
    };
  }, []);
  useEffect(() => { if (known.value.session !== session.value || Date.now() - asked > TOGETHER) readEnvironments(); }, [session.value]);
  return known.value.session === session.value ? known.value.list : null;
}

/** The environment of a definition: the one that its key names before the first dot, else `default`. */
export function environmentOf(name, environments) {
  const before = name.includes(".") ? name.split(".")[0] : null;
  return environments.find((one) => one.environment === before) ?? environments.find((one) => one.environment === "default");
}

export function Frozen({ name }) {
  const environments = useEnvironments();
  const found = environments ? environmentOf(name, environments) : null;
  if (!found) return null;
  const reasons = found.freeze.filter((one) => one.active).map((one) => one.reason).join("; ");
  return html`${found.frozen_until ? html`<p class="banner warn" role="status"><strong>The environment <a href=${href(["environments"])}>${found.environment}</a> is frozen until <${Time} of=${found.frozen_until} />:</strong> ${reasons}. Changes are refused.</p>` : ""}
    ${found.direct === "refuse" ? html`<p class="muted small">The environment <a href=${href(["environments"])}>${found.environment}</a> takes <a href=${href(["reviews"], { environment: found.environment })}>change requests</a> only.</p>` : ""}`;
}
