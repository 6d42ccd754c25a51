// One change request: what it would change, who has said what of it, what it lacks; and what this key may do with it.
//
// What a person approves is what the page shows: the buttons name its digest. A newer edition is shown when the person asks
// for it, and not under their hands; until then the buttons name the old one.
import { html, useEffect, useRef, useState } from "../vendor/preact.js";
import { href, lacks, principal, say, session, spoken } from "../lib/state.js";
import { get } from "../lib/api.js";
import { PREVIEW, readChange, summary } from "../lib/edition.js";
import { count } from "../lib/format.js";
import { changePath, hindranceIn, isEarly, isEditable, isMe, isOpen, isPending, isRolling, mayApply, mayBypassRevert, mayEdit, mayKeep, mayRevert, mayWithdraw, myVote } from "../lib/reviews.js";
import { isPaused, mayAbort, maySteer, missing, stateOf, timesOf, whyNot } from "../lib/reviewstate.js";
import { LIVE, keepRead } from "../lib/following.js";
import { recount } from "../lib/waiting.js";
import { Crumbs, Problem, Time, copyText } from "../parts/ui.js";
import { Act } from "../parts/act.js";
import { Applied, placesText } from "../parts/applied.js";
import { Party } from "../parts/by.js";
import { CopyAs } from "../parts/copyas.js";
import { Diff } from "../parts/diff.js";
import { environmentOf, useEnvironments } from "../parts/frozen.js";
import { Rollout } from "../parts/rollout.js";

