// The history of a definition: its indexes and its schema, change by change.
import { html } from "../vendor/preact.js";
import { definitionPath } from "../lib/api.js";
import { CopyAs } from "../parts/copyas.js";
import { DefinitionHead } from "../parts/definitionhead.js";
import { History } from "../parts/history.js";

export default function DefinitionHistory({ parts: [, name] }) {
  const path = `${definitionPath(name)}/history`;
  return html`<${DefinitionHead} name=${name} here="history"><${CopyAs} requests=${[{ label: "Its history", method: "GET", path }]} /></${DefinitionHead}>
    <${History} path=${path} label="Changes of the definition" />`;
}
