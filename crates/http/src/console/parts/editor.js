// The editor of JSON text: CodeMirror, loaded when it is first needed. It stands in a shadow root, where its styles need no
// exception from the page's policy. If it can't be loaded, a plain text field does; until it is there, nothing: a text field
// with a large text takes longer to draw than the editor to load.
import { html, useEffect, useLayoutEffect, useRef, useState } from "../vendor/preact.js";
import { timely } from "../lib/silence.js";

let library = null;
/** The library, loaded once. */
export const load = () => (library ??= timely(import("../vendor/editor.js")));

function style(cm) {
  const { tags } = cm;
  const color = (tag, name) => ({ tag, color: `var(--${name})` });
  return [
    cm.EditorView.theme({
      "&": { height: "100%", fontSize: "13px", color: "var(--text)", backgroundColor: "var(--field)" },
      ".cm-scroller": { fontFamily: "var(--mono)", lineHeight: "1.5" },
      ".cm-content": { caretColor: "var(--text)" },
      ".cm-cursor": { borderLeftColor: "var(--text)" },
      ".cm-gutters": { backgroundColor: "var(--side)", color: "var(--muted)", border: "none" },
      ".cm-activeLine, .cm-activeLineGutter": { backgroundColor: "var(--hover)" },
      "&.cm-focused": { outline: "none" },
      "&.cm-focused > .cm-scroller > .cm-selectionLayer .cm-selectionBackground, .cm-selectionBackground": { background: "var(--select)" },
      ".cm-tooltip, .cm-panels": { backgroundColor: "var(--panel)", color: "var(--text)", border: "1px solid var(--line)" },
      ".cm-foldPlaceholder": { background: "var(--side)", color: "var(--muted)", border: "1px solid var(--line)" },
      ".cm-button, .cm-textfield": { background: "var(--field)", color: "var(--text)", border: "1px solid var(--line)" },
      // The library's own marks are images in text, which the policy does not allow. A border and no text decoration:
      // the browser would keep that one in a style of what is typed over it, which the policy does not allow either.
      ".cm-lintRange-error": { backgroundImage: "none", borderBottom: "2px dotted var(--bad)" },
      ".cm-lint-marker-error": { content: '""', width: ".7em", height: ".7em", borderRadius: "50%", background: "var(--bad)", margin: ".2em" },
      ".cm-matchingBracket": { backgroundColor: "var(--select)" },
    }),
    cm.syntaxHighlighting(cm.HighlightStyle.define([
      color(tags.propertyName, "j-name"), color(tags.string, "j-string"), color(tags.number, "j-number"),
      color(tags.bool, "j-word"), color(tags.null, "j-word"),
    ])),
  ];
}

/**
 * `text` is what it shows; `onText` is told what is typed; `problems` are { from, to, message } and are marked at their
 * places. Escape leaves it, so that Tab can indent without keeping the keyboard's user inside.
 */
export function Editor({ text, onText, problems = [], label, onSave }) {
  const host = useRef(null);
  const view = useRef(null);
  const latest = useRef({});
  latest.current = { onText, onSave, text };
  const [state, setState] = useState({ ready: false });
  useEffect(() => {
    let gone = false;
    load().then((cm) => {
      if (gone) return;
      const root = host.current.shadowRoot ?? host.current.attachShadow({ mode: "open" });
      const leave = { key: "Escape", run: (editor) => { editor.contentDOM.blur(); host.current.focus(); return true; } };
      const save = { key: "Mod-s", run: () => { latest.current.onSave?.(); return true; } };
      view.current = new cm.EditorView({
        root, parent: root,
        state: cm.EditorState.create({
          doc: latest.current.text,
          extensions: [cm.keymap.of([save]), cm.lineNumbers(), cm.foldGutter(), cm.history(), cm.drawSelection(), cm.indentOnInput(), cm.bracketMatching(),
            cm.highlightActiveLine(), cm.json(), cm.lintGutter(), cm.search({ top: true }),
            cm.keymap.of([...cm.searchKeymap, ...cm.defaultKeymap, ...cm.historyKeymap, ...cm.foldKeymap, ...cm.lintKeymap, cm.indentWithTab, leave]),
            cm.EditorView.contentAttributes.of({ "aria-label": label, spellcheck: "false", tabindex: "0" }),
            cm.EditorView.updateListener.of((update) => { if (update.docChanged && !update.transactions.some((one) => one.isUserEvent("outside"))) latest.current.onText(update.state.doc.toString()); }),
            ...style(cm)],
        }),
      });
      setState({ ready: true });
    }, () => { if (!gone) setState({ ready: false, failed: true }); });
    return () => { gone = true; view.current?.destroy(); view.current = null; };
  }, []);
  useLayoutEffect(() => {
    const old = view.current?.state.doc.toString();
    if (old === undefined || old === text) return;
    // Only what differs is replaced, so that the cursor stays where it is.
    let [from, tail] = [0, 0];
    while (from < Math.min(old.length, text.length) && old[from] === text[from]) from += 1;
    while (tail < Math.min(old.length, text.length) - from && old[old.length - 1 - tail] === text[text.length - 1 - tail]) tail += 1;
    view.current.dispatch({ changes: { from, to: old.length - tail, insert: text.slice(from, text.length - tail) }, userEvent: "outside" });
  }, [text, state.ready]);
  useEffect(() => {
    if (!view.current) return;
    load().then((cm) => {
      if (!view.current) return;
      const length = view.current.state.doc.length;
      const clip = (place) => Math.max(0, Math.min(place, length));
      view.current.dispatch(cm.setDiagnostics(view.current.state, problems.map(({ from, to, message }) =>
        ({ from: clip(from), to: clip(Math.max(to, from)), severity: "error", message })).sort((a, b) => a.from - b.from)));
    });
  }, [JSON.stringify(problems), text, state.ready]);
  return html`<div class="editor"><div class="editor-host" ref=${host} tabindex="-1" hidden=${!state.ready}></div>
    ${state.ready ? html`<small class="muted">Tab indents; Escape leaves the editor; Ctrl F searches.</small>`
      : state.failed ? html`<textarea aria-label=${label} spellcheck=${false} value=${text} onInput=${(event) => onText(event.target.value)}></textarea>
        <small class="muted">The editor could not be loaded; plain text does as well.</small>` : html`<p class="loading" role="status">Loading the editor…</p>`}</div>`;
}