/** Until it is read again, in milliseconds, without events of change requests and with them: one small answer. */
const [AGAIN, SELDOM] = [5000, 10000];
/** The same while it rolls: no event tells what its readers say. */
const ROLLING = 2000;
/** Records that are shown before somebody asks for more. */
const RECORDS = 25;
export default function Review({ parts: [, id] }) {
  const [shown, setShown] = useState(null);
  const [newer, setNewer] = useState(null);
  const [error, setError] = useState(null);
  const [doing, setDoing] = useState(null);
  const [max, setMax] = useState(RECORDS);
  const [turn, setTurn] = useState(0);
  const [live, setLive] = useState("");
  const now = useRef(null);
  /** The newest that was read, which may be another edition than the one that is shown. */
  const newest = useRef(null);
  /** For which key it is shown. */
  const owner = useRef(null);
  /** Whether what is read next is shown, whatever edition it is. */
  const isFirst = useRef(true);
  now.current = shown;
  const show = (found) => { setShown(found); setNewer(null); };
  /** Shows how far its rollout is. */
  const follow = ({ digest, rollout }) => {
    const next = (old) => (old?.change.digest !== digest || JSON.stringify(old.change.rollout) === JSON.stringify(rollout) ? old : { ...old, change: { ...old.change, rollout } });
    newest.current = next(newest.current);
    setShown(next);
  };
  useEffect(() => {
    const stop = new AbortController();
    isFirst.current = true;
    const who = principal.value?.key_id;
    if (owner.current !== who) {
      // What another key was shown is not kept.
      owner.current = who;
      setShown(null);
      setNewer(null);
      setDoing(null);
    }
    async function look() {
      try {
        const light = isFirst.current ? null : await get(changePath(id), [], { signal: stop.signal, once: true });
        let { revision } = light ?? {};
        if (light === null || summary(light.data) !== (newest.current ?? now.current).seen) {
          const found = await readChange(id, stop.signal);
          if (stop.signal.aborted) return null;
          newest.current = found;
          revision = found.revision;
          const isOther = !isFirst.current && found.change.digest !== now.current.change.digest;
          if (isOther) { setNewer(found); spoken.value = "The change request has a newer edition"; } else show(found);
          isFirst.current = false;
        } else follow(light.data);
        setError(null);
        return { revision, pages: 1, again: isRolling(newest.current.change) ? ROLLING : undefined };
      } catch (problem) {
        if (stop.signal.aborted) return null;
        if (problem.status === undefined) throw problem;
        setError(problem);
        return null;
      }
    }
    keepRead(look, { signal: stop.signal, onState: setLive, concerns: (change) => change.change_id === id, again: AGAIN, seldom: SELDOM });
    return () => stop.abort();
  }, [id, session.value, principal.value?.key_id, turn]);
  const done = async (text) => {
    setDoing(null);
    say(text);
    recount();
    setTurn((old) => old + 1);
  };
  if (!shown) return html`<${Crumbs} items=${[{ text: "Reviews", href: href(["reviews"]) }, { text: id }]} /><div class="title"><h1>Change request</h1></div>${error ? html`<${Problem} error=${error} />` : html`<p class="loading" role="status">Loading the change request…</p>`}`;
  const { change } = shown;
  const [kind, text] = stateOf(change);
  return html`<${Crumbs} items=${[{ text: "Reviews", href: href(["reviews"]) }, { text: change.title }]} />
    <div class="title"><h1>${change.title}</h1><span class=${`state ${kind}`} role="status">${text}</span><span class=${`dot ${live}`}></span><span class="muted small">${LIVE[live] ?? ""}</span><span class="grow"></span>
      <button class="quiet" onClick=${() => copyText(location.href, "The link")}>Copy the link</button>
      <${CopyAs} requests=${() => requests(change)} /></div>
    ${newer ? html`<div class="banner warn" role="alert"><strong>It has a newer edition, ${newer.change.edition}.</strong> This page shows edition ${change.edition}. <button type="button" onClick=${() => show(newer)}>Show the newer one</button></div>` : ""}
    <${Problem} error=${error} />
    <${Actions} change=${change} isOld=${newer !== null} onDo=${setDoing} />
    <${Lacking} change=${change} />
    ${timesOf(change).length ? html`<ul class="notes" aria-label="Times">${timesOf(change).map(([text, time]) => html`<li>${text}${time ? html` <${Time} of=${time} />.` : ""}</li>`)}</ul>` : ""}
    ${change.rollout ? html`<${Rollout} of=${change.rollout} />` : ""}
    <${Facts} change=${change} />
    <div class="review">${change.description ? html`<section aria-label="Description"><h2>Description</h2><p class="wrap">${change.description}</p></section>` : ""}
    <${Votes} change=${change} />
    <${Records} shown=${shown} max=${max} setMax=${setMax} /></div>
    ${doing ? html`<${Act} kind=${doing} shown=${shown} unread=${Math.max(0, shown.records.length - max)} onClose=${() => setDoing(null)} onDone=${done} onRefused=${() => setTurn((old) => old + 1)} />` : ""}`;
}

/** The requests behind the page. */
function requests(change) {
  const path = changePath(change.change_id);
  const body = JSON.stringify({ digest: change.digest });
  return [{ label: "Show it with its preview", method: "GET", path, query: PREVIEW },
    ...(change.bypass ? [{ label: "Review it", method: "POST", path: `${path}/review`, body }] : []),
    ...(isRolling(change) ? ["Pause", "Resume", "Advance", "Abort"].map((word) => ({ label: `${word} its rollout`, method: "POST", path: `${path}/${word.toLowerCase()}` })) : []),
    ...(isEditable(change) ? [{ label: "Approve it", method: "POST", path: `${path}/approve`, body }, { label: "Apply it", method: "POST", path: `${path}/apply`, body }, { label: "Rebase it", method: "POST", path: `${path}/rebase` }] : [])];
}

