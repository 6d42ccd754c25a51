// What a person does with a change request: a question first, which names the edition that the page shows.
import { html, useEffect, useRef, useState } from "../vendor/preact.js";
import { href } from "../lib/state.js";
import { count } from "../lib/format.js";
import { changePath, isEarly } from "../lib/reviews.js";
import { stagePlace, timesOf } from "../lib/reviewstate.js";
import { whoText } from "../lib/rollouts.js";
import { reasonHeader } from "../pages/config.js";
import { Confirm, Field, Time, useWrite } from "./ui.js";
import { Undo } from "./undo.js";

const ACTS = {
  approve: { title: "Approve it?", action: "Approve", said: "Approved", comment: "What you say to it" },
  reject: { title: "Reject it?", action: "Reject", said: "Rejected", comment: "Why", danger: true },
  review: { title: "Review the bypass?", action: "Review", said: "Reviewed", comment: "What you say to it" },
  apply: { title: "Apply it?", action: "Apply", said: "Applied" },
  rebase: { title: "Rebase it?", action: "Rebase", said: "Rebased" },
  revert: { title: "Take it back?", action: "Take it back", said: "Taken back", danger: true },
  keep: { title: "Keep what it changed?", action: "Keep it", said: "It is kept", comment: "Why" },
  bypass: { title: "Take it back by a bypass?", action: "Take it back", said: "Taken back", comment: "Reason", danger: true },
  pause: { title: "Pause the rollout?", action: "Pause it", said: "The rollout is paused", comment: "Why" },
  resume: { title: "Resume the rollout?", action: "Resume it", said: "The rollout goes on" },
  advance: { title: "End the stage now?", action: "End the stage", said: "The stage is ended" },
  abort: { title: "Take the rollout back?", action: "Take it back", said: "The rollout is taken back", comment: "Why", danger: true },
  withdraw: { title: "Withdraw it?", action: "Withdraw", said: "Withdrawn", comment: "Why", danger: true },
};
/** What is done with a rollout names no edition: none is sent while it rolls. */
const STEERS = ["pause", "resume", "advance", "abort"];
const CONFLICT = 409;

/** Something that is done with the edition that is shown, and with no other one. */
export function Act({ kind, shown, unread, onClose, onDone, onRefused }) {
  const { change, etag } = useRef(shown).current;
  const [comment, setComment] = useState("");
  const write = useWrite();
  if (kind === "undo") return html`<${Undo} revision=${change.applied.revision} onClose=${onClose} />`;
  const act = ACTS[kind];
  const path = `${changePath(change.change_id)}/${kind === "bypass" ? "revert" : kind}`;
  const isSteer = STEERS.includes(kind);
  // The stage that the page shows is ended, and none that has begun meanwhile.
  const named = kind === "advance" ? { stage: change.rollout.status.stage } : isSteer || kind === "withdraw" || kind === "rebase" ? {} : { digest: change.digest };
  const request = kind === "bypass" ? { query: [["bypass", "true"]], headers: reasonHeader(comment), body: JSON.stringify(named) } : kind === "rebase" ? { headers: { "If-Match": etag } } : { body: JSON.stringify({ ...named, ...(comment.trim() ? { comment: comment.trim() } : {}) }) };
  const hidden = (change.preview?.records ?? []).filter((one) => one.redacted.length || one.before_omitted || one.configs !== undefined || one.returned_configs > 200).length;
  const begins = kind === "apply" && change.rollout !== null && !isEarly(change);
  const said = kind === "apply" && isEarly(change) ? "Left to the cluster" : begins ? "The rollout has begun" : act.said;
  const isMoved = kind === "advance" && shown.change.rollout?.status?.stage !== change.rollout.status.stage;
  // The page shows what the rollout is now, beside what the node says.
  useEffect(() => { if (isSteer && write.error?.status === CONFLICT) onRefused(); }, [write.error]);
  return html`<${Confirm} title=${begins ? "Begin the rollout?" : act.title} action=${begins ? "Begin it" : act.action} danger=${act.danger} write=${write} onClose=${onClose}
    onConfirm=${() => { if (!isMoved) write.run("POST", path, request, () => onDone(said)); }}>
    <p class="wrap"><b>${change.title}</b></p>
    ${kind === "rebase" ? html`<p>Its operations are tried on the records as they are now, and become a new edition. You become an author of it, so you can't approve it, and its votes end.</p>`
      : kind === "withdraw" ? html`<p>It is closed, and can't be opened again.</p>`
      : isMoved ? html`<p class="banner warn" role="alert"><strong>It is at another stage by now.</strong> Close this, and look at it again.</p>`
      : isSteer ? html`<p>${steerText(kind, change)}</p>`
      : kind === "apply" ? html`<p>${isEarly(change) ? "It is left to the cluster, which applies it when its window begins." : begins ? `Its first stage begins: ${whoText(change.rollout.stages[0])}. The cluster goes on by itself, and applies it after the last stage.` : "All of it is done at once, at one revision."} Of edition ${change.edition}, with this digest:</p>`
      : kind === "revert" || kind === "bypass" ? html`<p>Each of its configs gets the data that it had before, at one revision, or nothing is changed if one of them was changed since.${kind === "bypass" ? " Others must review it." : ""} Of edition ${change.edition}, with this digest:</p>`
      : kind === "keep" ? html`<p>The cluster does not take it back, and nobody else does: its configs stay as they are. Of edition ${change.edition}, with this digest:</p>`
      : kind === "review" ? html`<p>It is applied already. You say that you have looked at it: <a href=${href(["watch"], { from: change.applied.revision })}>its changes</a>.</p>`
      : html`<p>You have read edition ${change.edition}, with this digest:</p>`}
    ${named.digest ? html`<p><code>${change.digest}</code></p>` : ""}
    ${kind === "approve" && hidden ? html`<p class="banner warn">Of ${count(hidden, "record")} you are not shown everything: the page says what.</p>` : ""}
    ${kind === "approve" && unread ? html`<p class="banner warn">${count(unread, "record")} of it ${unread === 1 ? "is" : "are"} not shown yet: the page has a button for more.</p>` : ""}
    ${["approve", "apply"].includes(kind) && timesOf(change).length ? html`<ul>${timesOf(change).map(([text, time]) => html`<li>${text}${time ? html` <${Time} of=${time} />.` : ""}</li>`)}</ul>` : ""}
    ${act.comment ? html`<${Field} label=${act.comment} hint="Everybody who sees the change request can read it"><input required=${kind === "bypass"} value=${comment} maxlength="1000" onInput=${(event) => setComment(event.target.value)} /></${Field}>` : ""}
  </${Confirm}>`;
}

/** What is done with a rollout. */
function steerText(kind, { rollout }) {
  const { stages, status } = rollout;
  const next = stages[status.stage + 1];
  switch (kind) {
    case "pause": return "No further stage begins until somebody resumes it. Its readers keep what they have, and failures still take it back.";
    case "resume": return status.stage === null ? "The cluster tries again to apply it." : `It goes on with ${stagePlace(rollout)}, whose time begins again.`;
    case "advance": return `It is at ${stagePlace(rollout)}. That ends now, whatever its time, its readers and its gates say. ${next ? `The next one begins: ${whoText(next)}.` : "It is the last one: the cluster applies the change request."}`;
    default: return "No reader sees it any more, at once, and the change request is closed. The configs are as they were.";
  }
}
