// "Go to": a list of places that narrows while one types, and the keys of the keyboard. Opened with / or Ctrl-K.
import { html, useEffect, useLayoutEffect, useRef, useState } from "../vendor/preact.js";
import { href } from "../lib/state.js";
import { get } from "../lib/api.js";
import { Dialog } from "./ui.js";
import { places } from "./shell.js";

export const KEYS = [
  ["/ or Ctrl K", "go to a page, a definition or a config"],
  ["?", "this list"],
  ["g then d, f, w, r, c, u, t", "definitions, flags, changes, reviews, cluster, usage, change set"],
  ["n", "new: a definition, a config or a flag, as the page has it"],
  ["e", "edit the config that is shown"],
  ["a", "approve the change request that is shown, after a question"],
  ["h", "history of what is shown"],
  ["Ctrl S", "save what is edited"],
  ["↑ ↓ Home End PgUp PgDn", "move in the table, Enter opens"],
  ["Escape", "close, or leave the editor"],
];

export function Help({ onClose }) {
  return html`<${Dialog} title="Keyboard" onClose=${onClose}><dl class="keys">${KEYS.map(([keys, what]) => html`<div><dt><kbd>${keys}</kbd></dt><dd>${what}</dd></div>`)}</dl></${Dialog}>`;
}

/** Without the configs, the pages and definitions are still offered. */
function none(error) {
  if (error.status === undefined) throw error;
  return null;
}
/** Configs that are offered. */
const CONFIGS_MAX = 20;
const configPlace = (definition, config) => ({ text: `${definition} / ${config}`, kind: "config", parts: ["d", definition, "c", config] });

export function Palette({ onClose }) {
  const [text, setText] = useState("");
  const [found, setFound] = useState([]);
  const [configs, setConfigs] = useState([]);
  const [at, setAt] = useState(0);
  const input = useRef(null);
  useLayoutEffect(() => input.current.focus(), []);
  useEffect(() => {
    const stop = new AbortController();
    const timer = setTimeout(async () => {
      try {
        const wanted = text.split("/").at(-1).trim();
        const [answer, others] = await Promise.all([get("/config_definition/", [["search", text.split("/")[0].trim()], ["limit", 20], ["sort_by", "config_definition_key"], ["sort_order", "asc"]], { signal: stop.signal, once: true }),
          wanted ? get("/config", [["search", wanted], ["limit", CONFIGS_MAX]], { signal: stop.signal, once: true }).catch(none) : null]);
        setConfigs(others?.data.results ?? []);
        setFound(answer.data.results.map((definition) => definition.config_definition_key));
      } catch (error) {
        if (error.name === "AbortError") return;
        setFound([]);
        setConfigs([]);
      }
    }, 120);
    return () => { clearTimeout(timer); stop.abort(); };
  }, [text]);
  const [wanted, config] = text.split("/").map((part) => part.trim());
  const items = [
    ...(config ? [configPlace(wanted, config)] : []),
    ...places().filter((place) => place.text.toLowerCase().includes(text.toLowerCase())).map((place) => ({ ...place, kind: "page" })),
    ...found.map((name) => ({ text: name, kind: "definition", parts: ["d", name] })),
    ...configs.filter((item) => !config || (item.config_definition_key.includes(wanted) && !(item.config_definition_key === wanted && item.config_key === config)))
      .map((item) => configPlace(item.config_definition_key, item.config_key)),
  ];
  const chosen = Math.min(at, items.length - 1);
  function onKey(event) {
    if (event.key === "ArrowDown") setAt(Math.min(chosen + 1, items.length - 1));
    else if (event.key === "ArrowUp") setAt(Math.max(chosen - 1, 0));
    else if (event.key === "Enter" && items[chosen]) { location.hash = href(items[chosen].parts); onClose(); }
    else return;
    event.preventDefault();
  }
  return html`<${Dialog} title="Go to" onClose=${onClose}>
    <input ref=${input} class="wide" role="combobox" aria-expanded="true" aria-controls="palette-list" aria-label="Page, definition or config"
      aria-activedescendant=${items.length ? `palette-${chosen}` : undefined} placeholder="page, definition or config" value=${text}
      onInput=${(event) => { setText(event.target.value); setAt(0); }} onKeyDown=${onKey} />
    <ul id="palette-list" role="listbox" aria-label="Places" class="choices">${items.map((item, place) => html`<li id=${`palette-${place}`} role="option" aria-selected=${place === chosen}
      onClick=${() => { location.hash = href(item.parts); onClose(); }}><span>${item.text}</span><span class="muted small">${item.kind}</span></li>`)}</ul>
    ${items.length === 0 ? html`<p class="muted">Nothing has this name.</p>` : ""}
  </${Dialog}>`;
}
