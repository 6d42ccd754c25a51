// The command of `concord` that does what a request does, for a shell. Null for a request that has none: what the command
// line can't say exactly is not offered.
import { JsonError, parse, print } from "./json.js";

export const shell = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);
const HEREDOC = "END_OF_JSON";
/** Parameters of lists that are options of the command line. */
const OPTIONS = { search: "--search", sort_by: "--sort-by", limit: "--limit", revision: "--revision", from: "--from" };

const option = (name, value) => (value === undefined || value === null || value === "" ? "" : ` ${name} ${shell(String(value))}`);
const values = (request, name) => (request.query ?? []).filter(([other]) => other === name).map(([, value]) => value);
const isDry = (request) => values(request, "dry_run")[0] === "true";
/** The body without loss: numbers keep their digits. */
const body = (request) => parse(request.body);
const file = (request) => ` -f - <<'${HEREDOC}'\n${request.body}\n${HEREDOC}`;

/** Options of a write: its condition, its reason, and whether it is only tried. */
function write(request) {
  const headers = request.headers ?? {};
  const condition = headers["If-Match"]?.replaceAll('"', "");
  return `${option("--if-match", condition)}${option("--reason", headers["X-Change-Reason"])}${isDry(request) ? " --dry-run" : ""}`;
}

/** What a list or a watch is narrowed by; `own` are the parameters that are no filters. */
function narrowed(request, own) {
  const parts = (request.query ?? []).map(([name, value]) => {
    if (name === "sort_order") return value === "desc" ? " --descending" : "";
    if (OPTIONS[name]) return option(OPTIONS[name], value);
    return own.includes(name) ? "" : option("--filter", `${name}=${value}`);
  });
  return parts.join("");
}

function definitions(request, [key, part]) {
  const name = key && shell(key);
  switch (`${request.method} ${key ? "one" : "all"} ${part ?? ""}`) {
    case "GET all ": return `definition get${option("--search", values(request, "search")[0])}`;
    case "POST all ": return `definition create${isDry(request) ? " --dry-run" : ""}${file(request)}`;
    case "GET one ": return `definition get ${name} -o json`;
    case "PUT one ": {
      const paths = body(request).get("indexes").map((path) => option("--index", path)).join("");
      return paths ? `definition reindex ${name}${paths}${write(request)}` : null;
    }
    case "DELETE one ": return `definition delete ${name} --yes${write(request)}`;
    case "GET one schema": return `definition get ${name} -o ${shell("jsonpath={.json_schema}")}`;
    case "PUT one schema": return isDry(request) ? `definition check ${name} -f - <<'${HEREDOC}'\n${print(body(request).get("json_schema"))}\n${HEREDOC}` : null;
    case "GET one history": return `definition history ${name}`;
    case "GET one indexes": return `definition reindex ${name} --no-wait`;
    default: return null;
  }
}

function configs(request, [definition, key, part]) {
  const [of, name] = [shell(definition), key && shell(key)];
  switch (`${request.method} ${key ? "one" : "all"} ${part ?? ""}`) {
    case "GET all ": return `config get ${of}${narrowed(request, ["page"])} -o json`;
    case "POST all ": {
      const made = body(request);
      return `config create ${of} ${shell(made.get("config_key"))}${write(request)} --data ${shell(print(made.get("data")))}`;
    }
    case "GET one ": return `config get ${of} ${name}${option("--revision", values(request, "revision")[0])} -o json`;
    case "PUT one ": return `config put ${of} ${name}${write(request)} --data ${shell(print(body(request).get("data")))}`;
    case "DELETE one ": return `config delete ${of} ${name} --yes${write(request)}`;
    case "GET one history": return `config history ${of} ${name}`;
    case "POST one rollback": return `config rollback ${of} ${name} --to ${print(body(request).get("revision"))}${write(request)}`;
    default: return null;
  }
}

function watch(request) {
  const [named, keys] = [values(request, "definition"), values(request, "config_key")];
  if (keys.length > 1) return null;
  const [first, ...others] = named;
  const places = [first, ...keys].filter((text) => text !== undefined).map((text) => ` ${shell(text)}`).join("");
  return `config watch${places}${others.map((name) => option("--definition", name)).join("")}${narrowed(request, ["definition", "config_key"])}`;
}

