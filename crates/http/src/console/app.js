// The console starts here: it finds the page of the place, loads its module, and hears the keyboard.
import { html, render, useEffect, useState } from "./vendor/preact.js";
import { timely } from "./lib/silence.js";
import { applyTheme, go, hasKey, key, principal, route, shown, spoken } from "./lib/state.js";
import { introduce, SignIn } from "./parts/signin.js";
import { Shell } from "./parts/shell.js";
import { Help, Palette } from "./parts/palette.js";
import { Problem } from "./parts/ui.js";

/** The module of a place, and what it is called in the title. A module is loaded when its page is opened. */
function pageOf(parts) {
  const [head, name, tab, config, view] = parts;
  if (head === undefined) return [() => import("./pages/definitions.js"), "Definitions"];
  if (head === "new") return [() => import("./pages/newdefinition.js"), "New definition"];
  if (head === "flags" && name === undefined) return [() => import("./pages/flags.js"), "Flags"];
  if (head === "flags" && tab) return [() => import("./pages/flag.js"), `Flag ${tab}`];
  if (head === "watch") return [() => import("./pages/watch.js"), "Changes"];
  if (head === "together") return [() => import("./pages/together.js"), "Change set"];
  if (head === "reviews" && name === undefined) return [() => import("./pages/reviews.js"), "Reviews"];
  if (head === "reviews" && tab === "edit") return [() => import("./pages/editrequest.js"), "Edit a change request"];
  if (head === "reviews") return [() => import("./pages/review.js"), "Change request"];
  if (head === "compare") return [() => import("./pages/promote.js"), "Compare environments"];
  if (head === "environments") return [() => import("./pages/environments.js"), "Environments"];
  if (head === "cluster") return [() => import("./pages/cluster.js"), "Cluster"];
  if (head === "usage") return [() => import("./pages/usage.js"), "Usage"];
  if (head === "keys") return [() => import("./pages/keys.js"), "Keys"];
  if (head === "audit") return [() => import("./pages/audit.js"), "Audit"];
  if (head === "d" && name) {
    if (tab === undefined) return [() => import("./pages/configs.js"), name];
    if (tab === "schema") return [() => import("./pages/schema.js"), `Schema of ${name}`];
    if (tab === "indexes") return [() => import("./pages/indexes.js"), `Indexes of ${name}`];
    if (tab === "history") return [() => import("./pages/definitionhistory.js"), `History of ${name}`];
    if (tab === "new") return [() => import("./pages/edit.js"), `New config of ${name}`];
    if (tab === "c" && config && view === undefined) return [() => import("./pages/config.js"), config];
    if (tab === "c" && config && view === "edit") return [() => import("./pages/edit.js"), `Edit ${config}`];
    if (tab === "c" && config && view === "history") return [() => import("./pages/confighistory.js"), `History of ${config}`];
  }
  return [null, "No such page"];
}

function Page() {
  const { parts, text } = route.value;
  const path = text.split("?")[0];
  const [page, setPage] = useState(null);
  useEffect(() => {
    let gone = false;
    const [load, title] = pageOf(parts);
    document.title = `${title} · Concord`;
    shown.value = [];
    if (!load) setPage({ path, missing: true });
    else {
      const fail = (error) => { if (!gone) setPage({ path, error }); };
      const loading = load();
      // A module that comes late is shown all the same.
      timely(loading).catch(fail);
      loading.then((module) => {
        if (gone) return;
        setPage({ path, Component: module.default });
        spoken.value = title;
        scrollTo(0, 0);
      }, fail);
    }
    return () => { gone = true; };
  }, [path]);
  if (!page) return html`<p class="loading" role="status">Loading…</p>`;
  if (page.error) return html`<${Problem} error=${page.error} /><button onClick=${() => location.reload()}>Load the console again</button>`;
  if (page.missing) return html`<div class="empty"><h1>There is no such page</h1><p><a href="#/">To the definitions</a></p></div>`;
  if (page.path !== path) return html`<p class="loading" role="status">Loading…</p>`;
  return html`<${page.Component} key=${path} parts=${parts} />`;
}

function isTyping(target) {
  return target.closest?.("input, textarea, select, dialog, .editor, [contenteditable]");
}

function App() {
  const [open, setOpen] = useState(null);
  useEffect(() => { if (hasKey.value) introduce().catch(() => { principal.value = null; }); }, []);
  useEffect(() => {
    let before = "";
    function onKey(event) {
      if ((event.ctrlKey || event.metaKey) && event.key === "k") {
        event.preventDefault();
        setOpen("palette");
        return;
      }
      if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target) || document.querySelector("dialog[open]")) return;
      const place = before === "g" && { d: [], f: ["flags"], w: ["watch"], r: ["reviews"], c: ["cluster"], u: ["usage"], t: ["together"] }[event.key];
      before = event.key;
      if (place) go(place);
      else if (event.key === "/") setOpen("palette");
      else if (event.key === "?") setOpen("help");
      else {
        const target = document.querySelector(`[data-key="${CSS.escape(event.key)}"]`);
        if (!target) return;
        target.click();
      }
      event.preventDefault();
    }
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, []);
  const close = () => setOpen(null);
  return html`
    ${key.value ? html`<${Shell} onPalette=${() => setOpen("palette")}><${Page} /></${Shell}>` : ""}
    ${hasKey.value ? "" : html`<${SignIn} />`}
    ${open === "palette" ? html`<${Palette} onClose=${close} />` : ""}
    ${open === "help" ? html`<${Help} onClose=${close} />` : ""}`;
}

applyTheme();
render(html`<${App} />`, document.getElementById("app"));
