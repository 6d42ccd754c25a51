"""The published OpenFeature SDKs and OFREP providers, unchanged, against real nodes.

    check.py HOME LANGUAGE=COMMAND...

Started by scripts/clients-test.sh, with CONCORD_BIN. HOME is a copy of this folder with the packages of each language.
COMMAND runs a file of the language; that of `web` is Chromium. Each program (`ask.py`, `ask.mjs`, `Ask.java`, `ask.go`,
`page.html`) only evaluates what it is asked, one JSON text a line. What must come of it is here, once
for all languages:

- values of each type, with variant and reason; targeting by the context; the same reader gets the same variant in every
  language; numbers keep their digits
- disabled and missing flags, another type, an unknown definition, a wrong key, a key without permission: the default of
  the program, with an error code
- two environments, told apart by the base URL alone
- a changed flag: at the next evaluation; on a web page by the stream of events, without polling
- a dead node: the default, and the value again when the node is back
- the programs of docs/guides/feature-flags.md, as they are printed there
"""

import contextlib
import functools
import http.server
import json
import os
import pathlib
import queue
import re
import shlex
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
from nodes import KEY, Nodes, wait_for  # noqa: E402

GUIDE = ROOT / "docs" / "guides" / "feature-flags.md"
# A reply that takes longer is a program that hangs. Java starts slowly on a busy machine.
REPLY_S = 60
# Until a change is seen on a web page. All others ask the node each time.
SEEN_S = 20
DEFINITION, OTHER = "prod.flags", "staging.flags"
FILES = {"python": "ask.py", "node": "ask.mjs", "java": "Ask", "go": "ask.go"}
READERS = [f"reader-{n}" for n in range(60)]


def switch(default, **more):
    return {"state": "ENABLED", "variants": {"on": True, "off": False}, "defaultVariant": default, **more}


FLAGS = {
    "new-checkout": switch("off", targeting={"if": [{"ends_with": [{"var": "email"}, "@example.com"]}, "on", None]}),
    "greeting": {"state": "ENABLED", "variants": {"short": "Hi", "long": "Grüß Gott"}, "defaultVariant": "long"},
    "page-size": {"state": "ENABLED", "variants": {"few": 20, "many": 200}, "defaultVariant": "few"},
    "discount": {"state": "ENABLED", "variants": {"none": 0.0, "half": 0.5}, "defaultVariant": "half"},
    "whole": {"state": "ENABLED", "variants": {"all": 1.0}, "defaultVariant": "all"},
    "banner": {
        "state": "ENABLED", "defaultVariant": "sale",
        "variants": {"sale": {"text": "Sale", "colors": ["red", "gold"], "size": {"width": 640}, "until": None}},
    },
    "tenth": switch("off", targeting={"fractional": [["on", 25], ["off", 75]]}),
    "retired": {**switch("on"), "state": "DISABLED"},
    "undecided": {"state": "ENABLED", "variants": {"on": True}, "defaultVariant": None},
}
COLLEAGUE = {"targetingKey": "ada", "email": "ada@example.com"}
VISITOR = {"targetingKey": "bob", "email": "bob@elsewhere.org", "visits": 3, "tags": ["new"]}

# flag, type, default of the program, context, and what must come: value, variant, reason
VALUES = [
    ("new-checkout", "boolean", True, VISITOR, (False, "off", "DEFAULT")),
    ("new-checkout", "boolean", False, COLLEAGUE, (True, "on", "TARGETING_MATCH")),
    ("new-checkout", "boolean", True, {}, (False, "off", "DEFAULT")),
    ("greeting", "string", "Hello", VISITOR, ("Grüß Gott", "long", "STATIC")),
    ("page-size", "integer", 7, VISITOR, (20, "few", "STATIC")),
    ("discount", "float", 0.25, VISITOR, (0.5, "half", "STATIC")),
    ("banner", "object", {"text": "none"}, VISITOR, (FLAGS["banner"]["variants"]["sale"], "sale", "STATIC")),
]
# 1.0 must stay 1.0 for these: an integer is of another type. The others have one kind of number.
WITH_FLOATS, WHOLE = ("python", "java"), ("whole", "float", 0.25, VISITOR, (1.0, "all", "STATIC"))
# The default, and the error of each language that names another one than the first.
DEFAULTS = [
    ("missing", "boolean", True, {"": "FLAG_NOT_FOUND"}),
    ("greeting", "boolean", True, {"": "TYPE_MISMATCH"}),
    ("page-size", "string", "ten", {"": "TYPE_MISMATCH"}),
    # The server leaves the value to the program. Only some of the providers know such a response.
    ("retired", "boolean", False, {"": None, "node": "GENERAL", "java": "FLAG_NOT_FOUND"}),
    ("undecided", "boolean", False, {"": None, "node": "GENERAL", "java": "FLAG_NOT_FOUND", "go": "TYPE_MISMATCH"}),
]


