// How many change requests wait for the person at the console: counted again and again by the frame of the page, while the tab is seen.
import { signal } from "../vendor/preact.js";
import { key, spoken } from "./state.js";
import { count } from "./format.js";
import { hindrance, readChanges, waitingLists, waitsForMe } from "./reviews.js";

/** Until it is counted again, in milliseconds. */
export const AGAIN = 30000;
/** Counted at most; more are "99+". And pages of each list that are looked at for them. */
const [COUNT_MAX, PAGES_MAX] = [99, 10];
/** The number, and whether there may be more. */
export const waiting = signal({ number: 0, more: false });

let stop = null;

/** Counts now. Without an answer the number stays as it is: the page itself says what is wrong. */
export async function recount() {
  stop?.abort();
  if (!key.value || hindrance()) {
    waiting.value = { number: 0, more: false };
    return;
  }
  const own = stop = new AbortController();
  try {
    const { found, more } = await readChanges(waitingLists, waitsForMe, COUNT_MAX, own.signal, PAGES_MAX);
    if (found.length > waiting.value.number) spoken.value = `${count(found.length, "change request waits", "change requests wait")} for your review`;
    waiting.value = { number: Math.min(found.length, COUNT_MAX), more };
  } catch (error) {
    if (error.name !== "AbortError" && error.status === undefined) throw error;
  }
}
