"""Clients that know nothing of Concord, unchanged, against three real nodes: raw responses, Consul's KV, Spring Cloud Config.

    check.py HOME NAME=COMMAND...

Started by scripts/clients-test.sh, with CONCORD_BIN. HOME is a copy of this folder with the packages of each client; this
program runs with those of Python. Without a COMMAND its part is left out:

| name | client | its program |
|---|---|---|
| `curl` | curl, PyYAML | |
| `java` | Java's `Properties`; Spring Boot with the clients of Spring Cloud Config and of Spring Cloud Consul | `Load`, `Service` |
| `python` | py-consul | `kv.py` |
| `node` | the package consul of npm | `kv.mjs` |
| `template` | consul-template | |
| `viper` | Viper with its remote provider for Consul | `viper.go` |

What must come of each is here:

- a value as JSON, YAML and properties equals what was written, also with names and texts that need escapes
- keys, folders and fields as entries of Consul; entries that a key may not read are absent, secret fields too
- blocking queries, watches and live templates see each change, nothing else, and go on when the leader is killed
- a Spring Boot service binds its properties in the order of Spring Cloud Config, and a refresh brings new values
- a wrong key, a missing permission and a write are what the clients take for one
"""

import base64
import contextlib
import functools
import json
import os
import pathlib
import queue
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
from nodes import KEY, Nodes, wait_for  # noqa: E402

# A program that says nothing for so long hangs. Java starts slowly on a busy machine.
REPLY_S = 90
# Until a change is seen, also after an election.
SEEN_S = 30
# How long a blocking query of the programs waits. After two of them, a change that nobody made would have been seen.
WAIT_S = 2

SHOP = {"shop": {
    "greeting": "Guten Tag", "hosts": ["a.example.com", "b.example.com"], "tags": ["base"],
    "limits": {"seats": 5, "ratio": 7.0, "open": True}, "servers": [{"host": "s1", "port": 1}],
}}
ACME = {
    "name": "Acme Größe 😀", "seats": 5, "ratio": 7.0, "open": True, "none": None, "tags": ["a", "b"], "deep": {"a": {"b": "c"}},
    "empty": {}, "list": [], "a/b": "slash", "tilde~": "x", "text": "",
}
# The entries of Consul for the fields of ACME.
FIELDS = {
    "name": "Acme Größe 😀", "seats": "5", "ratio": "7.0", "open": "true", "none": "null", "tags/0": "a", "tags/1": "b", "deep/a/b": "c",
    "empty": "{}", "list": "[]", "a~1b": "slash", "tilde~0": "x", "text": "",
}
# What readers of YAML and of properties mistake for something else, if it is not escaped.
EXOTIC = {
    "grüße": "Grüß Gott", "emoji 😀": "😀", " space ": "  both  ", "a:b=c": "v:w=x", "#hash": "# no comment", "!bang": "!x", "=": "=",
    "lines": "one\ntwo\r\n\tthree\n", "form feed": "\f", "back\\slash": "c:\\dir\\", "yes": "yes", "no": "No", "null": "null", "true": "true", "~": "~",
    "date": "2026-11-30", "octal": "007", "hex": "0x1f", "clock": "22:22", "exponent": "1e5", "underscore": "1_000", "dot": ".5", "infinite": ".inf",
    "quotes": "it's \"x\"", "colon": "a: b", "comment": "a #b", "dash": "- x", "question": "? x", "percent": "%x", "at": "@x", "tick": "`x", "star": "*x",
    "and": "&x", "bang2": "!x y", "brace": "{x", "bracket": "[x", "pipe": "|x", "more": ">x", "merge": "<<", "document": "---", "end": "...",
    "next line": "\u0085", "separators": "\u2028\u2029", "mark": "\ufeffx", "bell": "\u0007", "delete": "\u007f", "nothing": "", "long": "word " * 60,
    "number": 5, "float": 7.0, "digits": 123456789012345678901234567890, "small": -0.5, "on": True, "off": False, "nil": None,
    "1": "x", "1.5": "x", "12:30": "x", "": "x", "<<": {"z": 1}, "\"q": "x", "'r": "x", "tab\t": "x", "null byte \u0000": "\u0000",
    "nested": {"list": [1, {"x": "y"}, ["z", []]], "object": {}}, "[/api]": {"limit": 3}, "with.dot": {"x": 1},
}
DEFINITIONS = {
    "shop": {"default": SHOP, "prod": {"shop": {"greeting": "Hallo", "tags": [], "hosts": ["p.example.com"]}}, "eu": {"shop": {"greeting": "Salut"}}},
    "prod.shop": {"default": {"shop": {"limits": {"seats": 50}, "servers": [{"host": "p1", "port": 11}, {"host": "p2", "port": 12}]}}},
    "application": {
        "default": {"shop": {"greeting": "never", "limits": {"seats": 1}}, "shared": "by all", "local": {"base": "server", "prod": "server"}},
        "prod": {"local": {"prod": "server, prod"}, "order": "application-prod"},
    },
    "services": {"billing": {"shop": {"greeting": "billed", "limits": {"seats": 9, "ratio": 0.5, "open": False}}}},
    "limits": {"acme": ACME, "acme2": {"seats": 6}, "globex": {"seats": 7}},
    "texts": {"exotic": EXOTIC},
    "hidden": {"x": {"a": "secret of others"}},
    "guarded": {"main": {"host": "db1", "password": "hunter2", "pool": 4}},
    "noise": {"x": {"n": 0}},
}
# Below the profile and above the base of the service: the order of Spring Cloud Config.
DEFINITIONS["shop"]["default"]["order"] = "shop"
SCHEMAS = {"guarded": {"properties": {"password": {"type": "string", "x-concord-secret": True}}}}
READABLE = ["shop", "prod.shop", "application", "services", "limits", "texts", "guarded", "noise"]
# A definition that the key could read, if there were one.
ABSENT = "absent"


