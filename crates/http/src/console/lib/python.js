// A request as a program in Python, by the calls of `clients/python`. What these can't say is a request by its library
// alone. The address and the key come from the environment or from the place that the console came from.
import { url } from "./api.js";
import { Num, parse } from "./json.js";

/** A text as Python writes it. */
const quote = (text) => JSON.stringify(text).replace(/[\u{7f}-\u{10ffff}]/gu, (c) => `\\U${c.codePointAt(0).toString(16).padStart(8, "0")}`);

/** A number whose digits a float would lose is a Decimal; `needs` notes that. */
function number(text, needs) {
  if (/^-?\d+$/.test(text) || String(Number(text)) === text.replace(/\.0+$/, "")) return text;
  needs.decimal = true;
  return `Decimal(${quote(text)})`;
}

/** A value of JSON as Python writes it, indented where it is long. */
function literal(value, needs, depth = 0) {
  if (value instanceof Num) return number(value.text, needs);
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value === "string") return quote(value);
  const isList = Array.isArray(value);
  const items = isList ? value.map((item) => literal(item, needs, depth + 1))
    : [...value].map(([name, item]) => `${quote(name)}: ${literal(item, needs, depth + 1)}`);
  const [open, close] = isList ? "[]" : "{}";
  const line = `${open}${items.join(", ")}${close}`;
  if (line.length < 90 && !line.includes("\n")) return line;
  const pad = "    ".repeat(depth + 1);
  return `${open}\n${items.map((item) => `${pad}${item},\n`).join("")}${"    ".repeat(depth)}${close}`;
}

/** The arguments of a list or a watch that its query says; null where one can't be said. */
function selection(query, names) {
  const filters = new Map();
  const named = [];
  for (const [name, text] of query) {
    const value = String(text);
    if (name in names) {
      const made = names[name](value);
      if (made !== null) named.push(made);
    } else filters.set(name, filters.has(name) ? [filters.get(name), value].flat() : value);
  }
  return { filters: filters.size ? [`filters=${literal(filters, {})}`] : [], named };
}

const text = (name) => (value) => (value === "" ? null : `${name}=${quote(value)}`);
const whole = (name) => (value) => (/^\d+$/.test(value) ? `${name}=${value}` : null);
const LISTING = {
  search: text("search"), sort_by: text("sort_by"), sort_order: (value) => `descending=${value === "asc" ? "False" : "True"}`,
  include: () => null, $include: () => null, cursor: () => null,
};

/** The options of a write, from its headers and its query; null where one can't be said. */
function options({ headers = {}, query = [] }) {
  const found = [];
  for (const [name, value] of Object.entries(headers)) {
    const revision = /^"(\d+)"$/.exec(value);
    if (name === "If-Match" && revision) found.push(`if_match=${revision[1]}`);
    else if (name === "If-None-Match" && value === "*") found.push("create_only=True");
    else if (name === "X-Change-Reason") found.push(`reason=${quote(value)}`);
    else if (name !== "Content-Type") return null;
  }
  for (const [name, value] of query) {
    if (name === "dry_run") found.push("dry_run=True");
    else if (name === "policy" && value === "force") found.push("force=True");
    else if (name === "mode" && value === "restrict") found.push("restrict=True");
    else return null;
  }
  return found;
}

const REVISION = (call) => `print(${call}.revision)`;
const EACH = (shown) => (call, item) => `for ${item} in ${call}:\n    print(${shown})`;

