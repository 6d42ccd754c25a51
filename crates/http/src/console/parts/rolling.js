// Says of a config that a rollout has it. It is looked for now and then, as no event of the config tells of it; what the node
// refuses because of it is shown where it was sent.
import { html, useEffect, useState } from "../vendor/preact.js";
import { href, session } from "../lib/state.js";
import { stagePlace } from "../lib/reviewstate.js";
import { rolloutFinder } from "../lib/rollouts.js";

/** Until it is looked for again, in milliseconds. */
const AGAIN = 15000;

export function Rolling({ name, config }) {
  const [change, setChange] = useState(null);
  useEffect(() => {
    const stop = new AbortController();
    const find = rolloutFinder(name, config);
    setChange(null);
    async function look() {
      if (document.hidden) return;
      try {
        const found = await find(stop.signal);
        if (!stop.signal.aborted) setChange(found);
      } catch (error) {
        // Without an answer nothing new is known.
        if (error.status === undefined && error.name !== "AbortError") throw error;
      }
    }
    look();
    const timer = setInterval(look, AGAIN);
    return () => { clearInterval(timer); stop.abort(); };
  }, [name, config, session.value]);
  if (!change) return null;
  return html`<p class="banner warn" role="status"><strong>A rollout has this config:</strong> <a href=${href(["reviews", change.change_id])}>${change.title}</a>, ${stagePlace(change.rollout)}. Some readers see other data than this page shows. Other changes of it are refused until the rollout ends.</p>`;
}