def fail(name, text):
    sys.exit(f"check.py: {name}: {text}")


def expect(name, what, found, wanted):
    # As texts: Python takes True for 1, and 1 for 1.0.
    if json.dumps(found, sort_keys=True) != json.dumps(wanted, sort_keys=True):
        fail(name, f"{what}:\n{found!r}\ninstead of\n{wanted!r}")


class World:
    """The nodes, what is stored, and the keys."""

    def __init__(self, nodes, home, commands):
        self.nodes, self.home, self.commands = nodes, home, commands
        self.client = nodes.client()
        for definition, configs in DEFINITIONS.items():
            body = {"config_definition_key": definition, "json_schema": SCHEMAS.get(definition, {"type": "object"})}
            self.client.ask("POST", "/api/v1/config_definition/", body).expect(201)
            for config, data in configs.items():
                self.put(definition, config, data)
        self.reader, self.revealer = self.key("reader", ["read"]), self.key("revealer", ["read", "reveal"])

    def key(self, name, verbs, definitions=(*READABLE, ABSENT)):
        grants = [{"verbs": verbs, "definitions": list(definitions)}]
        return self.client.ask("POST", "/api/v1/api_key/", {"name": name, "grants": grants}).expect(201).data["api_key"]

    def put(self, definition, config, data, client=None):
        path = f"/api/v1/config_definition/{definition}/config/{config}"
        (client or self.client).ask("PUT", path, {"data": data}, [("upsert", "true")]).expect(200, 201)

    def delete(self, definition, config):
        self.client.ask("DELETE", f"/api/v1/config_definition/{definition}/config/{config}").expect(200)

    def url(self, path, n=1):
        return f"http://{self.nodes.api[n]}{path}"


class Program:
    """A program that prints JSON texts, one a line: replies to what it is asked, and what it follows."""

    def __init__(self, name, command, cwd, env):
        self.name, self.log = name, tempfile.TemporaryFile()
        self.process = subprocess.Popen(command, cwd=cwd, env={**os.environ, **env}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True, encoding="utf-8")
        self.replies, self.seen, self.troubles = queue.Queue(), [], []
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            try:
                reply = json.loads(line)
            except ValueError:
                reply = {"trouble": line.rstrip()}
            if "seen" in reply:
                self.seen.append(reply["seen"])
            elif "trouble" in reply:
                self.troubles.append(reply["trouble"])
            else:
                self.replies.put(reply)
        self.replies.put(None)

    def tell(self, **asked):
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(asked) + "\n")
            self.process.stdin.flush()

    def ask(self, **asked):
        if asked:
            self.tell(**asked)
        reply = None
        with contextlib.suppress(queue.Empty):
            reply = self.replies.get(timeout=REPLY_S)
        if reply is None:
            fail(self.name, f"no reply to {asked} within {REPLY_S} s; it says:\n{self.said()}")
        return reply

    def until_seen(self, value, what, seconds=SEEN_S):
        """Waits until the last state that the program has seen is this one."""
        end = time.monotonic() + seconds
        while not self.seen or self.seen[-1] != value:
            if time.monotonic() > end or self.process.poll() is not None:
                fail(self.name, f"{what} is not seen within {seconds} s; the last states are {self.seen[-2:]}, not {value}; it says:\n{self.said()}")
            time.sleep(0.02)

    def said(self):
        self.log.seek(0)
        return "\n".join([*self.troubles[-20:], self.log.read().decode()])[-4000:]

    def close(self):
        self.process.kill()
        self.process.wait()
        self.log.close()


# --- Raw responses -----------------------------------------------------------------------------------------------------


def curl(world, path, *options, n=1):
    """(status, headers, body) as curl gets it."""
    command = ["curl", "-sS", "-i", "--http1.1", *options, world.url(path, n)]
    said = subprocess.run(command, capture_output=True, timeout=REPLY_S, check=True).stdout
    head, _, body = said.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) if ": " in line else (line.lower().rstrip(":"), "") for line in lines)
    return int(status.split()[1]), headers, body.decode()


def flat(value, path=""):
    """The properties of a value, named as Spring Boot names them."""
    if isinstance(value, dict):
        for name, member in value.items():
            yield from flat(member, path + name if name.startswith("[") else f"{path}.{name}" if path else name)
    elif isinstance(value, list) and value:
        for n, item in enumerate(value):
            yield from flat(item, f"{path}[{n}]")
    else:
        yield path, "" if value in (None, []) else value


def texts(value):
    """The properties as java.util.Properties has them."""
    return {name: each if isinstance(each, str) else json.dumps(each) for name, each in flat(value)}


def loaded(world, text):
    """The properties of a text as Java reads it."""
    ran = subprocess.run([*world.commands["java"], "Load"], cwd=world.home, input=text.encode(), capture_output=True, timeout=REPLY_S, check=False)
    if ran.returncode:
        fail("java", f"Properties cannot be loaded:\n{ran.stderr.decode()[-3000:]}")
    pairs = [line.split(" ") for line in ran.stdout.decode().splitlines()]
    return {base64.b64decode(name).decode(): base64.b64decode(value).decode() for name, value in pairs}


def as_yaml(name, what, text, wanted):
    """YAML 1.1 is the stricter reader. What it takes for the value, those of 1.2 do too."""
    expect(name, what, yaml.safe_load(text), wanted)


