// What is around every page: navigation, the node that answers, what is wrong with it, the theme, short messages.
import { html, useEffect } from "../vendor/preact.js";
import { together } from "../lib/together.js";
import { AGAIN, recount, waiting } from "../lib/waiting.js";
import { href, keepKey, lacks, messages, node, principal, route, setTheme, spoken, theme, trouble, unsaved } from "../lib/state.js";

export function places() {
  const all = [
    { text: "Definitions", parts: [], heads: [undefined, "d", "new"] },
    { text: "Flags", parts: ["flags"] },
    { text: "Changes", parts: ["watch"] },
    { text: "Reviews", parts: ["reviews"], badge: waiting.value },
    { text: "Environments", parts: ["environments"], heads: ["environments", "compare"] },
    { text: "Cluster", parts: ["cluster"], verb: "observe" },
    { text: "Usage", parts: ["usage"], verb: "observe" },
  ];
  if (together.value.length) all.push({ text: `Change set (${together.value.length})`, parts: ["together"] });
  if (principal.value) all.push({ text: "Keys", parts: ["keys"], verb: principal.value.person ? undefined : "keys" }, { text: "Audit", parts: ["audit"], verb: "audit" });
  return all.filter((place) => !(place.verb && lacks(place.verb)));
}

/** How many of a place wait for the person; a screen reader says it in words. */
function Badge({ of }) {
  if (!of?.number) return null;
  const text = `${of.number}${of.more ? "+" : ""}`;
  return html` <span class="badge" aria-hidden="true">${text}</span><span class="unseen"> (${text} to review)</span>`;
}

export function Shell({ children, onPalette }) {
  useEffect(() => {
    const look = () => { if (!document.hidden) recount(); };
    look();
    const timer = setInterval(look, AGAIN);
    document.addEventListener("visibilitychange", look);
    return () => { clearInterval(timer); document.removeEventListener("visibilitychange", look); };
  }, [principal.value]);
  const head = route.value.parts[0];
  const next = { auto: "light", light: "dark", dark: "auto" };
  return html`<a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); document.getElementById("main").focus(); }}>To the content</a>
    <header class="top">
      <a class="brand" href="#/"><img src="icon.svg" alt="" width="22" height="22" /> Concord</a>
      <nav aria-label="Pages">${places().map((place) => html`<a href=${href(place.parts)}
        aria-current=${(place.heads ?? place.parts).includes(head) ? "page" : undefined}>${place.text}<${Badge} of=${place.badge} /></a>`)}</nav>
      <span class="grow"></span>
      <button class="quiet find" onClick=${onPalette}>Go to… <kbd>/</kbd></button>
      ${node.value.id ? html`<span class="muted small node" title="The node that answers, and the revision of its state">node ${node.value.id} · revision ${node.value.revision}</span>` : ""}
      <button class="quiet" title=${`Theme: ${theme.value}`} aria-label=${`Theme: ${theme.value}. Change to ${next[theme.value]}`}
        onClick=${() => setTheme(next[theme.value])}>${{ auto: "◐", light: "☀", dark: "☾" }[theme.value]}</button>
      <span class="who small">${principal.value?.name ?? principal.value?.key_id ?? "root"}</span>
      <button class="quiet" onClick=${() => { const left = unsaved.value || (together.value.length ? "The change set is not made yet." : ""); if (!left || confirm(`${left} Sign out?`)) { unsaved.value = ""; together.value = []; keepKey(""); principal.value = null; location.hash = "#/"; } }}>Sign out</button>
    </header>
    ${trouble.value ? html`<div class="trouble" role="status"><span class="spin" aria-hidden="true"></span>
      ${trouble.value.text} Trying again…
      ${trouble.value.status === 0 && trouble.value.members.length ? html` Consoles of the others: ${trouble.value.members.map((member) => html` <a href=${member.url}>node ${member.id}</a>`)}` : ""}
    </div>` : ""}
    <main id="main" tabindex="-1">${children}</main>
    <div class="messages" aria-hidden="true">${messages.value.map((message) => html`<div key=${message.id} class=${`message ${message.kind}`}>${message.text}</div>`)}</div>
    <div class="unseen" role="status" aria-live="polite">${spoken.value}</div>`;
}
