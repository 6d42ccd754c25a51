// The rules by which the console shows change requests: what state one is in, what it lacks, and what this key may do with
// it. The node decides; here is only what it would say, so that nobody is offered what is refused.
import { lacks, principal } from "./state.js";
import { get, segment } from "./api.js";
import { count, duration } from "./format.js";

export const CHANGES = "/change_request/";
export const changePath = (id) => `${CHANGES}${segment(id)}`;
/** Change requests of one request for a list. */
const PAGE = 100;
/** Pages of one list that are read: as many as hold all that are kept. */
const PAGES_MAX = 60;

/** The names for which a key needs a permission: the definitions, or all that an environment can have. */
const scope = ({ environment, config_definition_keys: keys }) => (environment === null ? keys : [environment === "default" ? "*" : `${environment}.*`]);
export const lacksIn = (verb, change) => scope(change).some((name) => lacks(verb, name));

/** Whether somebody in a change request is the holder of this key. */
export function isMe({ key_id: key, person_id: person }) {
  const me = principal.value;
  return me === null || me.root ? key === "root" : key === me.key_id || (person !== null && person === me.person?.person_id);
}
export const isMine = (change) => change.authors.some(isMe);
/** Whether it can be voted on and applied; `scheduled` is one that is left to the cluster. */
export const isOpen = ({ phase }) => phase === "open" || phase === "scheduled";
export const isPending = (change) => isOpen(change) || change.phase === "held";
/**
 * What this person has said: of an edition, or of what was done by a bypass. An approval that counts no more, as after another
 * attestation of the key, is to be given again.
 */
export const myVote = (change) => (isPending(change) ? [...change.approvals.filter((vote) => vote.counts), ...change.rejections] : change.reviews).find(isMe);

/** Why this key has no vote on any change request; empty if it may have one. */
export function hindrance() {
  const me = principal.value;
  if (me === null || me.root) return "the root key never approves";
  if (!me.person) return "your key is not the key of a person";
  if (!me.attested) return "your key is not attested";
  return lacks("approve") ? "your key has no permission to approve" : "";
}

/** Why this key has no vote on this one. */
export function hindranceIn(change) {
  // Who has taken it back by a bypass does not review that; its authors may.
  if (change.revert?.bypass ? isMe(change.revert.by) : isMine(change)) return "nobody approves or reviews what they did themselves";
  return hindrance() || (lacksIn("approve", change) ? "your key may not approve all of it" : lacksIn("read", change) ? "your key may not read all of it" : "");
}

/** Whether it can go on when this person says what they think. */
export function waitsForMe(change) {
  if (hindranceIn(change) || myVote(change)) return false;
  if (!isOpen(change)) return change.reviews_missing > 0;
  return !change.approved && change.stale === null && change.rejections.length === 0;
}

/** Whether it is for its author to go on with it: to apply, rebase or edit it. What the cluster will do needs nobody. */
export function needsAuthor(change) {
  if (!isPending(change) || !isMine(change)) return false;
  if (change.phase === "held" || change.stale !== null || change.rejections.length > 0) return true;
  return change.phase === "open" && change.apply === "manual" && change.approved;
}

/** What its author can do about it, in a word or two. */
export const nextStep = (change) => (change.phase === "held" || change.stale !== null ? "rebase it" : change.rejections.length ? "edit or withdraw it" : isEarly(change) ? "leave it to the cluster" : "apply it");

export const mayApply = (change) => ["propose", "approve", "write", "define", "delete"].some((verb) => !lacksIn(verb, change));
export const mayEdit = (change) => !lacksIn("propose", change) && !lacksIn("read", change);
export const mayWithdraw = (change) => isMine(change) || !lacksIn("approve", change);

/** Whether its window has not begun yet: to apply it leaves it to the cluster. */
export const isEarly = ({ schedule }) => schedule !== null && Date.now() < Date.parse(schedule.not_before);
/** Whether this person may take it back as one whose approval counted. */
export const mayRevert = (change) => isRevertible(change) && change.applied.approved_by.some(isMe) && !hindrance() && !lacksIn("approve", change) && !lacksIn("read", change);
/** Whether this person may say that the cluster does not take it back. */
export const mayKeep = (change) => mayRevert(change) && change.revert.state !== "possible";
/** Whether this key may take it back by a bypass. */
export const mayBypassRevert = (change) => isRevertible(change) && ["bypass", "write", "read"].every((verb) => !lacksIn(verb, change));
const isRevertible = ({ revert }) => revert !== null && ["possible", "armed", "held"].includes(revert.state);