def check_raw(world):
    basic = ("-u", f"anybody:{world.reader}")
    path = "/api/v1/config_definition/texts/config/exotic"
    status, headers, body = curl(world, f"{path}?raw=true", *basic)
    expect("curl", "the status and type of a raw config", (status, headers["content-type"]), (200, "application/json"))
    expect("curl", "a raw config", json.loads(body), EXOTIC)
    tag = headers["etag"]
    _, wrapped, _ = curl(world, path, *basic)
    expect("curl", "the tags of a raw config and of the other one", tag, wrapped["etag"])
    status, headers, body = curl(world, path, *basic, "-H", "Accept: application/yaml", "-H", f"If-None-Match: {tag}")
    expect("curl", "a config that the client has", (status, headers["etag"], body), (304, tag, ""))
    status, headers, body = curl(world, path, *basic, "-H", "Accept: application/yaml")
    expect("curl", "the status, type and tag of YAML", (status, headers["content-type"].split(";")[0], headers["etag"]), (200, "application/yaml", tag))
    as_yaml("curl", "a config as YAML", body, EXOTIC)
    if "java" in world.commands:
        status, headers, body = curl(world, path, *basic, "-H", "Accept: text/x-java-properties")
        expect("curl", "the status and type of properties", (status, headers["content-type"].split(";")[0]), (200, "text/x-java-properties"))
        expect("java", "a config as properties", loaded(world, body), texts(EXOTIC))

    numbers = '{"exponent":1e+5,"large":1e+400,"small":1e-7,"zero":-0.0,"exact":1.50}'
    world.client.ask("PUT", "/api/v1/config_definition/noise/config/numbers", f'{{"data":{numbers}}}', [("upsert", "true")]).expect(201)
    path = "/api/v1/config_definition/noise/config/numbers"
    expect("curl", "numbers", curl(world, f"{path}?raw=true", *basic)[2], numbers)
    as_yaml("curl", "numbers as YAML", curl(world, path, *basic, "-H", "Accept: application/yaml")[2], json.loads(numbers))
    world.put("noise", "numbers", {"a.b": 1, "a": {"b": 2}})
    expect("curl", "two properties with one name", curl(world, path, *basic, "-H", "Accept: text/x-java-properties")[0], 422)
    world.delete("noise", "numbers")

    status, _, body = curl(world, "/api/v1/config_definition/limits/config/?raw=true", *basic)
    expect("curl", "all configs, raw", (status, json.loads(body)), (200, DEFINITIONS["limits"]))
    _, _, body = curl(world, "/api/v1/config_definition/limits/config/", *basic, "-H", "Accept: application/yaml")
    as_yaml("curl", "all configs as YAML", body, DEFINITIONS["limits"])
    _, _, body = curl(world, "/api/v1/config_definition/texts/config/", "-H", f"Authorization: Bearer {world.reader}", "-H", "Accept: application/yaml", "--compressed")
    as_yaml("curl", "compressed YAML", body, DEFINITIONS["texts"])
    for how in (("?raw=true", ()), ("", ("-H", "Accept: application/schema+json"))):
        status, _, body = curl(world, f"/api/v1/config_definition/guarded/schema{how[0]}", *basic, *how[1])
        expect("curl", f"a schema {how}", (status, json.loads(body)), (200, SCHEMAS["guarded"]))

    secret = "/api/v1/config_definition/guarded/config/main"
    status, headers, body = curl(world, f"{secret}?raw=true", *basic)
    expect("curl", "a secret field without permission", (status, json.loads(body)["password"], headers["x-concord-redacted"]), (200, None, "#/password"))
    _, _, body = curl(world, secret, "-u", f"x:{world.revealer}", "-H", "Accept: application/yaml")
    as_yaml("curl", "a secret field with permission", body, DEFINITIONS["guarded"]["main"])
    expect("curl", "properties with a secret field without permission", curl(world, secret, *basic, "-H", "Accept: text/x-java-properties")[0], 403)

    refused = [
        (("-u", "anybody:wrong"), path, 401), (("-H", "Authorization: Bearer wrong"), path, 401), ((), path, 401), (("-u", f"{world.reader}:"), path, 401),
        (("-H", f"Authorization: {world.reader}", "-H", f"Authorization: {world.revealer}"), path, 401),
        (basic, "/api/v1/config_definition/hidden/config/x?raw=true", 403), (basic, "/api/v1/config_definition/texts/config/none?raw=true", 404),
    ]
    for options, at, wanted in refused:
        status, headers, body = curl(world, at, *options)
        expect("curl", f"the status of {at} with {options}", status, wanted)
        expect("curl", f"the type of the error of {at}", (headers["content-type"], isinstance(json.loads(body), dict)), ("application/json", True))
    too_large(world, basic)


def too_large(world, basic):
    world.client.ask("POST", "/api/v1/config_definition/", {"config_definition_key": "noise.large", "json_schema": {}}).expect(201)
    for n in range(5):
        world.put("noise.large", f"c{n}", {"text": "x" * 1_000_000})
    key = world.key("large", ["read"], ["noise.large"])
    status, _, body = curl(world, "/api/v1/config_definition/noise.large/config/?raw=true", "-u", f"x:{key}")
    if status != 422 or "page" not in body:
        fail("curl", f"5 MB of configs: {status} {body[:300]}")
    for filtered in ("config_key=c1", "limit=1", "sort_by=config_key"):
        status, _, body = curl(world, f"/api/v1/config_definition/limits/config/?raw=true&{filtered}", *basic)
        expect("curl", f"all configs with {filtered}", (status, json.loads(body)["errors"][0]["code"]), (422, "query_invalid"))


# --- Consul ----------------------------------------------------------------------------------------------------------


def program(world, name, key, n=1):
    """A program that reads keys of Consul, asking the node n."""
    file = {"python": "kv.py", "node": "kv.mjs"}[name]
    return Program(name, [*world.commands[name], file], world.home, {"CONCORD_NODE": world.nodes.api[n], "CONCORD_API_KEY": key})


def entries(found):
    return {entry["key"]: entry["value"] for entry in found or []}


