// A request as text that can be pasted: for curl, for the command line, for Python. The key is never in it: each reads
// CONCORD_API_KEY from its environment.
import { url } from "./api.js";
import { command, shell } from "./command.js";
import { pythonText } from "./python.js";

const full = (request) => location.origin + url(request.path, request.query);

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

/** The command that does the same, for requests that the command line of this version has. */
export function commandLine(request) {
  const text = request.command ?? command(request);
  return text && `CONCORD_URL=${location.origin} concord ${text}`;
}

export const forms = [["curl", curl], ["CLI", commandLine], ["Python", pythonText]];
