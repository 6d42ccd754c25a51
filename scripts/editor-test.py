"""The schemas of `concord schema export` in the language server of editors: an editor completes a field and shows what is wrong.

    CONCORD_BIN=target/debug/concord python3 scripts/editor-test.py COMMAND...

COMMAND runs yaml-language-server. Without COMMAND only the command line is checked.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading

BINARY = pathlib.Path(os.environ.get("CONCORD_BIN", "target/debug/concord")).resolve()
PATIENCE_S = 60
FILES = """config_definition_key: limits
indexes: [plan]
json_schema:
  type: object
  required: [plan]
  properties:
    plan: {enum: [free, pro]}
    requests_per_minute: {type: integer, minimum: 1, description: How many requests a tenant may send}
---
config_definition_key: limits
config_key: acme
data:
  plan: gold
  
"""


class Server:
    """A language server, by JSON-RPC over its stdin and stdout."""

    def __init__(self, command):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.number, self.answers, self.diagnostics = 0, {}, {}
        self.news = threading.Condition()
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        out = self.process.stdout
        while True:
            length = 0
            while line := out.readline().strip():
                name, _, value = line.partition(b":")
                length = int(value) if name.lower() == b"content-length" else length
            if not length:
                return
            message = json.loads(out.read(length))
            with self.news:
                if message.get("method") == "textDocument/publishDiagnostics":
                    self.diagnostics[message["params"]["uri"]] = message["params"]["diagnostics"]
                elif "method" in message and "id" in message:
                    # It asks for settings, or registers something.
                    asked = message.get("params", {}).get("items", [])
                    self.write({"id": message["id"], "result": [SETTINGS.get(each.get("section")) for each in asked] if asked else None})
                elif "id" in message:
                    self.answers[message["id"]] = message
                self.news.notify_all()

    def write(self, message):
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self.process.stdin.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        self.process.stdin.flush()

    def tell(self, method, params):
        self.write({"method": method, "params": params})

    def ask(self, method, params):
        self.number += 1
        number = self.number
        self.write({"id": number, "method": method, "params": params})
        with self.news:
            assert self.news.wait_for(lambda: number in self.answers, PATIENCE_S), f"no answer to {method}"
            answer = self.answers[number]
        assert "error" not in answer, answer
        return answer["result"]

    def wait_diagnostics(self, uri, is_good):
        with self.news:
            assert self.news.wait_for(lambda: is_good(self.diagnostics.get(uri, [])), PATIENCE_S), self.diagnostics
            return self.diagnostics[uri]

    def end(self):
        self.process.kill()
        self.process.wait()


SETTINGS = {}


def run(*arguments, code=0):
    done = subprocess.run([BINARY, *arguments], capture_output=True, text=True)
    assert done.returncode == code, (arguments, done)
    return done.stdout


def main():
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        files = folder / "limits.yaml"
        files.write_text(FILES)
        run("schema", "export", folder / "schemas", "-f", files)
        assert json.loads(run("check", files, "-o", "json", code=1))[0]["line"] == 13
        if len(sys.argv) < 2:
            print("the command line: right; no language server is given")
            return
        editor(folder, files)
    print("the command line and yaml-language-server: right")


def editor(folder, files):
    schema, uri = (folder / "schemas/concord.schema.json").as_uri(), files.as_uri()
    SETTINGS.update({"yaml": {"schemas": {schema: ["*.yaml"]}, "validate": True, "completion": True, "schemaStore": {"enable": False}}})
    server = Server(sys.argv[1:])
    try:
        capabilities = {"workspace": {"configuration": True}, "textDocument": {"completion": {"completionItem": {"snippetSupport": False}}}}
        server.ask("initialize", {"processId": os.getpid(), "rootUri": folder.as_uri(), "capabilities": capabilities})
        server.tell("initialized", {})
        server.tell("workspace/didChangeConfiguration", {"settings": SETTINGS})
        text = FILES
        server.tell("textDocument/didOpen", {"textDocument": {"uri": uri, "languageId": "yaml", "version": 1, "text": text}})
        found = server.wait_diagnostics(uri, bool)
        assert [(each["range"]["start"]["line"] + 1, "pro" in each["message"]) for each in found] == [(13, True)], found
        # In the line below `plan`, the fields of the definition.
        offered = server.ask("textDocument/completion", {"textDocument": {"uri": uri}, "position": {"line": 13, "character": 2}})
        labels = [each["label"] for each in offered["items"]]
        assert "requests_per_minute" in labels and "plan" not in labels, labels
        value = server.ask("textDocument/completion", {"textDocument": {"uri": uri}, "position": {"line": 12, "character": 8}})
        assert {"free", "pro"} <= {each["label"] for each in value["items"]}, value
        # What is right has no mark.
        server.tell("textDocument/didChange", {"textDocument": {"uri": uri, "version": 2}, "contentChanges": [{"text": text.replace("gold", "pro")}]})
        server.wait_diagnostics(uri, lambda found: not found)
        wrong = text.replace("gold", "pro").replace("config_key: acme", "config_kye: acme")
        server.tell("textDocument/didChange", {"textDocument": {"uri": uri, "version": 3}, "contentChanges": [{"text": wrong}]})
        server.wait_diagnostics(uri, bool)
    finally:
        server.end()


if __name__ == "__main__":
    main()
