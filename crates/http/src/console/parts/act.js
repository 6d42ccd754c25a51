// What a person does with a change request: a question first, which names the edition that the page shows.
import { html, useRef, useState } from "../vendor/preact.js";
import { href } from "../lib/state.js";
import { count } from "../lib/format.js";
import { changePath, isEarly, timesOf } from "../lib/reviews.js";
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
  withdraw: { title: "Withdraw it?", action: "Withdraw", said: "Withdrawn", comment: "Why", danger: true },
};

/** Something that is done with the edition that is shown, and with no other one. */
export function Act({ kind, shown, unread, onClose, onDone }) {
  const { change, etag } = useRef(shown).current;
  const [comment, setComment] = useState("");
  const write = useWrite();
  if (kind === "undo") return html`<${Undo} revision=${change.applied.revision} onClose=${onClose} />`;
  const act = ACTS[kind];
  const path = `${changePath(change.change_id)}/${kind === "bypass" ? "revert" : kind}`;
  const named = kind === "withdraw" || kind === "rebase" ? {} : { digest: change.digest };
  const request = kind === "bypass" ? { query: [["bypass", "true"]], headers: reasonHeader(comment), body: JSON.stringify(named) } : kind === "rebase" ? { headers: { "If-Match": etag } } : { body: JSON.stringify({ ...named, ...(comment.trim() ? { comment: comment.trim() } : {}) }) };
  const hidden = (change.preview?.records ?? []).filter((one) => one.redacted.length || one.before_omitted || one.configs !== undefined || one.returned_configs > 200).length;
  return html`<${Confirm} title=${act.title} action=${act.action} danger=${act.danger} write=${write} onClose=${onClose}
    onConfirm=${() => write.run("POST", path, request, () => onDone(kind === "apply" && isEarly(change) ? "Left to the cluster" : act.said))}>
    <p class="wrap"><b>${change.title}</b></p>
    ${kind === "rebase" ? html`<p>Its operations are tried on the records as they are now, and become a new edition. You become an author of it, so you can't approve it, and its votes end.</p>`
      : kind === "withdraw" ? html`<p>It is closed, and can't be opened again.</p>`
      : kind === "apply" ? html`<p>${isEarly(change) ? "It is left to the cluster, which applies it when its window begins." : "All of it is done at once, at one revision."} Of edition ${change.edition}, with this digest:</p>`
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