/** The list of the latest changes; a long poll has no command. */
function changes(request) {
  const of = (name) => values(request, name)[0];
  if (of("latest") === undefined || values(request, "definition").length > 1) return null;
  const names = { since: "--since", by: "--by", before: "--before", latest: "--limit" };
  const places = [of("definition"), of("config_key")].filter((text) => text !== undefined).map((text) => ` ${shell(text)}`).join("");
  return `changes${places}${Object.entries(names).map(([name, word]) => option(word, of(name))).join("")}`;
}

function audit(request) {
  const options = { key: "--key-id", definition: "--definition", outcome: "--outcome", since: "--since", until: "--until" };
  const chosen = (request.query ?? []).filter(([name]) => options[name]);
  return chosen.length ? `audit export${chosen.map(([name, value]) => option(options[name], value)).join("")}` : `audit tail${option("--lines", values(request, "limit")[0])}`;
}

function keys(request, [id, part]) {
  const name = id && shell(id);
  const sent = request.body ? JSON.parse(request.body) : {};
  const grants = (sent.grants ?? []).map((grant) => option("--grant", `${grant.verbs.join(",")}${grant.definitions?.length ? `:${grant.definitions.join(",")}` : ""}`)).join("");
  const hasQuota = Object.values(sent.quota ?? {}).some((value) => value !== null);
  const end = sent.expires_at === null ? " --never-expires" : option("--expires-at", sent.expires_at);
  switch (`${request.method} ${id ? "one" : "all"} ${part ?? ""}`) {
    case "GET all ": return `key list${option("--page", values(request, "page")[0])}${option("--limit", values(request, "limit")[0])}`;
    case "POST all ": return hasQuota ? null : `key create${option("--name", sent.name)}${grants}${option("--expires-at", sent.expires_at)}`;
    case "PATCH one ": return hasQuota ? null : `key change ${name}${option("--name", sent.name)}${grants}${end}`;
    case "DELETE one ": return `key revoke ${name} --yes`;
    case "POST one rotate": return `key rotate ${name} --grace-s ${sent.grace_s}${sent.grace_s ? "" : " --yes"}`;
    default: return null;
  }
}

function changeRequests(request, [id, part]) {
  const of = (name) => values(request, name)[0];
  const said = request.body ? JSON.parse(request.body) : {};
  const vote = `${option("--digest", said.digest)}${option("--comment", said.comment)}`;
  if (id === undefined) {
    const names = { phase: "--phase", environment: "--env" };
    const isKnown = (request.query ?? []).every(([name]) => names[name] || name === "unreviewed");
    return request.method === "GET" && isKnown ? `change list${Object.entries(names).map(([name, word]) => option(word, of(name))).join("")}${of("unreviewed") ? " --unreviewed" : ""}` : null;
  }
  if (request.method === "GET") return `change show ${shell(id)}`;
  if (part === "apply") return `change apply ${shell(id)}${vote} --yes`;
  return ["approve", "reject", "review", "rebase", "withdraw", "pause", "resume", "advance", "abort"].includes(part) ? `change ${part} ${shell(id)}${vote}` : null;
}

/** The evaluation of a flag. An attribute is text, or JSON after a colon. */
function flags(request, parts) {
  const [definition, flag] = [parts[0], parts.at(-1)];
  const context = [...body(request).get("context")];
  if (context.some(([name]) => name.includes("=") || name.endsWith(":"))) return null;
  const attributes = context.filter(([name]) => name !== "targetingKey").map(([name, value]) => option("--attribute", typeof value === "string" ? `${name}=${value}` : `${name}:=${print(value, 0)}`));
  return `flag eval ${shell(flag)} --definition ${shell(definition)}${option("--for", new Map(context).get("targetingKey"))}${attributes.join("")}`;
}

/** The command for a request of { method, path, query, headers, body }; null also while its body is no JSON yet. */
export function command(request) {
  try {
    return find(request);
  } catch (error) {
    if (!(error instanceof JsonError)) throw error;
    return null;
  }
}

function find(request) {
  const parts = request.path.split("/").filter(Boolean).map(decodeURIComponent);
  if (parts[0] === "config_definition" && parts[2] === "config") return configs(request, [parts[1], ...parts.slice(3)]);
  if (parts[0] === "config_definition") return definitions(request, parts.slice(1));
  if (parts[0] === "api_key") return keys(request, parts.slice(1));
  if (parts[0] === "change_request") return changeRequests(request, parts.slice(1));
  if (parts[0] === "flags") return flags(request, parts.slice(1));
  if (parts[0] === "watch") return watch(request);
  if (parts[0] === "changes") return changes(request);
  if (parts[0] === "audit") return audit(request);
  if (parts[0] === "whoami") return "whoami";
  return null;
}
