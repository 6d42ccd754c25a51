// A request as text that can be pasted: for curl, for the command line, for Python. The key is never in it: each reads
// CONCORD_API_KEY from its environment.
import { url } from "./api.js";

const shell = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);
const full = (request) => location.origin + url(request.path, request.query);
const python = (text) => JSON.stringify(text).replace(/[\u{7f}-\u{10ffff}]/gu, (c) => `\\U${c.codePointAt(0).toString(16).padStart(8, "0")}`);

function headersOf(request) {
  const headers = { ...request.headers };
  if (request.body !== undefined) headers["Content-Type"] ??= "application/json";
  return Object.entries(headers);
}

export function curl(request) {
  const parts = ["curl -sS"];
  if (request.stream) parts[0] += "N";
  if (request.output) parts.push(`-o ${shell(request.output)}`);
  if (request.method !== "GET") parts.push(`-X ${request.method}`);
  parts.push('-H "Authorization: Bearer $CONCORD_API_KEY"');
  for (const [name, value] of headersOf(request)) parts.push(`-H ${shell(`${name}: ${value}`)}`);
  parts.push(shell(full(request)));
  if (request.body !== undefined) parts.push(`--data-binary ${shell(request.body)}`);
  return parts.join(" \\\n  ");
}

export function pythonText(request) {
  const headers = headersOf(request).map(([name, value]) => `        ${python(name)}: ${python(value)}${/[^\x20-\x7e]/.test(value) ? ".encode()" : ""},\n`).join("");
  const data = request.body === undefined ? "" : `,\n    data=${python(request.body)}.encode()`;
  const read = request.stream
    ? "with urllib.request.urlopen(request) as answer:\n    for line in answer:\n        print(line.decode(), end=\"\")\n"
    : request.output
      ? `with urllib.request.urlopen(request) as answer, open(${python(request.output)}, "wb") as file:\n    shutil.copyfileobj(answer, file)\n`
      : "with urllib.request.urlopen(request) as answer:\n    print(json.load(answer)[\"data\"])\n";
  const imports = ["json", "os", request.output ? "shutil" : null, "urllib.request"].filter((name) => name && (name !== "json" || (!request.stream && !request.output)));
  return `${imports.map((name) => `import ${name}\n`).join("")}
request = urllib.request.Request(
    ${python(full(request))},
    method=${python(request.method)},
    headers={
        "Authorization": "Bearer " + os.environ["CONCORD_API_KEY"],
${headers}    }${data},
)
${read}`;
}

/** The command that does the same, for requests that the command line of this version has. */
export function commandLine(request) {
  return request.command ? `CONCORD_URL=${location.origin} concord ${request.command}` : null;
}

export const forms = [["curl", curl], ["CLI", commandLine], ["Python", pythonText]];
