// The configs of a definition as a table: its indexed fields are the columns, the filters and the sorts. The table follows
// the changes: what changes flashes, what comes and goes does so by itself.
import { html, useEffect, useMemo, useState } from "../vendor/preact.js";
import { href, lacks, route, session, setQuery } from "../lib/state.js";
import { definitionPath, get } from "../lib/api.js";
import { indexPath, indexed, isPattern } from "../lib/json.js";
import { ago, brief, count } from "../lib/format.js";
import { Rows } from "../lib/rows.js";
import { masked } from "../lib/secrets.js";
import { follow } from "../lib/watch.js";
import { Empty, Loaded, Problem, useLoad, useSearch } from "../parts/ui.js";
import { CopyAs } from "../parts/copyas.js";
import { DefinitionHead } from "../parts/definitionhead.js";
import { Filters } from "../parts/filters.js";
import { Table } from "../parts/table.js";

const OWN = ["q", "by", "order", "live"];

export default function Configs({ parts: [, name] }) {
  const definition = useLoad((signal) => get(definitionPath(name), [], { signal }), [name]);
  return html`<${DefinitionHead} name=${name} here="configs">
      ${lacks("propose", name) ? "" : html`<a class="button primary" href=${href(["d", name, "new"])} data-key="n">New config</a>`}
    </${DefinitionHead}>
    <${Loaded} of=${definition} what="the definition">${definition.data && html`<${List} name=${name} definition=${definition.data.data} exact=${definition.data.exact} onDefinition=${definition.reload} />`}</${Loaded}>`;
}