class Program:
    """The program of a language, which evaluates what it is asked."""

    def __init__(self, home, language, command, url, key):
        self.language = language
        self.log = tempfile.TemporaryFile()
        env = {**os.environ, "OFREP_ENDPOINT": url, "CONCORD_API_KEY": key}
        self.process = subprocess.Popen(command, cwd=home, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True, encoding="utf-8")
        self.lines = queue.Queue()
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put(None)

    def ask(self, flag, kind, default, context):
        line = None
        with contextlib.suppress(BrokenPipeError, queue.Empty):
            self.process.stdin.write(json.dumps({"flag": flag, "type": kind, "default": default, "context": context}) + "\n")
            self.process.stdin.flush()
            line = self.lines.get(timeout=REPLY_S)
        if line is None:
            self.log.seek(0)
            fail(self.language, f"no reply about {flag} within {REPLY_S} s; it says:\n{self.log.read().decode()[-3000:]}")
        reply = json.loads(line)
        # Go has no null there.
        return {**reply, "variant": reply["variant"] or None, "error": reply["error"] or None}

    def close(self):
        self.process.kill()
        self.process.wait()
        self.log.close()


class Page:
    """The provider for the web, in a page of another origin than the node."""

    language = "web"

    def __init__(self, browser, origin, url, key):
        self.page = browser.new_page()
        self.page.set_default_timeout(REPLY_S * 1000)
        self.page.goto(f"{origin}/page.html")
        self.page.wait_for_function("() => window.connect")
        self.failure = self.page.evaluate("([url, key]) => window.connect(url, key)", [url, key])

    def ask(self, flag, kind, default, context):
        return self.page.evaluate("(asked) => window.ask(asked)", {"flag": flag, "type": kind, "default": default, "context": context})

    def revalidate(self, url, key):
        found = self.page.evaluate("([url, key]) => window.revalidate(url, key)", [url, key])
        expect(self, "the statuses of a first request, of the same, of one with another context", found, [200, 304, 200])

    def close(self):
        self.page.evaluate("() => window.disconnect()")
        self.page.close()


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def fail(language, text):
    sys.exit(f"check.py: {language}: {text}")


def expect(program, what, found, wanted):
    # As texts: Python takes True for 1, and 1 for 1.0.
    if json.dumps(found, sort_keys=True) != json.dumps(wanted, sort_keys=True):
        fail(program.language, f"{what}: {found!r} instead of {wanted!r}")


def values(program):
    rows = [*VALUES, WHOLE] if program.language in WITH_FLOATS else VALUES
    for flag, kind, default, context, (value, variant, reason) in rows:
        reply = program.ask(flag, kind, default, context)
        wanted = {"value": value, "variant": variant, "reason": reason, "error": None}
        expect(program, f"{flag} of {context}", reply, wanted)


def defaults(program):
    for flag, kind, default, errors in DEFAULTS:
        reply = program.ask(flag, kind, default, VISITOR)
        expect(program, f"the value of {flag} as {kind}", reply["value"], default)
        expect(program, f"the error of {flag} as {kind}", reply["error"], errors.get(program.language, errors[""]))


def readers(program, client):
    """The variant of each reader is the one that the node gives anybody who asks for it."""
    found = {}
    for reader in READERS[:20] if program.language == "web" else READERS:
        context = {"targetingKey": reader}
        reply = program.ask("tenth", "boolean", False, context)
        found[reader] = reply["value"]
        asked = client.ask("POST", f"/api/v1/flags/{DEFINITION}/ofrep/v1/evaluate/flags/tenth", {"context": context}).expect(200).json
        expect(program, f"the share of {reader}", (reply["value"], reply["variant"], reply["reason"]), (asked["value"], asked["variant"], asked["reason"]))
    if len(set(found.values())) != 2:
        fail(program.language, f"all readers are in one share: {found}")


def changes(program, client):
    """A flag is turned on and off again. A page must be told of both: it has the flags of this context already."""
    expect(program, "kill-switch before", program.ask("kill-switch", "boolean", True, VISITOR)["value"], False)
    for variant in ("on", "off"):
        put(client, DEFINITION, "kill-switch", switch(variant))
        end = time.monotonic() + SEEN_S
        while program.ask("kill-switch", "boolean", variant == "off", VISITOR)["value"] is not (variant == "on"):
            if time.monotonic() > end or program.language != "web":
                fail(program.language, f"kill-switch is not seen {variant}" + (f" within {SEEN_S} s" if program.language == "web" else ""))
            time.sleep(0.02)


def refusals(start, client, language):
    """Whoever may not read the flags gets the default of the program, and an error."""
    grants = [{"verbs": ["read"], "definitions": [OTHER]}]
    other = client.ask("POST", "/api/v1/api_key/", {"name": f"reader of {OTHER}, {language}", "grants": grants}).expect(201).data["api_key"]
    for key, definition, what in [("concord_wrong", DEFINITION, "a wrong key"), (other, DEFINITION, "a key without permission"), (KEY, "nowhere.flags", "an unknown definition")]:
        with contextlib.closing(start(definition, key)) as program:
            reply = program.ask("new-checkout", "boolean", True, COLLEAGUE)
            expect(program, f"the value with {what}", reply["value"], True)
            if reply["error"] is None:
                fail(language, f"{what} is no error: {reply}")
    with contextlib.closing(start(OTHER, other)) as program:
        expect(program, f"greeting in {OTHER}", program.ask("greeting", "string", "none", VISITOR)["value"], "Servus")


