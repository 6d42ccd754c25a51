// All definitions: search, sort, pages; the way to a new one.
import { html } from "../vendor/preact.js";
import { href, lacks, route, setQuery } from "../lib/state.js";
import { get } from "../lib/api.js";
import { count } from "../lib/format.js";
import { Empty, Loaded, Time, useLoad, useSearch } from "../parts/ui.js";
import { CopyAs } from "../parts/copyas.js";

const LIMIT = 50;

export default function Definitions() {
  const query = route.value.query;
  const page = Number(query.get("page") ?? 1);
  const [by, order] = [query.get("by") ?? "config_definition_key", query.get("order") ?? "asc"];
  const change = (entries) => setQuery({ ...Object.fromEntries(query), ...entries });
  const search = useSearch(query.get("search") ?? "", (text) => change({ search: text, page: 1 }));
  // Those of an environment, as its page links to them.
  const pattern = query.get("definition") ?? "";
  const parameters = [["search", query.get("search") ?? ""], ["definition", pattern], ["sort_by", by], ["sort_order", order], ["page", page], ["limit", LIMIT]]
    .filter(([, value]) => value !== "");
  const list = useLoad((signal) => get("/config_definition/", parameters, { signal }), [JSON.stringify(parameters)]);
  const data = list.data?.data;
  const pages = data ? Math.max(1, Math.ceil(data.meta.total / LIMIT)) : 1;
  const sortable = (id, title) => html`<th aria-sort=${by === id ? (order === "asc" ? "ascending" : "descending") : undefined}><button class="sort"
    onClick=${() => change({ by: id, order: by === id && order === "asc" ? "desc" : "asc", page: 1 })}>${title} <span aria-hidden="true">${by === id ? (order === "asc" ? "▲" : "▼") : ""}</span></button></th>`;
  return html`<div class="title"><h1>Definitions</h1><span class="muted">${data ? count(data.meta.total, "definition") : ""}</span><span class="grow"></span>
      <${CopyAs} requests=${[{ label: "List the definitions", method: "GET", path: "/config_definition/", query: parameters }]} />
      ${lacks("propose") ? "" : html`<a class="button primary" href=${href(["new"])} data-key="n">New definition</a>`}</div>
    <div class="bar"><input type="search" aria-label="Search definitions by key" placeholder="Search by key" value=${search.text} onInput=${(event) => search.set(event.target.value)} />
      ${pattern ? html`<span class="chip"><b>${pattern}</b><button aria-label=${`Show others than ${pattern}`} onClick=${() => change({ definition: "", page: 1 })}>✕</button></span>` : ""}</div>
    <${Loaded} of=${list} what="the definitions">${data && (data.results.length === 0
      ? html`<${Empty} title=${query.get("search") || pattern ? "No definition fits" : "There is no definition yet"}>
          ${query.get("search") || pattern ? html`<button onClick=${() => { search.set(""); setQuery([]); }}>Show all</button>`
            : html`A definition says what its configs look like: a JSON schema, and the fields by which they are found. <a href=${href(["new"])}>Create the first one.</a>`}</${Empty}>`
      : html`<div class="scroll" tabindex="0" role="region" aria-label="Definitions"><table><thead><tr>${sortable("config_definition_key", "Key")}<th>Schema</th><th>Indexed fields</th>
          ${sortable("created_at", "Created")}${sortable("modified_at", "Changed")}</tr></thead>
        <tbody>${data.results.map((item) => html`<tr key=${item.config_definition_key}><td><a class="strong" href=${href(["d", item.config_definition_key])}>${item.config_definition_key}</a>
          ${item.json_schema?.title ? html`<div class="muted small">${item.json_schema.title}</div>` : ""}</td>
          <td>${item.json_schema ? fields(item.json_schema) : html`<span class="muted">any object</span>`}</td>
          <td>${item.indexes.length ? item.indexes.map((path) => html`<code class="tag">${path}</code> `) : html`<span class="muted">none</span>`}</td>
          <td><${Time} of=${item.created_at} /></td><td><${Time} of=${item.modified_at} /></td></tr>`)}</tbody></table></div>
        ${pages > 1 ? html`<nav class="pages" aria-label="Pages"><button disabled=${page <= 1} onClick=${() => change({ page: page - 1 })}>Previous</button>
          <span>Page ${page} of ${pages}</span><button disabled=${page >= pages} onClick=${() => change({ page: page + 1 })}>Next</button></nav>` : ""}`)}</${Loaded}>`;
}

function fields(schema) {
  const names = Object.keys(schema.properties ?? {});
  return names.length ? html`${count(names.length, "field")} <span class="muted small">${names.slice(0, 4).join(", ")}${names.length > 4 ? "…" : ""}</span>` : html`<span class="muted">a schema</span>`;
}
