// The small parts that every page is made of: buttons, banners, dialogs, empty states, loading, tabs.
import { html, useEffect, useLayoutEffect, useRef, useState } from "../vendor/preact.js";
import { href, session, say } from "../lib/state.js";
import { call, newIdempotencyKey } from "../lib/api.js";
import { ago, time } from "../lib/format.js";

/** Loads something and loads it again when `deps` change or another key is typed in. */
export function useLoad(load, deps) {
  const [state, setState] = useState({ loading: true });
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    const stop = new AbortController();
    setState((old) => ({ ...old, loading: true }));
    load(stop.signal).then(
      (data) => { if (!stop.signal.aborted) setState({ data }); },
      (error) => { if (!stop.signal.aborted) setState((old) => ({ data: old.data, error })); },
    );
    return () => stop.abort();
  }, [...deps, session.value, turn]);
  return { ...state, reload: () => setTurn((old) => old + 1) };
}

/** The state of what is edited, where no dry run was answered. */
export const UNCHECKED = ["", "The node does not answer: not checked yet"];
/** Until a function that asks for it is called again, in milliseconds. */
const AGAIN = 5000;

/** Calls a function when its input has been still for a while; again, when it returns that it knows nothing yet. */
export function useDebounced(run, deps, milliseconds = 350) {
  useEffect(() => {
    const stop = new AbortController();
    let timer = setTimeout(begin, milliseconds);
    async function begin() {
      if (await run(stop.signal) && !stop.signal.aborted) timer = setTimeout(begin, AGAIN);
    }
    return () => { clearTimeout(timer); stop.abort(); };
  }, deps);
}

/** A field whose text is also in the address. Another address replaces what is typed, but not the one that was `sent` from here: the next key can come first. */
export function useTyped(current) {
  const [text, set] = useState(current);
  const known = useRef(current);
  useEffect(() => {
    if (current === known.current) return;
    known.current = current;
    set(current);
  }, [current]);
  return { text, set, sent(value) { known.current = value; } };
}

/** A field whose text is given to `send` when it has been still for a moment; `current` is the text in the address. */
export function useSearch(current, send) {
  const field = useTyped(current);
  useDebounced(() => {
    if (field.text === current) return;
    field.sent(field.text);
    send(field.text);
  }, [field.text], 200);
  return field;
}

/** Rejections that the log stores for an idempotency key: they hold for each copy of a write, but for one of a change request. Others say nothing of an earlier copy. */
const VERDICTS = [
  "config_exists", "config_not_found", "definition_exists", "definition_not_empty", "definition_protected",
  "precondition_failed", "unique_taken",
];
const isVerdict = (path, error) => !path.startsWith("/change_request/") && error.items?.some((item) => VERDICTS.includes(item.code));

/**
 * A write of a page: `run` sends the request. An unknown outcome keeps its idempotency key, so that to send the same again
 * does it once at most, and stays unknown until an answer decides it. `options.plain` is for requests that take no such
 * key: changes of members.
 */
export function useWrite() {
  const [state, setState] = useState({});
  /** The write whose outcome is unknown: { text, idempotencyKey }. */
  const open = useRef(null);
  async function run(method, path, options, done) {
    const text = JSON.stringify([method, path, options.query, options.headers, options.body]);
    const earlier = open.current?.text === text ? open.current : null;
    const idempotencyKey = options.plain ? undefined : earlier?.idempotencyKey ?? newIdempotencyKey();
    setState({ busy: true });
    try {
      const answer = await call(method, path, { ...options, idempotencyKey });
      open.current = null;
      setState({});
      await done?.(answer);
      return answer;
    } catch (error) {
      if (earlier && !isVerdict(path, error)) error.unknown = true;
      const isAgain = error.unknown && !options.plain;
      open.current = isAgain ? { text, idempotencyKey } : null;
      setState({ error, again: isAgain ? () => run(method, path, options, done) : null });
      return null;
    }
  }
  return { ...state, run, clear: () => setState({}) };
}

/** Errors of one refusal that are listed. */
const ITEMS_MAX = 8;

/** What some refusals are about, where the status does not say it. */
const TITLES = {
  change_required: "The environment takes change requests only.", environment_frozen: "The environment is frozen.",
  change_digest: "It has a newer edition.", change_stale: "It is stale.", change_closed: "It is closed.", not_approved: "It is not approved.",
  change_not_due: "It is not the time for it.", not_revertible: "It can't be taken back.",
  rollout_active: "A rollout has it.", rollout_stage: "The rollout is at another stage.", rollout_invalid: "It can't be released like that.", too_many_rollouts: "Too many rollouts run.",
};

/** The way to the rollout that refuses a write: the node names its change request. */
function Way({ of: { code, msg } }) {
  const change = code === "rollout_active" && /change request (\S+) is being rolled out/.exec(msg)?.[1];
  return change ? html` <a href=${href(["reviews", change])}>Show the rollout</a>` : null;
}

