// Proposing instead of saving: a change request of what a page would write. Where the environment takes change requests only,
// or the key may not write, it is the one way; elsewhere it stands beside the other, and is offered where a write is refused
// because of an environment.
import { html, useState } from "../vendor/preact.js";
import { go, lacks, say, unsaved } from "../lib/state.js";
import { proposalBody } from "../lib/operations.js";
import { CHANGES } from "../lib/reviews.js";
import { atOnce, releaseOf, wrongOf } from "../lib/release.js";
import { CopyAs } from "./copyas.js";
import { Dialog, Field, Problem, useWrite } from "./ui.js";
import { environmentOf, useEnvironments } from "./frozen.js";
import { Release } from "./release.js";
import { Timing, timingOf } from "./timing.js";

/** Why a write is refused that could be proposed. */
const REFUSED = ["change_required", "environment_frozen"];
export const isForEnvironment = (error) => Boolean(error?.items?.some((item) => REFUSED.includes(item.code)));

/** What becomes of a reason that is typed before. */
export const TITLED = "The title of the change request";
export const TITLE_MAX = 255;

/**
 * How what is written to these definitions can be proposed; `verb` is what writing it asks for. `isOnly`: it can't be
 * written directly. `ask` opens the dialog, with { title, description, operations, choice, isSecret,
 * onRefused, onDone }, and `dialog` is it. `choice` is the label of a box; the operations are a function of it then.
 */
export function useProposal(names, verb) {
  const environments = useEnvironments();
  const [asked, setAsked] = useState(null);
  const restricted = names.map((name) => environmentOf(name, environments ?? [])).find((one) => one?.direct === "refuse");
  const isPossible = names.every((name) => !lacks("propose", name) && !lacks("read", name));
  return {
    isPossible, restricted: restricted?.environment,
    isOnly: isPossible && (restricted !== undefined || names.some((name) => lacks(verb, name))),
    ask: setAsked,
    dialog: asked ? html`<${Propose} ...${asked} onClose=${() => setAsked(null)} />` : null,
  };
}

/** The way on from a write that an environment refuses. */
export function Offer({ error, proposal, of }) {
  if (!isForEnvironment(error) || !of.isPossible) return null;
  return html`<p><button type="button" onClick=${() => of.ask(proposal())}>Propose it…</button> <span class="muted">as a change request that others approve</span></p>`;
}

/** The button beside that of a write. */
export function ProposeButton({ of, proposal, disabled, primary }) {
  if (!of.isPossible) return null;
  return html`<button type="button" class=${primary ? "primary" : ""} disabled=${disabled} title="Makes a change request, which others see and approve before it is applied" onClick=${() => of.ask(proposal())}>Propose…</button>`;
}

function Propose({ title: start, description: about = "", operations, choice, isSecret, onRefused, onDone, onClose }) {
  const [title, setTitle] = useState(start.slice(0, TITLE_MAX));
  const [description, setDescription] = useState(about);
  const [isChosen, setChosen] = useState(false);
  const write = useWrite();
  const [when, setWhen] = useState({ apply: "manual", from: "", until: "", back: "" });
  const [release, setRelease] = useState(atOnce);
  const texts = choice ? operations(isChosen) : operations;
  const isOfConfigs = texts.every((text) => /^\{"op":"[a-z]+_config"/.test(text));
  // A rollout updates configs that exist, and does nothing else.
  const isOfUpdates = texts.every((text) => /^\{"op":"(put|patch)_config"/.test(text));
  const wrong = isOfUpdates && wrongOf(release) !== "";
  const body = proposalBody(title.trim(), description.trim(), texts, { ...timingOf(when), ...(isOfUpdates && !wrong ? releaseOf(release) : {}) });
  const submit = async (event) => {
    event.preventDefault();
    await write.run("POST", CHANGES, { body }, (answer) => {
      unsaved.value = "";
      onDone?.();
      say("Proposed: it is a change request now");
      go(["reviews", answer.data.change_id]);
    });
  };
  const close = () => { if (write.error && !write.error.unknown) onRefused?.(write.error); onClose(); };
  return html`<${Dialog} title="Propose a change" onClose=${close}><form method="dialog" onSubmit=${submit}><div class="stack">
    <p>It becomes a change request: others see what it would change, and approve it. Nothing changes until it is applied.</p>
    ${choice ? html`<label class="check"><input type="checkbox" checked=${isChosen} onChange=${(event) => setChosen(event.target.checked)} /> ${choice}</label>` : ""}
    <${Field} label="Title" hint="What it is, in a line"><input required maxlength=${TITLE_MAX} value=${title} onInput=${(event) => setTitle(event.target.value)} /></${Field}>
    <${Field} label="Description" hint="Why; those who may read everything in it can read this"><textarea rows="3" maxlength="4000" value=${description} onInput=${(event) => setDescription(event.target.value)}></textarea></${Field}>
    ${isOfUpdates ? html`<${Release} release=${release} setRelease=${setRelease} />` : ""}
    <${Timing} when=${when} setWhen=${setWhen} isOfConfigs=${isOfConfigs} />
    <div><${CopyAs} isSecret=${isSecret} requests=${[{ label: "Propose it", method: "POST", path: CHANGES, body }]} /></div></div>
    <${Problem} error=${write.error} again=${write.again} />
    <footer><button type="button" onClick=${close}>Cancel</button><button class="primary" disabled=${write.busy || !title.trim() || wrong}>${write.busy ? "Working…" : "Propose it"}</button></footer></form></${Dialog}>`;
}

/** The errors of a change request with one operation, as those of the write that it stands for. */
export const ofOperation = (error) => Object.assign(Object.create(Object.getPrototypeOf(error)), error, { message: error.message, items: error.items.map((item) => {
  const way = item.loc?.[0] === "body" ? item.loc.slice(1) : item.loc;
  return way?.[0] === "operations" ? { ...item, loc: way.slice(2) } : item;
}) });
