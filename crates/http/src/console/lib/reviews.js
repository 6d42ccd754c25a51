// The rules by which the console shows change requests: who has a vote, what waits for it, and what this key may do. The
// node decides; here is only what it would say, so that nobody is offered what is refused.
import { lacks, principal } from "./state.js";
import { get, segment } from "./api.js";

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
export const isRolling = ({ phase }) => phase === "rolling";
/** Whether it takes a new edition. */
export const isEditable = (change) => isOpen(change) || change.phase === "held";
/** Whether it has not ended yet: its content is there. */
export const isPending = (change) => isEditable(change) || isRolling(change);
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
  if (!isEditable(change) || !isMine(change)) return false;
  if (change.phase === "held" || change.stale !== null || change.rejections.length > 0) return true;
  return change.phase === "open" && change.apply === "manual" && change.approved;
}

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