const REVERTS = { armed: ["good", "applied, to be taken back"], held: ["bad", "applied, not taken back by itself"], kept: ["good", "applied, and kept"], done: ["good", "taken back"], failed: ["bad", "applied, could not be taken back"] };

/** The state in a word or two: [kind, text]. */
export function stateOf(change) {
  const { phase, applied, closed, revert } = change;
  if (change.bypass) return change.reviews_missing ? ["bad", "bypass, not reviewed"] : ["good", "bypass, reviewed"];
  if (revert?.bypass) return change.reviews_missing ? ["bad", "taken back by a bypass, not reviewed"] : ["good", "taken back by a bypass, reviewed"];
  if (phase === "applied" && REVERTS[revert?.state]) return REVERTS[revert.state];
  if (phase === "applied") return ["good", `applied as revision ${applied.revision}`];
  if (phase === "closed") return closed.reason === "failed" ? ["bad", "failed: could not be applied"] : ["", closed.reason];
  if (phase === "held") return ["bad", "held"];
  if (change.stale !== null) return ["bad", "stale"];
  if (change.rejections.length) return ["bad", "rejected"];
  if (!change.approved) return ["", "waits for approval"];
  return phase === "scheduled" || change.apply === "when_approved" ? ["good", "scheduled"] : ["good", "can be applied"];
}

/** What its times mean for who approves or applies it, as sentences: [text, time], with a time after some texts. */
export function timesOf(change) {
  const { apply, schedule, revert_after_s: back } = change;
  if (!isPending(change)) return [];
  return [
    apply === "when_approved" && (schedule ? ["Once enough persons approve it, the cluster applies it, but not before", schedule.not_before] : ["As soon as enough persons approve it, the cluster applies it.", null]),
    apply !== "when_approved" && schedule && ["It is applied not before", schedule.not_before],
    schedule && ["It is not applied after", schedule.not_after],
    back !== null && [`The cluster takes it back ${duration(back)} after it is applied.`, null],
  ].filter(Boolean);
}

/** What it lacks before it can be applied, as sentences. */
export function missing(change) {
  if (change.bypass || change.revert?.bypass) return change.reviews_missing ? [`${count(change.reviews_missing, "person", "persons")} must still review it.`] : [];
  if (!isPending(change)) return [];
  const left = change.approvals_needed - change.approvals_counted;
  return [
    change.phase === "held" ? "It is held since a restore or a recovery: it needs a new edition. Rebase it." : "",
    change.stale === null ? "" : `It is stale: ${change.stale}.`,
    change.rejections.length ? "This edition is rejected. A new edition can be approved." : "",
    left > 0 ? `${count(left, "approval")} of ${change.approvals_needed} ${left === 1 ? "is" : "are"} missing.` : "",
    left > 0 && !change.attested ? "One of them is asked for because the key that sent it is not attested." : "",
  ].filter(Boolean);
}

/** Why an approval does not count; empty if it does. */
export const whyNot = (vote) => (vote.counts ? "" : "the key is revoked, or is no longer attested as it was");

/**
 * Reads lists of change requests one after the other, newest first, until `wanted` are found that `keep` takes, and `pagesMax`
 * pages of each at most. Returns { found, more, pages, revision }: `more` if there may be others, and the revision of the first page.
 */
export async function readChanges(lists, keep, wanted, signal, pagesMax = PAGES_MAX) {
  const found = new Map();
  let [pages, revision] = [0, null];
  for (const query of lists) {
    for (let page = 1; ; page += 1) {
      const answer = await get(CHANGES, [...query, ["page", page], ["limit", PAGE]], { signal, once: true });
      const { data } = answer;
      pages += 1;
      revision ??= answer.revision;
      for (const change of data.results) if (keep(change)) found.set(change.change_id, change);
      const isLast = page * PAGE >= data.meta.total;
      if (isLast) break;
      if (found.size >= wanted || page >= pagesMax) return { found: [...found.values()], more: true, pages, revision };
    }
  }
  return { found: [...found.values()], more: false, pages, revision };
}

/** The lists that have what waits for the vote of a person. */
export const waitingLists = [[["phase", "open"]], [["unreviewed", "true"]]];