def check_keys(world, name):
    """What a program reads."""
    with contextlib.closing(program(world, name, world.reader)) as asked:
        one = asked.ask(do="get", key="limits/acme")["value"]
        expect(name, "a config", (one["key"], json.loads(one["value"])), ("limits/acme", ACME))
        revision = int(world.client.get("/api/v1/config_definition/limits/config/acme").headers["ETag"].strip('"'))
        expect(name, "the revisions of a config", (one["created"], one["modified"]), (revision, revision))
        for field, text in FIELDS.items():
            found = asked.ask(do="get", key=f"limits/acme/{field}")["value"]
            expect(name, f"the field {field}", found and found["value"], text)
        for key in ("limits/none", "limits/acme/none/x", "limits/acme/tags/2", "absent/x", "limits", "absent/a b ü", "limits//acme", "absent/x,y/z", "limits/acme/"):
            expect(name, f"the key {key!r}", asked.ask(do="get", key=key), {"value": None})

        def below(prefix):
            return entries(asked.ask(do="get", key=prefix, recurse=True)["value"])

        configs = {key: json.loads(text) for key, text in below("limits/").items()}
        expect(name, "the entries below a definition", configs, {f"limits/{key}": data for key, data in DEFINITIONS["limits"].items()})
        expect(name, "the entries below the beginning of a key", sorted({*below("limits/acme2"), *below("lim")}), ["limits/acme", "limits/acme2", "limits/acme2/seats", "limits/globex"])
        leaves = {f"limits/acme/{field}": text for field, text in FIELDS.items()}
        expect(name, "the entries below a config", below("limits/acme/"), leaves)
        expect(name, "the entries below a field", below("limits/acme/deep"), {"limits/acme/deep/a/b": "c"})
        expect(name, "a config and what is below", sorted(below("limits/acme")), sorted({**leaves, "limits/acme": "", "limits/acme2": ""}))
        expect(name, "no entries", asked.ask(do="get", key="limits/none/", recurse=True), {"value": None})

        expect(name, "the keys of a definition", sorted(asked.ask(do="keys", key="limits/")["value"]), [f"limits/{key}" for key in DEFINITIONS["limits"]])
        folders = asked.ask(do="keys", key="limits/acme/", separator="/")["value"]
        expect(name, "the keys up to a separator", sorted(folders), sorted({f"limits/acme/{field.split('/')[0]}{'/' if '/' in field else ''}" for field in FIELDS}))
        expect(name, "the definitions", sorted(asked.ask(do="keys", key="", separator="/")["value"]), sorted(f"{definition}/" for definition in READABLE))

        # Permissions.
        expect(name, "a secret field", json.loads(asked.ask(do="get", key="guarded/main")["value"]["value"])["password"], None)
        expect(name, "the entry of a secret field", asked.ask(do="get", key="guarded/main/password"), {"value": None})
        expect(name, "the entries beside a secret field", below("guarded/main/"), {"guarded/main/host": "db1", "guarded/main/pool": "4"})
        everything = below("")
        if any(key.startswith("hidden/") for key in everything) or "texts/exotic" not in everything:
            fail(name, f"all keys are {sorted(everything)}")
        for request, status in (({"do": "get", "key": "hidden/x"}, "403"), ({"do": "put", "key": "limits/new"}, "405")):
            refused(name, asked.ask(**request), status, request)
    with contextlib.closing(program(world, name, world.revealer)) as asked:
        expect(name, "a secret field with permission", asked.ask(do="get", key="guarded/main/password")["value"]["value"], "hunter2")
    with contextlib.closing(program(world, name, "concord_wrong")) as asked:
        refused(name, asked.ask(do="get", key="limits/acme"), "401", "a wrong key")


def refused(name, reply, status, what):
    """An error, in the words of each client."""
    words = {"401": ("ACLDisabled", "unauthorized"), "403": ("ACLPermissionDenied", "forbidden"), "405": ("ClientError: 405", "method not allowed")}
    if not any(word in reply.get("error", "") for word in words[status]):
        fail(name, f"{what}: {reply} instead of {status}")


def check_wire(world):
    """What the clients above do not send, but others do, and headers that they read."""
    token = ("-H", f"X-Consul-Token: {world.reader}")
    status, headers, body = curl(world, "/v1/kv/limits/acme/name?raw", *token)
    expect("curl", "a raw value", (status, body), (200, ACME["name"]))
    for path in ("/v1/kv/limits/acme", "/v1/kv/limits/none", "/v1/kv/limits/none?recurse", "/v1/kv/absent?keys", "/v1/kv/absent/x,y/z?recurse="):
        status, headers, body = curl(world, path, *token)
        expect("curl", f"the status of {path}", (status, bool(body)), (200, True) if path.endswith("acme") else (404, False))
        if int(headers["x-consul-index"]) < 1 or headers["x-consul-knownleader"] != "true" or headers["x-consul-lastcontact"] != "0":
            fail("curl", f"the headers of {path} are {headers}")
    # As Go, Consul's documents and other clients write them.
    for path in (
        "limits%2Facme", "limits/acme?recurse=false", "limits/acme?index=0&wait=30s", "limits/acme?wait=1m30s", "limits/acme?dc=dc1&ns=default&partition=x&near=_agent&cached&pretty",
        "limits/acme?stale=", "limits/acme?consistent", "limits/acme?index=1&wait=60000ms", "limits/acme?index=1", "?recurse", "?keys=True&separator=/",
    ):
        status, _, body = curl(world, f"/v1/kv/{path}", *token)
        expect("curl", f"the status and type of {path}", (status, isinstance(json.loads(body), list)), (200, True))
    for path in ("?raw", "", "limits/acme?index=x", "limits/acme?index=1&wait=soon", "limits/acme?index=-1"):
        expect("curl", f"the status of {path!r}", curl(world, f"/v1/kv/{path}", *token)[0], 400)
    for method in ("PUT", "DELETE", "POST"):
        expect("curl", f"the status of {method}", curl(world, "/v1/kv/limits/acme", *token, "-X", method, "-d", "x")[0], 405)
    _, headers, _ = curl(world, "/v1/kv/noise/x", *token)
    began = time.monotonic()
    status, later, _ = curl(world, f"/v1/kv/noise/x?index={headers['x-consul-index']}&wait=1500ms", *token)
    took = time.monotonic() - began
    if status != 200 or later["x-consul-index"] != headers["x-consul-index"] or not 1.4 < took < 6:
        fail("curl", f"a query without a change ends after {took:.1f} s with {status}, {later}")
    expect("curl", "a key in the URL", curl(world, f"/v1/kv/limits/acme?token={world.reader}")[0], 401)
    expect("curl", "Basic with the token of Consul", curl(world, "/v1/kv/limits/acme", *token, "-u", f"x:{world.reader}")[0], 200)


