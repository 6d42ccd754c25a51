// Asks for a key: at the beginning, and again over the page when the node stops accepting it, so that nothing typed is
// lost. A key is tried before it is taken.
import { html, useLayoutEffect, useRef, useState } from "../vendor/preact.js";
import { key, keepKey, members, principal, refused } from "../lib/state.js";
import { get } from "../lib/api.js";

/** Learns whose the key is. A cluster without stored keys has no `whoami`: there is the root key only. */
export async function introduce(key) {
  // One after the other: a key that is refused costs one of the few failures that an address may have in a minute.
  const unless = (status) => (error) => {
    if (error.status === status) return null;
    throw error;
  };
  const who = await get("/whoami", [], { once: true, key }).catch(unless(404));
  const view = await get("/cluster", [], { once: true, key }).catch(unless(403));
  if (view) members.value = view.data.members;
  principal.value = who ? who.data : null;
}

export function SignIn() {
  const [text, setText] = useState("");
  const [busy, setBusy] = useState(false);
  const [wrong, setWrong] = useState("");
  const input = useRef(null);
  const dialog = useRef(null);
  useLayoutEffect(() => {
    dialog.current.showModal();
    input.current.focus();
    return () => dialog.current?.close();
  }, []);
  async function submit(event) {
    event.preventDefault();
    setBusy(true);
    setWrong("");
    try {
      await introduce(text.trim());
      keepKey(text.trim());
    } catch (error) {
      setWrong(error.status === 401 ? "This key is not accepted." : `The key could not be tried: ${error.message}.`);
      setBusy(false);
    }
  }
  return html`<dialog ref=${dialog} class="signin" aria-labelledby="signin-title" onCancel=${(event) => event.preventDefault()}>
    <form method="dialog" onSubmit=${submit}>
      <h1 id="signin-title"><img src="icon.svg" alt="" width="28" height="28" /> Concord</h1>
      ${refused.value && key.value ? html`<p class="banner warn" role="alert">The key is no longer accepted: ${refused.value}. What you have typed is still here.</p>` : ""}
      <label class="field"><span>Access key</span>
        <input ref=${input} type="password" autocomplete="current-password" spellcheck=${false} required value=${text}
          onInput=${(event) => setText(event.target.value)} aria-describedby="key-hint" /></label>
      <p id="key-hint" class="muted small">The key decides what is seen here. It stays in this tab, is sent to this node only, and is gone when the tab is closed.</p>
      ${wrong ? html`<p class="banner bad" role="alert">${wrong}</p>` : ""}
      <footer><button class="primary" disabled=${busy || !text.trim()}>${busy ? "Trying…" : "Open the console"}</button></footer>
    </form>
  </dialog>`;
}