/** What went wrong, in words that do not promise too much. */
export function Problem({ error, again }) {
  if (!error) return null;
  if (error.status === undefined) return html`<div class="banner bad" role="alert"><strong>The console failed.</strong> ${error.message}</div>`;
  const titles = {
    0: "No answer.", 401: "The key is not accepted.", 403: "Your key does not allow this.", 404: "There is no such thing.",
    409: "It conflicts with what is there.", 410: "No longer retained.", 412: "Somebody has changed it.",
    413: "Too large.", 422: "Not valid.", 429: "The node has too much to do: nothing was changed.", 500: "The node failed.",
    503: "Not available: nothing was changed.", 504: "No answer in time.", 507: "The disk is full: nothing was changed.",
  };
  return html`<div class=${`banner ${error.unknown ? "warn" : "bad"}`} role="alert">
    ${error.unknown
      ? html`<strong>Outcome unknown.</strong> The change may or may not have been applied. <span class="muted">(${error.message})</span>`
      : html`<strong>${TITLES[error.items[0]?.code] ?? titles[error.status] ?? `Refused with status ${error.status}.`}</strong>
        ${error.items.length === 1
          ? html` ${error.items[0].msg}${error.items[0].loc ? html` <code>${error.items[0].loc.join(" › ")}</code>` : null}<${Way} of=${error.items[0]} />`
          : html`<ul>${error.items.slice(0, ITEMS_MAX).map((item) => html`<li>${item.loc ? html`<code>${item.loc.join(" › ")}</code> ` : null}${item.msg}<${Way} of=${item} /></li>`)}${error.items.length > ITEMS_MAX ? html`<li>and ${error.items.length - ITEMS_MAX} more</li>` : null}</ul>`}`}
    ${again ? html` <button type="button" onClick=${again}>Send it again</button> <span class="muted">It is done once at most.</span>` : null}
    ${error.requestId ? html`<div class="muted small">request ${error.requestId}</div>` : null}
  </div>`;
}

/** The page's own content once it is loaded; before, a quiet sign; instead of it, what went wrong. */
export function Loaded({ of, children, what = "this page" }) {
  if (of.error && of.data === undefined) {
    return html`<${Problem} error=${of.error} /><button type="button" onClick=${of.reload}>Try again</button>`;
  }
  if (of.data === undefined) return html`<p class="loading" role="status">Loading ${what}…</p>`;
  return html`<${Problem} error=${of.error} />${children}`;
}

export function Empty({ title, children }) {
  return html`<div class="empty"><h2>${title}</h2><p>${children}</p></div>`;
}

/** A time, how long ago it is, exactly when pointed at. */
export function Time({ of }) {
  return of ? html`<time datetime=${of} title=${of}>${time(of)} <span class="muted">${ago(of)}</span></time>` : html`<span class="muted">–</span>`;
}

/** A dialog of the browser's own kind: focus stays inside, Escape closes it. */
export function Dialog({ title, onClose, children, wide }) {
  const ref = useRef(null);
  useLayoutEffect(() => {
    ref.current.showModal();
    // The browser begins at the button that closes it; a person begins where they type.
    ref.current.querySelector("form :is(input:not([type=checkbox], [type=radio]), select, textarea):not(:disabled)")?.focus();
    return () => ref.current?.close();
  }, []);
  return html`<dialog ref=${ref} class=${wide ? "wide" : ""} aria-labelledby="dialog-title"
    onCancel=${(event) => { event.preventDefault(); onClose(); }}>
    <header><h2 id="dialog-title">${title}</h2><button type="button" class="quiet" aria-label="Close" onClick=${onClose}>✕</button></header>
    ${children}
  </dialog>`;
}

/** Asks before something that is hard to undo. `type` is a word to be typed, where much would go; `beside` stands beside the button. */
export function Confirm({ title, children, action, danger, type, beside, onClose, onConfirm, write }) {
  const [typed, setTyped] = useState("");
  return html`<${Dialog} title=${title} onClose=${onClose}>
    <form method="dialog" onSubmit=${(event) => { event.preventDefault(); onConfirm(); }}>
      <div class="stack">${children}</div>
      ${type ? html`<label class="field"><span>Type <code>${type}</code> to go on</span>
        <input autocomplete="off" value=${typed} onInput=${(event) => setTyped(event.target.value)} /></label>` : null}
      <${Problem} error=${write?.error} again=${write?.again} />
      <footer><button type="button" onClick=${onClose}>Cancel</button>${beside}
        <button class=${danger ? "danger" : "primary"} disabled=${write?.busy || (type && typed !== type)}>${write?.busy ? "Working…" : action}</button></footer>
    </form>
  </${Dialog}>`;
}

/** Links that look like tabs: each is a place of its own. */
export function Tabs({ items, label }) {
  return html`<nav class="tabs" aria-label=${label}>${items.map((item) => html`<a href=${item.href}
    aria-current=${item.here ? "page" : undefined}>${item.text}</a>`)}</nav>`;
}

export function Crumbs({ items }) {
  return html`<nav class="crumbs" aria-label="Where this is"><ol>${items.map((item) => html`<li>
    ${item.href ? html`<a href=${item.href}>${item.text}</a>` : html`<span aria-current="page">${item.text}</span>`}</li>`)}</ol></nav>`;
}

export async function copyText(text, what) {
  try {
    await navigator.clipboard.writeText(text);
    say(`${what} copied`);
  } catch {
    // The clipboard needs a secure origin: plain HTTP on another host has none.
    say("The browser does not allow copying here: select the text instead", "bad");
  }
}

export function Field({ label, hint, children, error }) {
  return html`<div class=${`field ${error ? "wrong" : ""}`}><label><span>${label}</span>${children}</label>
    ${hint ? html`<small class="muted">${hint}</small>` : null}${error ? html`<small class="error">${error}</small>` : null}</div>`;
}
