// The freeze of the environment that a definition belongs to: a line that says so, and until when. The node decides; what it
// refuses is shown where it was sent.
import { html, useEffect } from "../vendor/preact.js";
import { href } from "../lib/state.js";
import { get } from "../lib/api.js";
import { Time, useLoad } from "./ui.js";

export const ENVIRONMENTS = "/environment/";
/** Until the environments are read again, in milliseconds: nothing tells the console of a freeze. */
const AGAIN = 30000;

/** The environment of a definition: the one that its key names before the first dot, else `default`. */
export function environmentOf(name, environments) {
  const before = name.includes(".") ? name.split(".")[0] : null;
  return environments.find((one) => one.environment === before) ?? environments.find((one) => one.environment === "default");
}

/** Without an answer nothing is known of a freeze: then the answer to a write tells. */
function unknown(error) {
  if (error.status === undefined) throw error;
  return null;
}

export function Frozen({ name }) {
  const loaded = useLoad((signal) => get(ENVIRONMENTS, [], { signal, once: true }).catch(unknown), [name]);
  useEffect(() => {
    const timer = setInterval(loaded.reload, AGAIN);
    return () => clearInterval(timer);
  }, [name]);
  const found = loaded.data ? environmentOf(name, loaded.data.data.results) : null;
  if (!found?.frozen_until) return null;
  const reasons = found.freeze.filter((one) => one.active).map((one) => one.reason).join("; ");
  return html`<p class="banner warn" role="status"><strong>The environment <a href=${href(["environments"])}>${found.environment}</a> is frozen until <${Time} of=${found.frozen_until} />:</strong> ${reasons}. Changes are refused.</p>`;
}