function Actions({ change, isOld, onDo }) {
  const why = hindranceIn(change);
  const mine = myVote(change);
  const canVote = isOpen(change);
  const button = (kind, label, { primary, danger, disabled, name } = {}) => html`<button class=${primary ? "primary" : danger ? "danger" : ""} data-key=${name} disabled=${disabled} onClick=${() => onDo(kind)}>${label}</button>`;
  const canApply = change.approved && change.stale === null;
  const buttons = [
    canVote && !why && !(mine && change.approvals.includes(mine)) && button("approve", "Approve…", { primary: !canApply, disabled: isOld || change.stale !== null, name: "a" }),
    canVote && !why && !change.rejections.some(isMe) && button("reject", "Reject…", { disabled: isOld }),
    canVote && mayApply(change) && !(change.phase === "scheduled" && isEarly(change)) && button("apply", isEarly(change) ? "Schedule…" : change.rollout ? "Begin the rollout…" : "Apply…", { primary: canApply, disabled: isOld || !canApply }),
    isEditable(change) && mayEdit(change) && html`<a class="button" data-key="e" href=${href(["reviews", change.change_id, "edit"])}>Edit…</a>`,
    isEditable(change) && mayEdit(change) && button("rebase", "Rebase…", { primary: change.stale !== null || change.phase === "held", disabled: isOld }),
    isEditable(change) && mayWithdraw(change) && button("withdraw", "Withdraw…"),
    change.reviews_missing > 0 && !why && !mine && button("review", "Review…", { primary: true, name: "a" }),
    maySteer(change) && (isPaused(change) ? button("resume", "Resume…") : button("pause", "Pause…")),
    maySteer(change) && change.rollout.status.stage !== null && button("advance", "Next stage…"),
    mayAbort(change) && button("abort", "Take back…", { danger: true }),
    mayKeep(change) && button("keep", "Keep…"),
    mayRevert(change) && button("revert", "Take back…", { danger: true }),
    !mayRevert(change) && mayBypassRevert(change) && button("bypass", "Take back by a bypass…", { danger: true }),
    change.applied && change.config_definition_keys.some((name) => !lacks("propose", name)) && button("undo", "Undo…"),
  ].filter(Boolean);
  const asksForVote = canVote || change.reviews_missing > 0;
  const isVoid = canVote && !why && !mine && change.approvals.some(isMe);
  return html`${buttons.length ? html`<div class="bar" role="group" aria-label="What you can do">${buttons}</div>` : ""}
    ${asksForVote && why ? html`<p class="muted">You can't ${canVote ? "approve" : "review"} it: ${why}.</p>` : isVoid ? html`<p class="muted">Your earlier approval does not count: your key was attested again since, or it was another key. Approve it again.</p>` : asksForVote && mine ? html`<p class="muted">You have ${!canVote ? "reviewed" : change.approvals.includes(mine) ? "approved" : "rejected"} this edition.</p>` : ""}`;
}

/** What is missing before it can be applied, a freeze included. */
function Lacking({ change }) {
  const environments = useEnvironments() ?? [];
  const all = missing(change);
  const frozen = new Map();
  if (isPending(change) && change.environment === null) {
    for (const name of change.config_definition_keys) {
      const found = environmentOf(name, environments);
      if (found?.frozen_until) frozen.set(found.environment, found.frozen_until);
    }
  }
  if (all.length + frozen.size === 0) return null;
  return html`<div class="banner warn"><strong>What is missing</strong><ul>${all.map((text) => html`<li>${text}</li>`)}
    ${[...frozen].map(([name, until]) => html`<li>The environment ${name} is frozen until <${Time} of=${until} />: ${isRolling(change) ? "no stage of its rollout ends" : "it can't be applied"} before.</li>`)}</ul></div>`;
}

