// What a change request is called: what state it is in, what it lacks, what comes next; and what this key may do with its rollout.
// Apart from the rules of votes, which each page needs to count what waits.
import { count, duration } from "./format.js";
import { isEarly, isEditable, isMine, isPending, isRolling, lacksIn } from "./reviews.js";

/** Whether this key may pause a rollout, let it go on, and end its stage. */
export const maySteer = (change) => isRolling(change) && !lacksIn("approve", change) && !lacksIn("read", change);
/** Whether this key may take a rollout back: who sees the harm need not wait for an approver. */
export const mayAbort = (change) => isRolling(change) && (isMine(change) || !lacksIn("approve", change) || !lacksIn("write", change));
export const isPaused = (change) => isRolling(change) && Boolean(change.rollout?.status?.paused);

/** Whether its rollout goes on only when this person, who may, does something about it. */
export const needsSteering = (change) => isPaused(change) && (maySteer(change) || mayAbort(change));

/** What its author can do about it, in a word or two. */
export const nextStep = (change) => (isRolling(change) ? (maySteer(change) ? "resume it, or take it back" : "take it back") : change.phase === "held" || change.stale !== null ? "rebase it" : change.rejections.length ? "edit or withdraw it" : isEarly(change) ? "leave it to the cluster" : "apply it");

/** The code of one that the cluster has closed because its rollout failed. */
const ROLLOUT_FAILED = "rollout_failed";
/** Whether the cluster has taken its rollout back. */
export const isTakenBack = ({ closed }) => closed?.error?.code === ROLLOUT_FAILED;
/** How far a rollout that has begun is. */
export const stagePlace = ({ stages, status }) => (typeof status?.stage === "number" ? `stage ${status.stage + 1} of ${stages.length}` : "after its last stage");

const REVERTS = { armed: ["good", "applied, to be taken back"], held: ["bad", "applied, not taken back by itself"], kept: ["good", "applied, and kept"], done: ["good", "taken back"], failed: ["bad", "applied, could not be taken back"] };

/** The state in a word or two: [kind, text]. */
export function stateOf(change) {
  const { phase, applied, closed, revert } = change;
  if (change.bypass) return change.reviews_missing ? ["bad", "bypass, not reviewed"] : ["good", "bypass, reviewed"];
  if (revert?.bypass) return change.reviews_missing ? ["bad", "taken back by a bypass, not reviewed"] : ["good", "taken back by a bypass, reviewed"];
  if (phase === "applied" && REVERTS[revert?.state]) return REVERTS[revert.state];
  if (phase === "applied") return ["good", `applied as revision ${applied.revision}`];
  if (phase === "closed" && isTakenBack(change)) return ["bad", "failed: its rollout was taken back"];
  if (phase === "closed") return closed.reason === "failed" ? ["bad", "failed: could not be applied"] : ["", closed.reason];
  if (phase === "rolling") return [isPaused(change) ? "bad" : "good", `${isPaused(change) ? "rollout paused" : "rolling"}, ${stagePlace(change.rollout)}`];
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
  const isBegun = isRolling(change);
  return [
    !isBegun && apply === "when_approved" && (schedule ? ["Once enough persons approve it, the cluster applies it, but not before", schedule.not_before] : ["As soon as enough persons approve it, the cluster applies it.", null]),
    !isBegun && apply !== "when_approved" && schedule && ["It is applied not before", schedule.not_before],
    !isBegun && schedule && ["It is not applied after", schedule.not_after],
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