/** `exact` is the definition without loss; `onDefinition` is called when it has changed: what of the data is secret, too. */
function List({ name, definition, exact, onDefinition }) {
  const query = route.value.query;
  const filters = [...query].filter(([key]) => key.startsWith("f.")).map(([key, value]) => [key.slice(2), value]);
  const [live, setLive] = useState(query.get("live") !== "false");
  const [state, setState] = useState("");
  const [fresh, setFresh] = useState(new Set());
  const sort = { by: query.get("by") ?? "config_key", order: query.get("order") ?? "asc" };
  const change = (entries, newFilters = filters) => setQuery([
    ...Object.entries({ ...Object.fromEntries([...query].filter(([key]) => OWN.includes(key))), ...entries }).filter(([, value]) => value !== ""),
    ...newFilters.map(([key, value]) => [`f.${key}`, value]),
  ]);
  const search = useSearch(query.get("q") ?? "", (q) => change({ q }));
  const selection = [...(query.get("q") ? [["search", query.get("q")]] : []), ...filters];
  const parameters = [...selection, ["sort_by", sort.by], ["sort_order", sort.order]];
  const path = `${definitionPath(name)}/config/`;
  const rows = useMemo(() => new Rows(path, parameters), [path, JSON.stringify(parameters), session.value]);
  useEffect(() => () => rows.close(), [rows]);
  useEffect(() => {
    if (!live) { setState(""); return undefined; }
    const stop = new AbortController();
    let waiting = null;
    let changed = new Set();
    const later = () => {
      waiting ??= setTimeout(() => {
        waiting = null;
        rows.refresh();
        const shown = changed;
        changed = new Set();
        setFresh(shown);
        setTimeout(() => setFresh((now) => (now === shown ? new Set() : now)), 2500);
      }, 250);
    };
    follow([["definition", name], ...selection], {
      change(event) {
        for (const item of event.changes) if (item.config_key) changed.add(item.config_key);
        if (event.changes.some((item) => !item.config_key)) onDefinition();
        later();
      },
      state: setState,
      gone: later,
      refused: () => setState("refused"),
    }, stop.signal);
    return () => { stop.abort(); clearTimeout(waiting); };
  }, [rows, live]);
  const { total, error } = rows.state.value;
  const indexes = definition.indexes;
  const preview = indexes.length === 0;
  const schema = exact.get("json_schema");
  const sortable = (index) => !isPattern(index) && !["object", "array"].includes(typeAt(definition.json_schema, index));
  const columns = [
    { id: "key", title: "Key", width: "minmax(11rem, 1.4fr)", sort: "config_key", class: "strong",
      cell: (row) => html`<a href=${href(["d", name, "c", row.get("config_key")])} tabindex="-1">${row.get("config_key")}</a>` },
    ...(preview
      ? [{ id: "data", title: "Data", width: "minmax(16rem, 4fr)", class: "mono", cell: (row) => brief(masked(schema, row.get("data")), 200) }]
      : indexes.map((index) => ({ id: index, title: index, sort: sortable(index) ? index : undefined,
        cell: (row) => cell(indexed(masked(schema, row.get("data")), index)) }))),
    { id: "modified", title: "Changed", width: "9.5rem", sort: "modified_at", class: "muted",
      cell: (row) => html`<time title=${row.get("modified_at")}>${ago(row.get("modified_at"))}</time>` },
  ];
  const onSort = (by) => change({ by, order: sort.by === by && sort.order === "asc" ? "desc" : "asc" });
  const filtered = selection.length > 0;
  return html`<div class="bar">
      <input type="search" aria-label="Search configs by key" placeholder="Search by key" value=${search.text} onInput=${(event) => search.set(event.target.value)} />
      <${Filters} paths=${indexes} filters=${filters} onChange=${(list) => change({}, list)} />
      <span class="grow"></span>
      <span class="muted" role="status">${total === null ? "" : count(total, "config")}${filtered && total !== null ? " found" : ""}</span>
      <label class="check"><input type="checkbox" checked=${live} onChange=${(event) => { setLive(event.target.checked); change({ live: event.target.checked ? "" : "false" }); }} /> Live
        <span class=${`dot ${live ? state : ""}`} title=${{ live: "Changes arrive as they happen", waiting: "The connection is being made again", refused: "The node does not let this key follow changes" }[state] ?? ""}></span></label>
      <${CopyAs} requests=${[
        { label: "List these configs", method: "GET", path, query: [...parameters, ["limit", 100]] },
        { label: "Follow these configs", method: "GET", path: "/watch", query: [["definition", name], ...selection], stream: true },
      ]} />
    </div>
    <${Problem} error=${error} />
    ${error ? html`<button onClick=${() => rows.refresh()}>Try again</button>` : ""}
    ${total === 0 ? html`<${Empty} title=${filtered ? "No config fits" : "There is no config yet"}>
        ${filtered ? html`<button onClick=${() => { search.set(""); change({ q: "" }, []); }}>Show all</button>
          ${query.get("q") ? html` Deleted? <a href=${href(["d", name, "c", query.get("q"), "history"])}>The history of ${query.get("q")}</a>` : ""}`
          : html`<a href=${href(["d", name, "new"])}>Create the first one</a>, or write it over HTTP.`}</${Empty}>` : ""}
    <div hidden=${total === 0 || (error && total === null)}><${Table} label=${`Configs of ${name}`} rows=${rows} columns=${columns} sort=${sort} onSort=${onSort} fresh=${fresh}
      rowKey=${(row) => row.get("config_key")} rowHref=${(row) => href(["d", name, "c", row.get("config_key")])} /></div>`;
}

/** Values of a pattern that a cell shows. */
const VALUES_MAX = 8;

function cell(values) {
  if (values.length === 0) return html`<span class="muted">–</span>`;
  if (values.length === 1 && typeof values[0] === "boolean") return html`<span class=${values[0] ? "yes" : "no"}>${String(values[0])}</span>`;
  return values.slice(0, VALUES_MAX).map((value) => brief(value, 80)).join(", ") + (values.length > VALUES_MAX ? `, and ${values.length - VALUES_MAX} more` : "");
}

function typeAt(schema, index) {
  const found = indexPath(index).reduce((part, step) => part?.properties?.[step], schema);
  return found?.type;
}