function Facts({ change }) {
  const { applied, closed } = change;
  const others = change.authors.filter((one) => one.key_id !== change.sender.key_id);
  const fact = (name, value) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`;
  return html`<dl class="facts">
    ${fact("Sent by", html`<${Party} of=${change.sender} />${change.attested ? "" : html` <span class="muted">(key not attested)</span>`}`)}
    ${fact("Sent", html`<${Time} of=${change.sent_at} />`)}
    ${others.length ? fact("Authors of earlier editions", others.map((one, i) => html`${i ? ", " : ""}<${Party} of=${one} />`)) : ""}
    ${fact("Edition", change.edition)}
    ${change.environment === null ? fact("Definitions", change.config_definition_keys.map((name, i) => html`${i ? ", " : ""}<a href=${href(["d", name])}>${name}</a>`)) : fact("Environment", html`<a href=${href(["environments"])}>${change.environment}</a>`)}
    ${change.scheduled ? fact("Left to the cluster by", html`<${Party} of=${change.scheduled.by} /> <${Time} of=${change.scheduled.at} />`) : ""}
    ${change.revert ? fact("Taken back", html`<${Revert} of=${change.revert} />`) : ""}
    ${change.expires_at ? fact("Expires", html`<${Time} of=${change.expires_at} />`) : ""}
    ${applied ? fact("Applied", html`<${Time} of=${applied.at} /> by <${Party} of=${applied.by} />${applied.scheduled_by ? html`, to whom <${Party} of=${applied.scheduled_by} /> left it` : ""}, <a href=${href(["watch"], { from: applied.revision })}>revision ${applied.revision}</a>`) : ""}
    ${applied?.approved_by.length ? fact("Approvals that counted", applied.approved_by.map((one, i) => html`${i ? ", " : ""}<${Party} of=${one} />`)) : ""}
    ${closed ? fact("Closed", html`${closed.reason} <${Time} of=${closed.at} /> by <${Party} of=${closed.by} />${closed.error ? html`: <b>${closed.error.msg}</b>` : ""}${closed.comment ? html`: <span class="wrap">${closed.comment}</span>` : ""}`) : ""}
    ${fact("Digest", html`<code>${change.digest}</code>`)}</dl>`;
}

/** Whether it is taken back, by whom and when. */
function Revert({ of }) {
  const { state, due_at: due, possible_until: until, revision, at, by, bypass, error, comment } = of;
  if (state === "done") return html`<${Time} of=${at} /> by <${Party} of=${by} />${bypass ? " by a bypass" : ""}, <a href=${href(["watch"], { from: revision })}>revision ${revision}</a>`;
  if (state === "kept") return html`no: <${Party} of=${by} /> keeps it <${Time} of=${at} />${comment ? html`: <span class="wrap">${comment}</span>` : ""}`;
  if (state === "failed") return html`<span class="no">not possible: ${error.msg}</span>`;
  if (state === "held") return html`not by itself, since a restore or a recovery; it was due <${Time} of=${due} />`;
  return state === "armed" ? html`<${Time} of=${due} /> by the cluster` : html`possible until <${Time} of=${until} />, by those who approved it`;
}

/** What was said of this edition; each approval with whether it counts. */
function Votes({ change }) {
  const all = [...change.approvals.map((vote) => [vote, "approves"]), ...change.rejections.map((vote) => [vote, "rejects"]), ...change.reviews.map((vote) => [vote, "has reviewed"])].sort(([a], [b]) => a.at.localeCompare(b.at));
  const counting = change.approvals.filter((vote) => vote.counts).length;
  const isCounted = isPending(change);
  // The node says of a vote whether its key is as it was, and of each part of the change how many may approve that.
  const isPart = isCounted && counting > change.approvals_counted;
  return html`<section aria-label="Votes"><h2>${change.bypass ? "Reviews" : "Votes"} <span class="muted">${isCounted ? `${change.approvals_counted} of ${count(change.approvals_needed, "approval")} that ${change.approvals_needed === 1 ? "is" : "are"} needed` : ""}</span></h2>
    ${all.length === 0 ? html`<p class="muted">Nobody has voted on this edition.</p>` : html`<ul class="votes">${all.map(([vote, words]) => html`<li><b><${Party} of=${vote} /></b> ${words} it <span class="muted"><${Time} of=${vote.at} /></span>
      ${isCounted && words === "approves" ? (whyNot(vote) ? html` <span class="no">does not count: ${whyNot(vote)}</span>` : isPart ? "" : html` <span class="yes">counts</span>`) : ""}${vote.redacted ? html` <span class="tag">saw no secret values</span>` : ""}
      ${vote.comment ? html`<div class="wrap">${vote.comment}</div>` : ""}</li>`)}</ul>`}
    ${isPart ? html`<p class="muted">For one part of it, only ${change.approvals_counted} of them ${change.approvals_counted === 1 ? "counts" : "count"}: not each of these keys may still approve and read all of it.</p>` : ""}</section>`;
}

export const OPERATIONS = {
  create_definition: "create", set_indexes: "set the indexed fields", set_schema: "set the schema", set_unique: "set the unique fields", set_protection: "change the protection",
  delete_definition: "delete", undelete_definition: "undo the deletion",
};

function Records({ shown: { change, records, schemas }, max, setMax }) {
  if (change.applied) return html`<${Applied} change=${change} />`;
  if (!isPending(change)) return html`<section aria-label="What it would change"><h2>What it would have changed</h2><p class="muted">Its content ended with it.</p></section>`;
  const effect = change.preview?.environment_effect;
  const rest = records.length - max;
  return html`<section aria-label="What it would change"><h2>What it would change <span class="muted">${count(records.length, "record")}</span></h2>
    ${effect ? html`<p>${count(effect.definitions, "definition")} with ${count(effect.configs, "config")} ${effect.definitions === 1 ? "has" : "have"} these rules.</p>` : ""}
    ${records.slice(0, max).map((record, place) => html`<${Record} key=${place} of=${record} plain=${change.preview.records[place]} schemas=${schemas} />`)}
    ${rest > 0 ? html`<p><b>${count(rest, "more record")} not shown.</b> <button type="button" onClick=${() => setMax(max + RECORDS)}>Show ${Math.min(rest, RECORDS)} more</button> <button type="button" onClick=${() => setMax(Infinity)}>Show all</button></p>` : ""}</section>`;
}

/** A record before and after, with what of it is not shown. */
function Record({ of, plain, schemas }) {
  const { config_definition_key: definition, config_key: config, environment, base_revision: base, revision, operations = [] } = plain;
  const name = environment ?? (config === undefined ? definition : `${definition} / ${config}`);
  const where = environment !== undefined ? ["environments"] : config === undefined ? ["d", definition] : ["d", definition, "c", config];
  const [before, after] = [of.get("before") ?? undefined, of.get("after") ?? undefined];
  const does = operations.length ? operations.map((one) => OPERATIONS[one.op] ?? one.op).join(", then ") : plain.deleted ? "delete" : revision === null ? "create" : "replace";
  const notes = [
    base !== revision && `It was changed since: the edition rests on ${base === null ? "its absence" : `revision ${base}`}, and it ${revision === null ? "is deleted" : `has revision ${revision}`} now.`,
    operations.some((one) => one.force) && "The schema is stored even if configs break it.",
    operations.some((one) => one.restrict) && "It is deleted only if it has no configs.",
    plain.configs !== undefined && `${count(plain.configs, "config")} of it ${plain.configs === 1 ? "goes" : "go"} with it${operations.some((one) => one.op === "create_definition") ? ", though it is created again" : ""}. They are not shown here.`,
    plain.returned_configs !== undefined && `${count(plain.returned_configs, "config")} ${plain.returned_configs === 1 ? "comes" : "come"} back with it; at most 200 of them are shown.`,
    plain.before_omitted && "What it is now is too large for the preview: only what it will be is shown.",
    plain.redacted.length > 0 && `Your key may not see ${count(plain.redacted.length, "value")}, nor whether ${plain.redacted.length === 1 ? "it changes" : "they change"}: ${placesText(plain.redacted)}.`,
  ].filter(Boolean);
  return html`<section class="together" aria-label=${name}><div class="bar"><h3><span class="tag">${does}</span> <a href=${href(where)}>${name}</a></h3><span class="grow"></span>
      <span class="muted small">${base === null ? "rests on its absence" : `rests on revision ${base}`}</span></div>
    ${notes.length ? html`<ul class="notes">${notes.map((text) => html`<li>${text}</li>`)}</ul>` : ""}
    ${plain.deleted && before === undefined ? "" : html`<${Diff} schema=${config === undefined ? undefined : schemas.get(definition)} from=${before} to=${after} label=${`What changes in ${name}`} />`}</section>`;
}
