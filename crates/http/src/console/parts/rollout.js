// The rollout of a change request: its stages on a line, what the present one waits for, and what readers and gates say.
import { html } from "../vendor/preact.js";
import { count, duration, escaped } from "../lib/format.js";
import { labelsText, lengthText, readersText, ruleText, waitsFor, whoText } from "../lib/rollouts.js";
import { Party } from "./by.js";
import { Time } from "./ui.js";

/** What a stage is called: it has ended, is the present one, waits for a person, or comes later. */
const KINDS = { done: "done", now: "now", paused: "paused", next: "to come" };

export function Rollout({ of }) {
  const { stages, gates, status } = of;
  const isEnding = status !== null && status.stage === null;
  return html`<section class="part" aria-label="Rollout"><h2>Rollout ${status ? html`<span class="muted">begun <${Time} of=${status.begun_at} /></span>` : html`<span class="muted">begins when it is applied</span>`}</h2>
    <ol class="stages" aria-label="Stages">${stages.map((_, place) => html`<${Stage} key=${place} of=${of} place=${place} />`)}
      <${Step} name="All readers" kind=${!isEnding ? "next" : status.paused ? "paused" : "now"}><div>it is applied</div></${Step}></ol>
    ${status ? html`<${Status} of=${of} />` : gates.length ? html`<${Gates} gates=${gates} />` : ""}
    <p class="muted">${ruleText(of)}</p></section>`;
}

function Step({ name, kind, children }) {
  return html`<li class=${kind} aria-current=${kind === "now" || kind === "paused" ? "step" : undefined}><b>${name}</b> <span class="tag">${KINDS[kind]}</span>${children}</li>`;
}

function Stage({ of: { stages, status, max_failed: most }, place }) {
  const stage = stages[place];
  const passed = status?.passed[place];
  const isNow = status?.stage === place;
  const said = passed ? readersText(passed, stage.min_healthy, most) : isNow ? readersText(status, stage.min_healthy, most) || "what its readers say is not known now" : stage.min_healthy ? `${count(stage.min_healthy, "reader")} must run well` : "";
  return html`<${Step} name=${`Stage ${place + 1}`} kind=${passed ? "done" : !isNow ? "next" : status.paused ? "paused" : "now"}>
    <div>${whoText(stage)}</div>
    <div class="small">${passed ? html`ended <${Time} of=${passed.at} /> by <${Party} of=${passed.by} />` : isNow ? html`since <${Time} of=${status.since} />${stage.for_s ? ", " : ""}${lengthText(stage)}` : lengthText(stage)}</div>
    ${said ? html`<div class="small">${said}</div>` : ""}</${Step}>`;
}

/** What of a rollout that has begun changes. */
function Status({ of }) {
  const { gates, status } = of;
  const waits = waitsFor(of);
  return html`${status.paused ? html`<div class="banner warn"><strong>Paused</strong> <${Time} of=${status.paused.at} /> by <${Party} of=${status.paused.by} />${status.paused.comment ? html`: <span class="wrap">${status.paused.comment}</span>` : ""}</div>` : ""}
    <p>It waits for ${waits.map(([text, time], place) => html`${place ? "; and for " : ""}${text}${time ? html` <${Time} of=${time} />` : ""}`)}.</p>
    ${status.failures?.length ? html`<${Failures} all=${status.failures} failed=${status.failed} />` : ""}
    ${gates.length ? html`<${Gates} gates=${gates} said=${status.gates} />` : ""}`;
}

/** What the readers say that have failed. */
function Failures({ all, failed }) {
  return html`<section aria-label="Failures"><h3>${count(failed, "reader")} failed</h3><ul class="votes">${all.map(({ reader, labels, detail, at }) => html`<li key=${reader}><b>${escaped(reader)}</b>${Object.keys(labels).length ? html` <span class="tag">${escaped(labelsText(labels))}</span>` : ""} <span class="muted"><${Time} of=${at} /></span>
      ${detail ? html`<pre class="code said" tabindex="0" role="region" aria-label=${`What ${escaped(reader)} says`}>${lines(detail)}</pre>` : ""}</li>`)}</ul>
    ${failed > all.length ? html`<p class="muted">What ${count(failed - all.length, "more reader")} ${failed - all.length === 1 ? "says" : "say"} is not kept.</p>` : ""}</section>`;
}

/** An output of several lines, of which everything is seen. */
const lines = (text) => text.replaceAll("\r\n", "\n").replaceAll("\t", "  ").split("\n").map(escaped).join("\n");

/** The gates of a plan, each with what it has said last. */
function Gates({ gates, said }) {
  return html`<section aria-label="Gates"><h3>Gates</h3><ul class="votes">${gates.map(({ name, fresh_s: fresh }) => {
    const word = said?.find((one) => one.name === name);
    return html`<li key=${name}><b>${name}</b> ${word?.ok === true ? html`<span class="yes">says that all is well</span>` : word?.ok === false ? html`<span class="no">says that something is wrong</span>` : html`<span class="muted">${said === undefined ? `must say within ${duration(fresh)} that all is well` : said === null ? "is not known now" : `has said nothing for ${duration(fresh)}`}</span>`}
      ${word?.at ? html` <span class="muted"><${Time} of=${word.at} /></span>` : ""}${word?.evidence ? html`<div class="wrap">${lines(word.evidence)}</div>` : ""}</li>`;
  })}</ul></section>`;
}