def check_revoked(world):
    """A blocking query ends when its key is revoked."""
    made = world.client.ask("POST", "/api/v1/api_key/", {"name": "revoked", "grants": [{"verbs": ["read"], "definitions": ["noise"]}]}).expect(201).data
    token = ("-H", f"X-Consul-Token: {made['api_key']}")
    index = curl(world, "/v1/kv/noise/x", *token, n=2)[1]["x-consul-index"]
    ended = []
    waiting = threading.Thread(target=lambda: ended.append(curl(world, f"/v1/kv/noise/x?index={index}&wait=60s", *token, n=2)[0]))
    waiting.start()
    time.sleep(0.5)
    world.client.ask("DELETE", f"/api/v1/api_key/{made['key_id']}").expect(200)
    waiting.join(10)
    expect("curl", "the status of a query whose key is revoked", ended, [401])


def check_isolated(world):
    """A node without a leader says so, and reads its own state only for those who allow it."""
    for n in (1, 2):
        world.nodes.kill(n)
    token = ("-H", f"X-Consul-Token: {KEY}")

    def stale():
        status, headers, _ = curl(world, "/v1/kv/noise/x?stale", *token, n=3)
        expect("curl", "the status of a stale read without a leader", status, 200)
        return headers["x-consul-knownleader"] == "false" and int(headers["x-consul-lastcontact"]) > 2000

    wait_for(stale, "a node to say that it knows no leader")
    status = curl(world, "/v1/kv/noise/x", *token, n=3)[0]
    if status < 500:
        fail("curl", f"a read without a leader: {status}")


def follow(world, name, n, key, recurse):
    """A program that follows a key, and has seen its first state."""
    following = program(world, name, world.reader, n)
    following.tell(do="follow", key=key, recurse=recurse, wait=f"{WAIT_S}s")
    wait_for(lambda: following.seen, f"{name} to see {key}")
    return following


def check_changes(world, name):
    """A program sees what is made, changed and deleted, the last of many changes, and nothing where nothing changes."""
    with contextlib.closing(follow(world, name, 2, "noise/", True)) as tree, contextlib.closing(follow(world, name, 3, "noise/new/n", False)) as leaf:
        expect(name, "a field that is not there", leaf.seen, [None])
        for n in range(30):
            world.put("noise", "new", {"n": n})
        until_number(tree, "noise/new", 29)
        until(leaf, lambda state: state and state["value"] == "29", "the last of many changes")
        world.delete("noise", "new")
        until(leaf, lambda state: state is None, "a deletion")
        until(tree, lambda state: set(entries(state)) == {"noise/x"}, "a deletion below")
        known = len(tree.seen), len(leaf.seen)
        for n in range(5):
            world.put("limits", "globex", {"seats": 7})
            time.sleep(WAIT_S / 2)
        expect(name, "changes while others are made", (tree.seen[known[0]:], leaf.seen[known[1]:]), ([], []))
        expect(name, "troubles", tree.troubles + leaf.troubles, [])
    # The definition too may come and go.
    with contextlib.closing(follow(world, name, 3, f"{ABSENT}/x/n", False)) as leaf:
        world.client.ask("POST", "/api/v1/config_definition/", {"config_definition_key": ABSENT}).expect(201)
        world.put(ABSENT, "x", {"n": 1})
        until(leaf, lambda state: state and state["value"] == "1", "a new definition")
        world.client.ask("DELETE", f"/api/v1/config_definition/{ABSENT}").expect(200)
        until(leaf, lambda state: state is None, "the end of a definition")


def until(following, condition, what, seconds=SEEN_S):
    end = time.monotonic() + seconds
    while not (following.seen and condition(following.seen[-1])):
        if time.monotonic() > end or following.process.poll() is not None:
            fail(following.name, f"{what} is not seen within {seconds} s; the last states are {following.seen[-2:]}; it says:\n{following.said()}")
        time.sleep(0.02)


def until_number(following, key, number, seconds=SEEN_S):
    until(following, lambda state: json.loads(entries(state).get(key, "null")) == {"n": number}, f"{key} with {number}", seconds)


# --- consul-template and Viper ---------------------------------------------------------------------------------------

TEMPLATE = """\
greeting={{ key "shop/default/shop/greeting" }}
{{ with key "shop/default" | parseJSON }}seats={{ .shop.limits.seats }}{{ end }}
{{ range ls "limits/acme/deep/a" }}{{ .Key }}={{ .Value }}{{ end }}
{{ range ls "limits" }}{{ .Key }} {{ end }}
{{ range tree "limits/acme2" }}{{ .Key }}={{ .Value }}{{ end }}
{{ range tree "limits/acme/tags/" }}{{ .Key }}={{ .Value }} {{ end }}
{{ keyOrDefault "limits/none/x" "default" }} {{ keyExists "limits/acme" }} {{ keyExists "limits/none" }}
"""
RENDERED = "greeting=Guten Tag\nseats=5\nb=c\nacme acme2 globex \nseats=6\n0=a 1=b \ndefault true false\n"


