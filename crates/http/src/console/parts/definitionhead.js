// The head of every page of one definition: where it is, and the tabs.
import { html } from "../vendor/preact.js";
import { href } from "../lib/state.js";
import { Crumbs, Tabs } from "./ui.js";
import { Frozen } from "./frozen.js";

export function DefinitionHead({ name, here, children }) {
  const tab = (text, id, parts) => ({ text, here: here === id, href: href(["d", name, ...parts]) });
  return html`<${Crumbs} items=${[{ text: "Definitions", href: "#/" }, { text: name }]} />
    <div class="title"><h1>${name}</h1><span class="grow"></span>${children}</div>
    <${Frozen} name=${name} />
    <${Tabs} label="Parts of the definition" items=${[
      tab("Configs", "configs", []), tab("Schema", "schema", ["schema"]),
      tab("Indexes and deletion", "indexes", ["indexes"]), tab("History", "history", ["history"]),
    ]} />`;
}
