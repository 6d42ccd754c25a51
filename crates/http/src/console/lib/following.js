// Keeps what a page shows of change requests up to date. It is read again after each of their events; and now and then, because
// no event tells that a record has changed on which one rests, that the key of an approver has ended, or that a freeze begins.
// While the events can't be followed it is read more often instead.
import { follow } from "./watch.js";

/** Until it is read again, in milliseconds, for each request that it takes: after an event, without events, and with them. */
const [SOON, AGAIN, SELDOM] = [200, 4000, 15000];
/** Between two readings because of events, in milliseconds: many events in a row are read together. */
const GAP = 2000;

/**
 * Calls `read` until `signal` is aborted. It returns { revision, pages, again }: of which revision its answer is, how many requests it
 * took, and after how many milliseconds it is read again, where that is not the usual time; or null when it has failed, which it says
 * by itself. `onState` is told "live", "waiting" or "refused"; `concerns` says whether a change of an event does; `again` and
 * `seldom` are for what is read at little cost.
 */
export function keepRead(read, { signal, onState, concerns = () => true, again = AGAIN, seldom = SELDOM }) {
  let [state, pages, timer, isReading, isMissed, isSoon, isFollowing] = ["", 1, null, false, false, false, false];
  let [lastRead, own] = [0, undefined];
  const later = (milliseconds) => { clearTimeout(timer); timer = setTimeout(look, milliseconds); };
  const rest = () => later((own ?? (state === "live" ? seldom : again)) * pages);
  function soon() {
    if (isReading) isMissed = true;
    else if (!isSoon) { isSoon = true; later(Math.max(SOON * pages, GAP - (Date.now() - lastRead))); }
  }
  async function look() {
    if (document.hidden && isFollowing) { isSoon = false; rest(); return; }
    isReading = true;
    const found = await read();
    [isReading, isSoon, lastRead] = [false, false, Date.now()];
    if (signal.aborted) return;
    pages = Math.max(1, found?.pages ?? pages);
    own = found?.again;
    if (found && !isFollowing) begin(found.revision);
    if (isMissed) { isMissed = false; soon(); } else rest();
  }
  /** From the revision that was read first: nothing between is missed. */
  function begin(revision) {
    isFollowing = true;
    let from = revision + 1;
    follow(() => [["change_requests", "true"], ...(from === null ? [] : [["from", from]])], {
      change(event) { if (event.changes.some(concerns)) soon(); },
      state(now) { tell(now); },
      gone() { from = null; soon(); },
      refused() { tell("refused"); },
    }, signal);
  }
  function tell(now) {
    const was = state;
    state = now;
    onState(now);
    // What was changed while nothing was heard comes as events; until then it is read.
    if (was === "live" && !isReading && !isSoon) rest();
  }
  signal.addEventListener("abort", () => clearTimeout(timer), { once: true });
  look();
}

/** What the state of the connection is called. */
export const LIVE = { live: "Live", waiting: "Connecting again…", refused: "Read now and then" };