def template(world, n, key, *options):
    """A folder with the template, and the command that renders it into the file `out`."""
    folder = pathlib.Path(tempfile.mkdtemp(dir=world.nodes.home))
    (folder / "in").write_text(TEMPLATE)
    command = [*world.commands["template"], f"-consul-addr={world.nodes.api[n]}", "-template=in:out", "-log-level=warn", "-wait=0s", *options]
    return folder, command, {"CONSUL_HTTP_TOKEN": key}


def check_template(world):
    folder, command, env = template(world, 1, world.reader, "-once")
    ran = subprocess.run(command, cwd=folder, env={**os.environ, **env}, capture_output=True, text=True, timeout=REPLY_S, check=False)
    rendered = (folder / "out").read_text() if ran.returncode == 0 else ran.stderr[-3000:]
    expect("template", "the rendered file", (ran.returncode, rendered), (0, RENDERED))
    folder, command, env = template(world, 1, "concord_wrong", "-once", "-consul-retry=false")
    ran = subprocess.run(command, cwd=folder, env={**os.environ, **env}, capture_output=True, text=True, timeout=REPLY_S, check=False)
    if ran.returncode == 0 or "401" not in ran.stderr or (folder / "out").exists():
        fail("template", f"a wrong key ends with {ran.returncode}: {ran.stderr[-3000:]}")


class Live:
    """consul-template, which renders at each change."""

    def __init__(self, world, n):
        self.folder, command, env = template(world, n, world.reader)
        self.program = Program("template", command, self.folder, env)

    def until_greeting(self, greeting, seconds=SEEN_S):
        end, out = time.monotonic() + seconds, self.folder / "out"
        while not out.exists() or f"greeting={greeting}\n" not in out.read_text():
            if time.monotonic() > end or self.program.process.poll() is not None:
                rendered = out.read_text() if out.exists() else "nothing"
                fail("template", f"{greeting!r} is not rendered within {seconds} s but {rendered!r}; it says:\n{self.program.said()}")
            time.sleep(0.02)

    def close(self):
        self.program.close()


def greet(world, greeting, client=None):
    """Changes the greeting of the shop. The other fields stay."""
    data = json.loads(json.dumps(SHOP))
    data["shop"]["greeting"] = greeting
    world.put("shop", "default", data, client)


def viper(world, n):
    return Program("viper", [*world.commands["viper"], "shop/default"], world.home, {"CONCORD_NODE": world.nodes.api[n], "CONSUL_HTTP_TOKEN": world.reader})


def viper_state(greeting):
    return {"greeting": greeting, "hosts": SHOP["shop"]["hosts"], "seats": SHOP["shop"]["limits"]["seats"]}


def check_viper(world):
    with contextlib.closing(viper(world, 2)) as following:
        following.until_seen(viper_state("Guten Tag"), "the config")
        greet(world, "Servus")
        following.until_seen(viper_state("Servus"), "a change")
        greet(world, "Guten Tag")
        following.until_seen(viper_state("Guten Tag"), "the change back")


# --- Spring ----------------------------------------------------------------------------------------------------------

# Files beside the service. Spring Cloud Config counts more than they do, profile by profile.
LOCAL = {
    "application.properties": "local.base=file\nlocal.only=file\nshop.greeting=file\n",
    "application-prod.properties": "local.prod=file\nshop.greeting=file, prod\n",
}


class Service:
    """The service of Spring Boot, started with these properties. Its file imports others, as its users write it."""

    def __init__(self, world, imported, **properties):
        folder = pathlib.Path(tempfile.mkdtemp(dir=world.nodes.home))
        for name, text in LOCAL.items():
            (folder / name).write_text(text)
        with (folder / "application.properties").open("a") as file:
            file.write(f"spring.config.import={imported}\n")
        command = list(world.commands["java"])
        command[command.index("-cp") + 1] = ":".join(str(world.home / part) for part in command[command.index("-cp") + 1].split(":"))
        fixed = {"server.port": 0, "spring.main.banner-mode": "off", "logging.level.root": "warn", "management.endpoints.web.exposure.include": "refresh,health"}
        given = {name.replace("_", "."): value for name, value in properties.items()}
        arguments = [f"--{name}={value}" for name, value in {**fixed, **given}.items()]
        self.program = Program("spring", [*command, "Service", *arguments], folder, {})

    def start(self):
        self.port = self.program.ask()["port"]
        return self

    def get(self, path, method="GET"):
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", method=method)
        try:
            with urllib.request.urlopen(request, timeout=REPLY_S) as answer:
                return answer.read().decode()
        except urllib.error.HTTPError as error:
            fail("spring", f"{method} {path}: {error.code} {error.read()[:2000]}; it says:\n{self.program.said()}")

    def shop(self):
        return json.loads(self.get("/shop"))

    def properties(self, *names):
        return json.loads(self.get("/properties?" + urllib.parse.urlencode({"names": ",".join(names)})))

    def refresh(self):
        return set(json.loads(self.get("/actuator/refresh", "POST")))

    def close(self):
        self.program.close()


def config_service(world, key, nodes=(1, 2, 3), **more):
    uris = ",".join(world.url("/spring", n) for n in nodes)
    off = {"spring_cloud_consul_enabled": "false", "spring_cloud_consul_config_enabled": "false"}
    # Not in spring.config.import, where a comma separates locations.
    return Service(world, "configserver:", **{
        "spring_application_name": "shop", "spring_cloud_config_uri": uris,
        "spring_cloud_config_username": "shop", "spring_cloud_config_password": key, **off, **more,
    })


