// What the whole console shares: the key, the place in it, the theme, short messages, and what is known of the node.
// The key is in the session's storage at most, so that it ends with the tab, and never in an address.
import { signal, computed } from "../vendor/preact.js";

const KEY = "concord-key";

/** The key that was typed in. */
export const key = signal(sessionStorage.getItem(KEY) ?? "");
/** Raised when a key is accepted: what was loaded with another key is loaded again. */
export const session = signal(0);
/** The node refused the key: why, to be shown where a new one is asked for. */
export const refused = signal("");
/** What GET /api/v1/whoami says; null when the cluster has root keys only. */
export const principal = signal(null);
/** Where the console is: path, and parameters of the part behind `#`. */
export const route = signal(readRoute());
/** Whether the node answers: null, or { text, members } while requests are tried again. */
export const trouble = signal(null);
/** The node that answered last, and the revision of its state. */
export const node = signal({ id: null, revision: null });
/** The members that the node named last: where to go when it does not answer. */
export const members = signal([]);
export const messages = signal([]);
/** What a screen reader says next. */
export const spoken = signal("");
/** The requests that show what the page shows, for "copy as". */
export const shown = signal([]);
export const theme = signal(localStorage.getItem("concord-theme") ?? "auto");

export function keepKey(text) {
  key.value = text;
  refused.value = "";
  if (text) sessionStorage.setItem(KEY, text);
  else sessionStorage.removeItem(KEY);
  session.value += 1;
}

export function setTheme(name) {
  theme.value = name;
  localStorage.setItem("concord-theme", name);
  applyTheme();
}

export function applyTheme() {
  const dark = theme.value === "dark" || (theme.value === "auto" && matchMedia("(prefers-color-scheme: dark)").matches);
  document.documentElement.dataset.theme = dark ? "dark" : "light";
}

function readRoute() {
  const [path, query = ""] = location.hash.replace(/^#/, "").split("?");
  const parts = path.split("/").filter(Boolean).map(decode);
  return { parts, query: new URLSearchParams(query), text: location.hash };
}

function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch (error) {
    if (error instanceof URIError) return part;
    throw error;
  }
}

/** Whether the page may be left: an editor sets it while something is not saved. */
export const unsaved = signal("");

addEventListener("hashchange", () => {
  const old = route.value;
  if (unsaved.value && location.hash !== old.text) {
    if (!confirm(`${unsaved.value} Leave the page?`)) {
      history.replaceState(null, "", old.text || "#/");
      return;
    }
    unsaved.value = "";
  }
  route.value = readRoute();
});
addEventListener("beforeunload", (event) => { if (unsaved.value) event.preventDefault(); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", applyTheme);

/** The address of a place in the console. */
export function href(parts, query) {
  const text = new URLSearchParams(query ?? {}).toString();
  return `#/${parts.map(encodeURIComponent).join("/")}${text ? `?${text}` : ""}`;
}

export function go(parts, query) {
  location.hash = href(parts, query);
}

/** Changes the parameters of the place without a new entry in the browser's history. */
export function setQuery(entries) {
  history.replaceState(null, "", href(route.value.parts, entries));
  route.value = readRoute();
}

/** A short message at the edge of the page. */
export function say(text, kind = "good") {
  const message = { text, kind, id: Math.random() };
  messages.value = [...messages.value.filter((other) => other.text !== text), message].slice(-3);
  spoken.value = text;
  setTimeout(() => { messages.value = messages.value.filter((other) => other.id !== message.id); }, 6000);
}

/** Whether the key is known to lack a right. Without `whoami` nothing is known, and the node decides. */
export function lacks(verb, definition) {
  const grants = principal.value?.grants;
  if (!Array.isArray(grants) || principal.value.root) return false;
  const allows = (verbs) => verbs.includes(verb) || (verb === "observe" && verbs.includes("cluster"))
    || (verb === "propose" && (verbs.includes("write") || verbs.includes("define")))
    || (verb === "report" && verbs.includes("approve"));
  return !grants.some((grant) => allows(grant.verbs ?? [])
    && (definition === undefined || (grant.definitions ?? []).some((pattern) => covers(pattern, definition))));
}

function covers(pattern, definition) {
  return pattern.endsWith("*") ? definition.startsWith(pattern.slice(0, -1)) : pattern === definition;
}

export const hasKey = computed(() => key.value !== "" && refused.value === "");