/** Requests and their calls: method, path, and what makes { call, show, item }. */
const CALLS = [
  ["GET", /^\/config_definition\/$/, ({ query }) => {
    const { filters, named } = selection(query, { ...LISTING, limit: whole("page_size"), page: () => null });
    return filters.length ? null : { name: "list_definitions", parts: named, show: EACH("definition.key"), item: "definition" };
  }],
  ["GET", /^\/config_definition\/([^/]+)$/, ({ keys }) => ({ name: "get_definition", parts: keys, show: (call) => `print(${call})` })],
  ["GET", /^\/config_definition\/([^/]+)\/schema$/, ({ keys }) => ({ name: "get_definition", parts: keys, show: (call) => `print(${call}.schema)` })],
  ["GET", /^\/config_definition\/([^/]+)\/unique$/, ({ keys }) => ({ name: "get_unique", parts: keys, show: (call) => `print(${call})` })],
  ["GET", /^\/config_definition\/([^/]+)\/indexes$/, ({ keys }) => ({ name: "index_progress", parts: keys, show: (call) => `print(${call})` })],
  ["GET", /^\/config_definition\/([^/]+)\/history$/, ({ keys }) => ({ name: "definition_history", parts: keys, show: EACH("past.revision, past.operation, past.data"), item: "past" })],
  ["GET", /^\/config_definition\/([^/]+)\/config\/$/, ({ keys, query }) => {
    const { filters, named } = selection(query, { ...LISTING, page: whole("page"), limit: whole("limit") });
    return { name: "page", parts: [...keys, ...filters, ...named], show: (call) => `for config in ${call}.items:\n    print(config.key, config.data)` };
  }],
  ["GET", /^\/config_definition\/([^/]+)\/config\/([^/]+)$/, ({ keys, query }) => (query.length ? null : { name: "get", parts: keys, show: (call) => `print(${call}.data)` })],
  ["GET", /^\/config_definition\/([^/]+)\/config\/([^/]+)\/history$/, ({ keys }) => ({ name: "history", parts: keys, show: EACH("past.revision, past.operation, past.data"), item: "past" })],
  ["GET", /^\/watch$/, ({ query }) => {
    const of = (name) => query.filter(([other]) => other === name).map(([, value]) => quote(String(value)));
    const configs = of("config_key");
    const { filters, named } = selection(query, { search: text("search"), from: whole("from_revision"), definition: () => null, config_key: () => null });
    return { name: "watch", parts: [...of("definition"), ...(configs.length ? [`configs=[${configs.join(", ")}]`] : []), ...filters, ...named],
      show: EACH("event.revision, event.changes"), item: "event" };
  }],
  ["GET", /^\/cluster$/, () => ({ name: "cluster", parts: [], show: (call) => `print(${call})` })],
  ["GET", /^\/whoami$/, () => ({ name: "whoami", parts: [], show: (call) => `print(${call})` })],
  ["POST", /^\/config_definition\/$/, ({ body, write, say }) => {
    const known = ["config_definition_key", "indexes", "json_schema"];
    if ([...body.keys()].some((name) => !known.includes(name))) return null;
    return { name: "create_definition", parts: [say("config_definition_key"), `indexes=${say("indexes")}`, ...(body.has("json_schema") ? [`schema=${say("json_schema")}`] : []), ...write], show: REVISION };
  }],
  ["PUT", /^\/config_definition\/([^/]+)$/, ({ keys, write, say }) => ({ name: "set_indexes", parts: [...keys, say("indexes"), ...write], show: REVISION })],
  ["PUT", /^\/config_definition\/([^/]+)\/schema$/, ({ keys, write, say }) => ({ name: "set_schema", parts: [...keys, say("json_schema"), ...write], show: (call) => `print(${call})` })],
  ["PUT", /^\/config_definition\/([^/]+)\/unique$/, ({ keys, write, say }) => ({ name: "set_unique", parts: [...keys, say("paths"), ...write], show: REVISION })],
  ["PUT", /^\/config_definition\/([^/]+)\/protection$/, ({ keys, write, say }) => ({ name: "set_protection", parts: [...keys, say("protected"), ...write], show: REVISION })],
  ["DELETE", /^\/config_definition\/([^/]+)$/, ({ keys, write }) => ({ name: "delete_definition", parts: [...keys, ...write], show: REVISION })],
  ["POST", /^\/config_definition\/([^/]+)\/config\/$/, ({ keys, write, say }) => ({ name: "create", parts: [...keys, say("config_key"), say("data"), ...write], show: REVISION })],
  ["PUT", /^\/config_definition\/([^/]+)\/config\/([^/]+)$/, ({ keys, write, say }) => ({ name: "put", parts: [...keys, say("data"), ...write], show: REVISION })],
  ["DELETE", /^\/config_definition\/([^/]+)\/config\/([^/]+)$/, ({ keys, write }) => ({ name: "delete", parts: [...keys, ...write], show: REVISION })],
  ["POST", /^\/config_definition\/([^/]+)\/config\/([^/]+)\/rollback$/, ({ keys, write, say }) => ({ name: "rollback", parts: [...keys, say("revision"), ...write], show: REVISION })],
  ["POST", /^\/batch$/, ({ body, write, say }) => (body.has("operations") ? { name: "batch", parts: [say("operations"), ...write], show: REVISION } : null)],
];

/** What the client calls for a request; null where it has no such call. */
function callOf(request, needs) {
  if (request.output) return null;
  const query = request.query ?? [];
  for (const [method, path, make] of CALLS) {
    const match = method === request.method && path.exec(request.path);
    if (!match) continue;
    const isWrite = method !== "GET";
    const write = isWrite ? options(request) : [];
    if (write === null) return null;
    const body = request.body === undefined ? new Map() : parse(request.body);
    if (!(body instanceof Map)) return null;
    const keys = match.slice(1).map((part) => quote(decodeURIComponent(part)));
    return make({ keys, query, body, write, say: (name) => literal(body.get(name) ?? null, needs, 1) });
  }
  return null;
}

export function pythonText(request) {
  const needs = {};
  const made = callOf(request, needs);
  if (!made) return withoutClient(request);
  const line = made.parts.join(", ");
  const args = line.length < 100 && !line.includes("\n") ? line : `\n${made.parts.map((part) => `    ${part},\n`).join("")}`;
  const shown = made.show(`client.${made.name}(${args})`, made.item);
  return `${needs.decimal ? "from decimal import Decimal\n" : ""}import os

from concord_client import Client

client = Client(${quote(location.origin)}, os.environ["CONCORD_API_KEY"])
${shown}
`;
}

/** The request by the standard library, for what the client has no call for. */
function withoutClient(request) {
  const full = location.origin + url(request.path, request.query);
  const all = { ...request.headers };
  if (request.body !== undefined) all["Content-Type"] ??= "application/json";
  const headers = Object.entries(all).map(([name, value]) => `        ${quote(name)}: ${quote(value)}${/[^\x20-\x7e]/.test(value) ? ".encode()" : ""},\n`).join("");
  const data = request.body === undefined ? "" : `,\n    data=${quote(request.body)}.encode()`;
  const read = request.stream
    ? "with urllib.request.urlopen(request) as answer:\n    for line in answer:\n        print(line.decode(), end=\"\")\n"
    : request.output
      ? `with urllib.request.urlopen(request) as answer, open(${quote(request.output)}, "wb") as file:\n    shutil.copyfileobj(answer, file)\n`
      : "with urllib.request.urlopen(request) as answer:\n    print(json.load(answer)[\"data\"])\n";
  const imports = ["json", "os", request.output ? "shutil" : null, "urllib.request"].filter((name) => name && (name !== "json" || (!request.stream && !request.output)));
  return `${imports.map((name) => `import ${name}\n`).join("")}
request = urllib.request.Request(
    ${quote(full)},
    method=${quote(request.method)},
    headers={
        "Authorization": "Bearer " + os.environ["CONCORD_API_KEY"],
${headers}    }${data},
)
${read}`;
}