BOUND = {
    "greeting": "Hallo", "hosts": ["p.example.com"], "tags": [], "limits": {"seats": 50, "ratio": 7.0, "open": True},
    "servers": [{"host": "p1", "port": 11}, {"host": "p2", "port": 12}],
}


def check_spring(world, service):
    """The service with the profile `prod`."""
    expect("spring", "the bound properties", service.shop(), BOUND)
    expect("spring", "the value of a bean", service.get("/greeting"), "Hallo")
    wanted = {
        "shared": "by all", "order": "application-prod", "shop.limits.seats": "50", "shop.limits.ratio": "7.0",
        "local.base": "server", "local.prod": "server, prod", "local.only": "file", "nowhere": None,
    }
    expect("spring", "properties by their names", service.properties(*wanted), wanted)
    world.put("prod.shop", "default", {"shop": {"limits": {"seats": 51}}})
    world.put("shop", "prod", {"shop": {"greeting": "Hallo again", "tags": ["new"]}})
    changed = service.refresh()
    if not {"shop.greeting", "shop.limits.seats", "shop.tags[0]", "shop.hosts[0]"} <= changed:
        fail("spring", f"a refresh names {sorted(changed)}")
    expect("spring", "the value of a bean after a refresh", service.get("/greeting"), "Hallo again")
    wanted = {**BOUND, "greeting": "Hallo again", "tags": ["new"], "hosts": SHOP["shop"]["hosts"], "servers": SHOP["shop"]["servers"], "limits": {**BOUND["limits"], "seats": 51}}
    expect("spring", "the bound properties after a refresh", service.shop(), wanted)
    expect("spring", "what a refresh without a change names", sorted(service.refresh() - {"config.client.version"}), [])


def check_spring_wire(world):
    """What the service does not ask."""
    basic = ("-u", f"shop:{world.reader}")
    accept = ("-H", "Accept: application/vnd.spring-cloud.config-server.v2+json")
    status, headers, body = curl(world, "/spring/shop/prod", *basic, *accept)
    found = json.loads(body)
    expect("spring", "the environment", (status, headers["content-type"], found["name"], found["profiles"], type(found["version"]).__name__), (200, "application/json", "shop", ["prod"], "str"))
    names = [source["name"] for source in found["propertySources"]]
    expect("spring", "the places of the sources", [place(name) for name in names], ["prod.shop/default", "shop/prod", "application/prod", "shop/default", "application/default"])
    expect("spring", "the names of the sources", [name.split(" ")[0] for name in names], ["concord:shop-prod", "concord:shop-prod", "concord:application-prod", "concord:shop", "concord:application"])
    expect("spring", "a source", found["propertySources"][0]["source"], dict(flat(DEFINITIONS["prod.shop"]["default"])))
    merged = json.loads(json.dumps(SHOP))
    merged["shop"].update(DEFINITIONS["shop"]["prod"]["shop"], servers=DEFINITIONS["prod.shop"]["default"]["shop"]["servers"])
    merged["shop"]["limits"]["seats"] = 50
    merged |= {"shared": "by all", "order": "application-prod", "local": {"base": "server", "prod": "server, prod"}}
    for path in ("shop-prod.yml", "shop-prod.yaml", "main/shop-prod.yml"):
        as_yaml("spring", path, curl(world, f"/spring/{path}", *basic)[2], merged)
    expect("spring", "shop-prod.json", json.loads(curl(world, "/spring/shop-prod.json", *basic)[2]), merged)
    if "java" in world.commands:
        expect("spring", "shop-prod.properties", loaded(world, curl(world, "/spring/shop-prod.properties", *basic)[2]), texts(merged))
    for path in ("services(_)billing/default", "services%28_%29billing/default"):
        source = json.loads(curl(world, f"/spring/{path}", *basic)[2])["propertySources"][0]
        expect("spring", path, source["source"], dict(flat(DEFINITIONS["services"]["billing"])))
    orders = {
        "shop/default": ["shop/default", "application/default"],
        "shop/prod,eu": ["shop/eu", "prod.shop/default", "shop/prod", "application/prod", "shop/default", "application/default"],
        "shop/eu%2Cprod": ["prod.shop/default", "shop/prod", "application/prod", "shop/eu", "shop/default", "application/default"],
        "shop,services(_)billing/none": ["services/billing", "shop/default", "application/default"],
    }
    for path, order in orders.items():
        sources = json.loads(curl(world, f"/spring/{path}", *basic)[2])["propertySources"]
        expect("spring", f"the sources of {path}", [place(source["name"]) for source in sources], order)
    version = found["version"]
    greet(world, "later")
    for label, greeting in ((version, "Guten Tag"), ("main", "later"), ("master", "later"), ("latest", "later")):
        sources = json.loads(curl(world, f"/spring/shop/default/{label}", *basic)[2])["propertySources"]
        expect("spring", f"the label {label}", [source["source"]["shop.greeting"] for source in sources], [greeting, "never"])
    greet(world, "Guten Tag")
    for path, wanted in (("shop/prod/v1", 404), ("nowhere/prod", 403), ("hidden/default", 403), ("absent/default", 200), ("guarded(_)main/default", 403)):
        expect("spring", f"the status of {path}", curl(world, f"/spring/{path}", *basic)[0], wanted)
    expect("spring", "the status for one who may reveal", curl(world, "/spring/guarded(_)main/default", "-u", f"x:{world.revealer}")[0], 200)
    expect("spring", "the status of a wrong password", curl(world, "/spring/shop/prod", "-u", "shop:wrong")[0], 401)


def place(name):
    """The config that is in the name of a source."""
    return name.split("(")[-1].rstrip(")")