def dead_node(programs, nodes):
    client = nodes.client()
    nodes.kill(1)
    for program in programs:
        reply = program.ask("greeting", "string", "Hello", VISITOR)
        if program.language == "web":
            # A page has all flags of its context already.
            expect(program, "greeting without a node", reply["value"], "Grüß Gott")
            continue
        expect(program, "greeting without a node", (reply["value"], reply["error"]), ("Hello", "GENERAL"))
    nodes.start(1)
    nodes.ready()
    put(client, DEFINITION, "greeting", {**FLAGS["greeting"], "defaultVariant": "short"})
    for program in programs:
        wait_for(lambda program=program: program.ask("greeting", "string", "Hello", VISITOR)["value"] == "Hi", f"{program.language} to be back")


def guide(home, language, command, url, key):
    """Runs the program of the guide."""
    fence = {"node": "js"}.get(language, language)
    programs = re.findall(rf"^```{fence}\n(.*?)^```$", GUIDE.read_text(), re.M | re.S)
    if len(programs) != 1:
        fail(language, f"{GUIDE.name} has {len(programs)} {fence} blocks, not one")
    file = home / {"python": "guide.py", "node": "guide.mjs", "java": "Guide.java", "go": "guide.go"}[language]
    file.write_text(programs[0])
    env = {**os.environ, "OFREP_ENDPOINT": url, "CONCORD_API_KEY": key}
    ran = subprocess.run([*command, file.name], env=env, cwd=home, capture_output=True, text=True, timeout=REPLY_S * 2, check=False)
    if ran.returncode or ran.stdout != "new checkout: True\n" and ran.stdout != "new checkout: true\n":
        fail(language, f"the program of {GUIDE.name} ends with {ran.returncode}:\n{ran.stdout}{ran.stderr[-3000:]}")


def put(client, definition, flag, data):
    client.ask("PUT", f"/api/v1/config_definition/{definition}/config/{flag}", {"data": data}, [("upsert", "true")]).expect(200, 201)


def prepare(client):
    """The flags of two environments, and a key for those of one."""
    for definition in (DEFINITION, OTHER):
        client.ask("POST", "/api/v1/config_definition/", {"config_definition_key": definition}).expect(201)
    for flag, data in {**FLAGS, "kill-switch": switch("off")}.items():
        put(client, DEFINITION, flag, data)
    put(client, OTHER, "greeting", {"state": "ENABLED", "variants": {"only": "Servus"}, "defaultVariant": "only"})
    grants = [{"verbs": ["read"], "definitions": [DEFINITION]}]
    return client.ask("POST", "/api/v1/api_key/", {"name": "programs", "grants": grants}).expect(201).data["api_key"]


def check(language, start, client, key):
    """All checks of a language that need a node. Returns its program, for what comes after."""
    program = start(DEFINITION, key)
    values(program)
    defaults(program)
    readers(program, client)
    changes(program, client)
    refusals(start, client, language)
    return program


def served(stack, home):
    """The origin of a server with the files of a folder."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(home)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    stack.callback(server.shutdown)
    return f"http://127.0.0.1:{server.server_port}"


def launched(stack, executable):
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - only where there is a browser

    chromium = stack.enter_context(sync_playwright()).chromium
    browser = chromium.launch(executable_path=executable, args=["--no-sandbox", "--disable-dev-shm-usage"])
    stack.callback(browser.close)
    return browser


def main(home, *given):
    home = pathlib.Path(home).resolve()
    commands = {language: shlex.split(command) for language, _, command in (one.partition("=") for one in given)}
    with contextlib.ExitStack() as stack:
        origin = served(stack, home)
        browser = launched(stack, commands["web"][0]) if "web" in commands else None
        data = stack.enter_context(tempfile.TemporaryDirectory(prefix="concord-openfeature-"))
        nodes = stack.enter_context(Nodes(data, settings={"CONCORD_CORS_ORIGINS": origin}))
        client = nodes.client()
        key = prepare(client)

        def url(definition):
            return f"http://{nodes.api[1]}/api/v1/flags/{definition}"

        def start(language, definition, key):
            if language == "web":
                return Page(browser, origin, url(definition), key)
            return Program(home, language, [*commands[language], FILES[language]], url(definition), key)

        programs = []
        for language, command in commands.items():
            began = time.monotonic()
            program = check(language, functools.partial(start, language), client, key)
            stack.callback(program.close)
            programs.append(program)
            if language == "web":
                program.revalidate(url(DEFINITION), key)
            else:
                guide(home, language, command, url(DEFINITION), key)
            print(f"{language}: right ({time.monotonic() - began:.0f} s)", flush=True)
        dead_node(programs, nodes)


if __name__ == "__main__":
    main(*sys.argv[1:])
