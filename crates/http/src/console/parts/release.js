// How a change request is released: the fields of a form.
import { html } from "../vendor/preact.js";
import { RELEASES, STAGES_MAX, newStage, wrongIn, wrongOf } from "../lib/release.js";
import { Field } from "./ui.js";

/** What the names of the fields of a stage are: [name, words, keyboard of a phone]. */
const FIELDS = [["share", "Share, %", "decimal"], ["labels", "Labels", "text"], ["minutes", "Minutes", "decimal"], ["healthy", "Healthy", "numeric"]];
const HINTS = { share: "all", labels: "any", healthy: "none" };

export function Release({ release, setRelease }) {
  const { kind, stages, sent, failed, way, gates, patience } = release;
  const set = (more) => setRelease({ ...release, ...more });
  const ways = sent ? [...RELEASES, ["sent", "in stages, as in this edition"]] : RELEASES;
  const wrong = wrongOf(release);
  return html`<${Field} label="Release" hint="In stages, few readers get it first; it is taken back if they fail"><select value=${kind} onChange=${(event) => set({ kind: event.target.value })}>${ways.map(([name, words]) => html`<option value=${name}>${words}</option>`)}</select></${Field}>
    ${kind === "own" ? html`<fieldset class="plan"><legend>Stages</legend>
      <ol class="plain">${stages.map((stage, place) => html`<${StageFields} key=${stage.id} stage=${stage} place=${place} isAlone=${stages.length === 1}
        onChange=${(more) => set({ stages: stages.map((other) => (other === stage ? { ...other, ...more } : other)) })} onRemove=${() => set({ stages: stages.filter((other) => other !== stage) })} />`)}</ol>
      <div class="bar"><button type="button" disabled=${stages.length >= STAGES_MAX} onClick=${() => set({ stages: [...stages, newStage()] })}>Add a stage</button></div>
      <p class="muted small">A reader is in a stage by its labels, like <code>ring=canary</code>, and by its name: so many percent of them. A stage lasts its minutes at least, and until so many readers say that they are healthy. After the last one all readers get it.</p>
      <div class="bar"><label class="field small"><span>Readers that may fail</span><input class="short" inputmode="numeric" autocomplete="off" value=${failed} onInput=${(event) => set({ failed: event.target.value.trim() })} /></label>
        <label class="field small"><span>If more fail</span><select value=${way} onChange=${(event) => set({ way: event.target.value })}><option value="abort">take it back</option><option value="pause">pause, a person decides</option></select></label></div>
      <div class="bar"><label class="field small"><span>Gates</span><input placeholder="none" autocomplete="off" spellcheck=${false} value=${gates} onInput=${(event) => set({ gates: event.target.value })} /></label>
        <label class="field small"><span>Pause if a stage is late, minutes</span><input class="short" inputmode="decimal" autocomplete="off" value=${patience} onInput=${(event) => set({ patience: event.target.value.trim() })} /></label></div>
      <p class="muted small">A gate is a monitor that must say that all is well before a stage ends: <code>errors=120</code> counts what <code>errors</code> has said in the last 120 seconds.</p>
      ${wrong ? html`<p class="error" role="status">${wrong}</p>` : ""}</fieldset>` : ""}`;
}

function StageFields({ stage, place, isAlone, onChange, onRemove }) {
  const wrong = wrongIn(stage);
  return html`<li><div class="bar" role="group" aria-label=${`Stage ${place + 1}`}><span class="muted">${place + 1}</span>${FIELDS.map(([name, words, mode]) => html`<label class="field small"><span>${words}</span>
      <input class=${name} inputmode=${mode} placeholder=${HINTS[name]} autocomplete="off" spellcheck=${false} aria-invalid=${Boolean(wrong[name])} value=${stage[name]} onInput=${(event) => onChange({ [name]: name === "labels" ? event.target.value : event.target.value.trim() })} /></label>`)}
      <button type="button" class="quiet" aria-label=${`Remove stage ${place + 1}`} disabled=${isAlone} onClick=${onRemove}>Remove</button></div></li>`;
}