def check_refused(world):
    """A service that may not read its properties does not start."""
    for key, name, status in (("concord_wrong", "shop", "401"), (world.reader, "hidden", "403")):
        with contextlib.closing(config_service(world, key, spring_application_name=name, spring_main_web_application_type="none").program) as refused_one:
            with contextlib.suppress(subprocess.TimeoutExpired):
                refused_one.process.wait(REPLY_S)
            if refused_one.process.returncode in (None, 0) or status not in refused_one.said():
                fail("spring", f"{name} with {key[:13]} ends with {refused_one.process.returncode}: {refused_one.said()}")


def consul_service(world):
    """The service with Spring Cloud Consul, which looks at `services/billing/` and follows it."""
    node, port = world.nodes.api[2].split(":")
    off = {"spring_cloud_config_enabled": "false"}
    return Service(world, f"consul:{node}:{port}", **{
        "spring_application_name": "billing", "spring_cloud_consul_config_prefixes": "services",
        "spring_cloud_consul_config_acl-token": world.reader, "spring_cloud_consul_config_watch_wait-time": WAIT_S, "spring_cloud_consul_config_watch_delay": 100,
        "management_health_consul_enabled": "false", **off,
    })


def check_spring_consul(world, service):
    billing = DEFINITIONS["services"]["billing"]["shop"]
    shop = service.shop()
    expect("spring consul", "the bound properties", (shop["greeting"], shop["limits"]), (billing["greeting"], billing["limits"]))
    changed = json.loads(json.dumps(DEFINITIONS["services"]["billing"]))
    changed["shop"]["limits"]["seats"] = 10
    world.put("services", "billing", changed)
    wait_for(lambda: service.shop()["limits"]["seats"] == 10, "Spring Cloud Consul to see a change")


# --- The death of the leader -----------------------------------------------------------------------------------------


def check_leaders_death(world, stack, round_):
    """Everything that follows a key at another node sees what is written after the leader's death, and before the
    election is over."""
    leader = world.nodes.leader()
    others = [n for n in world.nodes.api if n != leader]
    names = [name for name in ("python", "node") if name in world.commands]
    trees = [follow(world, name, n, "noise/", True) for name in names for n in others]
    leaves = [follow(world, name, n, "shop/default/shop/greeting", False) for name in names for n in others]
    vipers = [viper(world, n) for n in others] if "viper" in world.commands else []
    lives = [Live(world, n) for n in others] if "template" in world.commands else []
    for one in (*trees, *leaves, *vipers, *lives):
        stack.callback(one.close)
    before, after = f"before {round_}", f"after {round_}"
    greet(world, before, world.nodes.client(others[0]))

    def all_see(greeting):
        for leaf in leaves:
            until(leaf, lambda state: state and state["value"] == greeting, f"the greeting {greeting!r}")
        for one in vipers:
            one.until_seen(viper_state(greeting), f"the greeting {greeting!r}")
        for one in lives:
            one.until_greeting(greeting)

    all_see(before)
    # All are in a blocking query again.
    time.sleep(0.5)
    client = world.nodes.client(others[1])
    began = time.monotonic()
    os.kill(world.nodes.processes[leader].pid, signal.SIGKILL)
    world.nodes.processes[leader].wait()
    number = 1000 * round_
    while True:
        answer = client.ask("PUT", "/api/v1/config_definition/noise/config/x", {"data": {"n": number}})
        if answer.status == 200:
            break
        if answer.status not in (503, 504) or time.monotonic() - began > SEEN_S:
            fail("nodes", f"a write after the leader's death: {answer.status} {answer.body[:500]}")
    written = time.monotonic()
    for tree in trees:
        until_number(tree, "noise/x", number)
    seen = time.monotonic()
    greet(world, after, client)
    all_see(after)
    troubles = sum(len(one.troubles) for one in (*trees, *leaves))
    print(f"leader {leader} killed: written after {written - began:.1f} s, seen {seen - written:.1f} s later; {troubles} failed queries", flush=True)
    return leader


def main(home, *given):
    home = pathlib.Path(home).resolve()
    commands = {name: shlex.split(command) for name, _, command in (one.partition("=") for one in given)}
    with contextlib.ExitStack() as stack:
        data = stack.enter_context(tempfile.TemporaryDirectory(prefix="concord-protocols-"))
        nodes = stack.enter_context(Nodes(data, 3))
        world = World(nodes, home, commands)

        def run(name, check, *arguments):
            began = time.monotonic()
            check(world, *arguments)
            print(f"{name}: right ({time.monotonic() - began:.0f} s)", flush=True)

        # Java starts while others are tried.
        services = {}
        if "java" in commands:
            services["spring"] = config_service(world, world.reader, spring_profiles_active="prod")
            services["spring consul"] = consul_service(world)
        for service in services.values():
            stack.callback(service.close)
        run("raw", check_raw)
        run("consul", check_wire)
        run("consul, revoked", check_revoked)
        for name in ("python", "node"):
            if name in commands:
                run(name, check_keys, name)
                run(f"{name}, changes", check_changes, name)
        if "template" in commands:
            run("consul-template", check_template)
        if "viper" in commands:
            run("viper", check_viper)
        run("spring, by curl", check_spring_wire)
        if services:
            run("spring", check_spring, services["spring"].start())
            run("spring consul", check_spring_consul, services["spring consul"].start())
            run("spring, refused", check_refused)
        for round_ in (1, 2):
            with contextlib.ExitStack() as followers:
                leader = check_leaders_death(world, followers, round_)
                if services:
                    # The service knows all three nodes.
                    alive = next(n for n in nodes.api if n != leader)
                    world.put("shop", "prod", {"shop": {"greeting": f"refreshed {round_}"}}, nodes.client(alive))
                    services["spring"].refresh()
                    expect("spring", "a value while a node is dead", services["spring"].get("/greeting"), f"refreshed {round_}")
            nodes.start(leader)
            nodes.ready()
        run("consul, isolated", check_isolated)


if __name__ == "__main__":
    main(*sys.argv[1:])
