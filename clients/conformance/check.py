"""Plays nodes for a client and checks what it sends and how its calls end. See README.md beside this file.

    python3 clients/conformance/check.py [--only TEXT] -- COMMAND...

COMMAND runs the testee of a client.
"""

from __future__ import annotations

import argparse
import contextlib
import http.server
import json
import pathlib
import queue
import re
import select
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse

HERE = pathlib.Path(__file__).resolve().parent
KEY = "the-key"
PATIENCE_S = 60
JOBS = 4
ANY, MAYBE = "$any", "$maybe"


class Number(str):
    """A number of JSON with all its digits. It equals another one of the same value: `1.50` is `1.5`, and not `1.500000001`."""

    def __eq__(self, other):
        return isinstance(other, Number) and self.value() == other.value()

    __hash__ = str.__hash__

    def value(self):
        sign, whole, part, exponent = re.fullmatch(r"(-?)(\d+)(?:\.(\d+))?(?:[eE]([-+]?\d+))?", self).groups()
        digits = (whole + (part or "")).lstrip("0")
        shown = digits.rstrip("0")
        return sign, shown, int(exponent or 0) - len(part or "") + len(digits) - len(shown) if shown else 0


def loads(text):
    return json.loads(text, parse_float=Number, parse_int=Number)


def dumps(value):
    if isinstance(value, Number):
        return str(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(name)}:{dumps(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(dumps, value)) + "]"
    return json.dumps(value)


def differences(expected, found, place=""):
    """Where something is not as expected. `$any` stands for any value but null, `$maybe` for null, too."""
    if expected == MAYBE:
        return []
    if expected == ANY:
        return [] if found is not None else [f"{place} is missing"]
    if isinstance(expected, dict) and isinstance(found, dict):
        told = [line for name in expected for line in differences(expected[name], found.get(name), f"{place}.{name}")]
        return told + [f"{place}.{name} is there: {dumps(found[name])}" for name in found if name not in expected and found[name] not in (None, [])]
    if isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        return [line for n, each in enumerate(expected) for line in differences(each, found[n], f"{place}[{n}]")]
    if type(expected) is type(found) and expected == found:
        return []
    return [f"{place} is {dumps(found)}, expected {dumps(expected)}"]


# --- The nodes ------------------------------------------------------------------------------------------------------


class Request:
    """What a node got."""

    def __init__(self, node, handler, body):
        self.node, self.method, self.body, self.at = node, handler.command, body, time.monotonic()
        self.path, _, query = handler.path.partition("?")
        self.query = dict(urllib.parse.parse_qsl(query, keep_blank_values=True))
        self.headers = {name.lower(): value.encode("latin-1").decode("utf-8", "replace") for name, value in handler.headers.items()}

    def copy(self):
        """What is equal in all copies of a write."""
        return (self.method, self.path, self.query, self.body, self.headers.get("idempotency-key"), self.headers.get("if-match"))

    def __str__(self):
        return f"node {self.node}: {self.method} {self.path} {self.query} {self.body!r}"


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def play(self):
        length = self.headers.get("content-length")
        body = self.rfile.read(int(length)) if length else self.chunked() if "chunked" in self.headers.get("transfer-encoding", "") else b""
        with contextlib.suppress(OSError):
            self.server.script.answer(self, Request(self.server.place, self, body.decode()))

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = play

    def chunked(self):
        body = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def send(self, status, headers, body, cut=False):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(body) + 20 if cut else len(body)))
        self.end_headers()
        self.wfile.write(body)
        if cut:
            self.end(reset=False)

    def end(self, reset):
        self.close_connection = True
        if reset:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        else:
            with contextlib.suppress(OSError):
                self.connection.shutdown(socket.SHUT_WR)
        self.connection.close()

    def wait_for_end(self):
        """Says nothing until the client leaves, or the case ends."""
        while not self.server.script.is_over.is_set():
            if select.select([self.connection], [], [], 0.05)[0] and not self.connection.recv(4096, socket.MSG_PEEK):
                break
        self.end(reset=False)


class Node(http.server.ThreadingHTTPServer):
    daemon_threads, block_on_close = True, False

    def __init__(self, place, script):
        super().__init__(("127.0.0.1", 0), Handler)
        self.place, self.script = place, script
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    def handle_error(self, request, client_address):
        """A client that has left."""


def success(data):
    return dumps({"status": "SUCCESS", "message": "done", "data": data}).encode()


def rejection(status, code, loc=()):
    kind = {401: "unauthorized_error", 403: "forbidden_error", 404: "not_found_error", 409: "conflict_error", 410: "expired_error", 412: "precondition_failed",
            422: "validation_error", 429: "rate_limited", 500: "server_error", 503: "unavailable_error", 504: "timeout_error"}.get(status, "error")
    return dumps({"status": "FAILURE", "message": "why", "errors": [{"type": kind, "code": code, "msg": f"why {code}", "loc": list(loc)}]}).encode()


class Script:
    """The responses of a case, in the order in which requests come."""

    def __init__(self, case):
        self.responses, self.repeats = list(case.get("responses", [])), case.get("repeats", False)
        self.requests, self.problems = [], []
        self.lock, self.is_over = threading.Lock(), threading.Event()

    def answer(self, handler, request):
        with self.lock:
            self.requests.append(request)
            if not self.responses:
                self.problems.append(f"one request more than expected: {request}")
                response = {"rejected": ["500", "internal_error"]}
            else:
                response = self.responses[0] if self.repeats and len(self.responses) == 1 else self.responses.pop(0)
        play(handler, response)


def play(handler, response):
    headers = {"content-type": "application/json", "x-concord-node": str(handler.server.place + 1), "x-concord-revision": "9", **response.get("headers", {})}
    if "ok" in response:
        body = success(response["ok"])
        handler.send(int(response.get("status", "200")), headers, body[:-3] if response.get("cut") else body, bool(response.get("cut")))
    elif "rejected" in response:
        status, code, *loc = response["rejected"]
        handler.send(int(status), headers, rejection(int(status), code, loc))
    elif "foreign" in response:
        body = b"" if int(response["foreign"]) in (204, 304) else b"<html>a proxy</html>"
        handler.send(int(response["foreign"]), {"content-type": "text/html", **response.get("headers", {})}, body)
    elif response["fault"] == "silence":
        handler.wait_for_end()
    elif response["fault"] == "garbage":
        handler.wfile.write(b"\x00\xffno http\r\n\r\n")
        handler.end(reset=False)
    else:
        handler.end(reset=response["fault"] == "reset")


# --- A cluster, for watches and caches ------------------------------------------------------------------------------


class Cluster:
    """Nodes that hold the configs of one definition and answer what watches and caches ask."""

    def __init__(self, case):
        self.definition = case["cluster"]["definition"]
        self.revision, self.id, self.compacted = 10, "one", 0
        self.configs, self.events = {}, []
        self.requests, self.problems = [], []
        self.changed, self.is_over = threading.Condition(), threading.Event()
        self.fault, self.cuts, self.cut_after, self.polls = None, 0, case["cluster"].get("cut_after"), 0
        for key, data in case["cluster"]["configs"].items():
            self.configs[key] = (data, 10)

    def do(self, step):
        """What happens to the nodes: a step of a case."""
        with self.changed:
            if "put" in step:
                self.revision += 1
                kind = "config_updated" if step["put"] in self.configs else "config_created"
                self.configs[step["put"]] = (step["data"], self.revision)
                self.add({"type": kind, "config_key": step["put"], "data": step["data"], **TIMES})
            elif "delete" in step:
                self.revision += 1
                del self.configs[step["delete"]]
                self.add({"type": "config_deleted", "config_key": step["delete"]})
            elif "other_cluster" in step:
                # As after a restore: another id, a lower revision, other data.
                self.id, self.revision, self.events = step["other_cluster"], 5, []
                self.configs = {key: (data, 5) for key, data in step["configs"].items()}
            elif "compact" in step:
                self.compacted, self.events = self.revision, []
            elif "fault" in step:
                self.fault = step["fault"]
            else:
                self.cuts += 1
            self.changed.notify_all()

    def add(self, change):
        self.events.append({"revision": Number(self.revision), "at": AT, "by": "root", "reason": None, "changes": [{"config_definition_key": self.definition, **change}]})

    def head(self, handler, **more):
        return {"content-type": "application/json", "x-concord-node": str(handler.server.place + 1), "x-concord-revision": str(self.revision), "x-concord-cluster": self.id, **more}

    def answer(self, handler, request):
        with self.changed:
            self.requests.append(request)
            fault, root = self.fault, f"/api/v1/config_definition/{self.definition}"
        if fault == "silence":
            return handler.wait_for_end()
        if fault == "reset":
            return handler.end(reset=True)
        if fault == "forbidden":
            return handler.send(403, self.head(handler), rejection(403, "forbidden"))
        if fault == "unavailable":
            return handler.send(503, self.head(handler), rejection(503, "unavailable"))
        if request.path == "/api/v1/watch":
            return self.watch(handler, request)
        if request.path == "/api/v1/changes":
            return self.changes(handler, request)
        if request.path.startswith(f"{root}/config/") or request.path == "/api/v1/config":
            key = request.path.removeprefix(f"{root}/config/") if request.path != "/api/v1/config" else ""
            if not key:
                with self.changed:
                    results = [self.record(each) for each in sorted(self.configs)]
                    return handler.send(200, self.head(handler), success({"results": results, "meta": {"total": Number(len(results)), "page": Number(1), "limit": Number(1000)}}))
            if key in self.configs:
                return handler.send(200, self.head(handler, etag=f'"{self.configs[key][1]}"'), success(self.record(key)))
            return handler.send(404, self.head(handler), rejection(404, "config_not_found"))
        if request.path == root:
            return handler.send(200, self.head(handler, etag='"10"'), success({"config_definition_key": self.definition, "indexes": [], "json_schema": None, **TIMES}))
        if request.path.endswith("/report"):
            return handler.send(200, self.head(handler), success({}))
        self.problems.append(f"no node answers {request}")
        return handler.send(404, self.head(handler), rejection(404, "not_there"))

    def record(self, key):
        data, revision = self.configs[key]
        return {"config_definition_key": self.definition, "config_key": key, "data": data, "revision": Number(revision), **TIMES}

    def changes(self, handler, request):
        begin, wait_s = request.query.get("from"), float(request.query.get("wait", "0"))
        end, cuts = time.monotonic() + min(wait_s, 5), self.cuts
        with self.changed:
            if begin is None:
                return handler.send(304, self.head(handler, **{"x-concord-next-from": str(self.revision + 1)}), b"")
            while True:
                # It may be compacted while the poll waits.
                if int(begin) <= self.compacted:
                    return handler.send(410, self.head(handler), rejection(410, "revision_compacted"))
                found = [event for event in self.events if int(event["revision"]) >= int(begin)]
                left = end - time.monotonic()
                if found or left <= 0 or self.fault or self.cuts != cuts or self.is_over.is_set():
                    break
                self.changed.wait(min(left, 0.2))
            self.polls += 1
            if self.cuts != cuts or self.fault or self.cut_after and self.polls % 2:
                return handler.end(reset=True)
            found = found[: int(self.cut_after)] if self.cut_after else found
            head = self.head(handler, **{"x-concord-next-from": str(int(found[-1]["revision"]) + 1 if found else self.revision + 1)})
            body = success({"events": found}) if found else b""
        return handler.send(200 if found else 304, head, body)

    def watch(self, handler, request):
        begin = request.headers.get("last-event-id")
        position = int(begin) if begin is not None else int(request.query["from"]) - 1 if "from" in request.query else None
        with self.changed:
            cuts, cluster = self.cuts, self.id
            if position is not None and position < self.compacted:
                return handler.send(410, self.head(handler), rejection(410, "revision_compacted"))
            is_initial = position is None and request.query.get("initial") == "true"
            if position is None:
                position = self.revision
            handler.send_response(200)
            for name, value in self.head(handler, **{"content-type": "text/event-stream", "connection": "close"}).items():
                handler.send_header(name, value)
            handler.end_headers()
            handler.close_connection = True
            write = lambda kind, revision, data: handler.wfile.write(f"event: {kind}\nid: {revision}\ndata: {dumps(data)}\n\n".encode())
            handler.wfile.write(b"retry: 1000\n")
            if is_initial:
                parts = [self.record(key) for key in sorted(self.configs)]
                write("state", position, {"revision": Number(position), "definitions": [], "configs": parts[:1], "complete": False})
                write("state", position, {"revision": Number(position), "definitions": [], "configs": parts[1:], "complete": True})
            else:
                write("heartbeat", position, {"revision": Number(position)})
            last = position + int(self.cut_after) if self.cut_after else None
            while not self.is_over.is_set() and not self.fault and self.cuts == cuts and self.id == cluster and position != last:
                for event in self.events:
                    if int(event["revision"]) > position and position != last:
                        position = int(event["revision"])
                        write("change", position, event)
                handler.wfile.flush()
                self.changed.wait(0.2)
        return handler.end(reset=True)


AT = "2026-11-23T00:00:00.000000Z"
TIMES = {"created_at": AT, "modified_at": AT}


# --- Cases ----------------------------------------------------------------------------------------------------------


class Testee:
    """The program of a client."""

    def __init__(self, command):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.lines, self.told = queue.Queue(), []
        threading.Thread(target=self.read, daemon=True).start()
        threading.Thread(target=lambda: self.told.extend(self.process.stderr), daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put(b"")

    def ask(self, message):
        self.process.stdin.write(dumps(message).encode() + b"\n")
        self.process.stdin.flush()
        try:
            line = self.lines.get(timeout=PATIENCE_S)
        except queue.Empty:
            raise Gone("the testee says nothing") from None
        if not line:
            raise Gone("the testee has ended")
        return loads(line)

    def end(self):
        self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise Gone("the testee does not end with its input") from None


class Gone(Exception):
    pass


def run(testee, case, folder):
    """The problems of a case."""
    script = Cluster(case) if "cluster" in case else Script(case)
    nodes = [Node(place, script) for place in range(int(case.get("nodes", "2")))]
    urls = [f"http://127.0.0.1:{node.server_address[1]}" for node in nodes]
    down = [nodes.pop(place) for place in sorted(map(int, case.get("down", [])), reverse=True)]
    close(down)
    for step in case.get("before", []):
        script.do(step)
    client = {"urls": urls, "key": KEY, "timeout_s": Number("10"), "attempt_timeout_s": Number("2"), **case.get("client", {})}
    problems = []
    try:
        began = time.monotonic()
        if "steps" in case:
            testee.ask({"client": client, "call": {"do": "cache", "definition": case["cluster"]["definition"]}})
            for n, step in enumerate(case["steps"]):
                if "nodes" in step:
                    script.do(step["nodes"])
                    continue
                asked = {**step["step"], **({"file": str(folder / step["step"]["file"])} if "file" in step["step"] else {})}
                problems += differences(step["outcome"], testee.ask({"step": asked}), f"step {n}: outcome")
        else:
            for n, call in enumerate([case["call"]] if "call" in case else case["calls"]):
                outcome = testee.ask({"client": client, "call": call})
                wanted = case["outcome"] if "call" in case else case["outcomes"][n]
                problems += differences(wanted, outcome, "outcome")
        took_s = time.monotonic() - began
        if took_s > float(case.get("within_s", "30")):
            problems.append(f"it took {took_s:.1f} s")
    finally:
        script.is_over.set()
        close(nodes)
    return problems + script.problems + judged(case, script.requests)


def close(nodes):
    for node in nodes:
        node.shutdown()
        node.server_close()


def judged(case, requests):
    """What is wrong with what the nodes got."""
    problems = [f"without the access key: {each}" for each in requests if KEY not in each.headers.get("authorization", "")]
    problems += [f"{each}, expected {path}" for path in [case.get("all_requests", {}).get("path")] for each in requests if path and each.path != path]
    expected = case.get("requests")
    if expected is None:
        return problems
    shown = "".join(f"\n      {each}" for each in requests)
    may_be_more = case.get("more_requests", False)
    if len(requests) != len(expected) and not (may_be_more and len(requests) > len(expected)):
        return [*problems, f"{len(requests)} requests, expected {len(expected)}:{shown}"]
    late = [each.at - requests[0].at for each in requests if each.at - requests[0].at > float(case.get("all_within_s", "inf"))]
    problems += [f"a request {each:.1f} s after the first" for each in late]
    if "pause_s" in case and requests[1].at - requests[0].at < float(case["pause_s"]):
        problems.append("the client did not wait as long as the node said")
    for n, (wanted, found) in enumerate(zip(expected, requests)):
        if "copy_of" in wanted and requests[int(wanted["copy_of"])].copy() != found.copy():
            problems.append(f"request {n} is no copy of request {wanted['copy_of']}:{shown}")
        if "other_key_than" in wanted and requests[int(wanted["other_key_than"])].headers.get("idempotency-key") == found.headers.get("idempotency-key"):
            problems.append(f"request {n} has the idempotency key of request {wanted['other_key_than']}, and is another write")
        if wanted.get("other_node") and found.node == requests[n - 1].node:
            problems.append(f"request {n} is for the node of the one before")
        for name in ("method", "path"):
            if name in wanted and wanted[name] != getattr(found, name):
                problems.append(f"request {n}: {name} is {getattr(found, name)}, expected {wanted[name]}")
        for name, value in wanted.get("query", {}).items():
            if found.query.get(name) != value:
                problems.append(f"request {n}: parameter {name} is {found.query.get(name)!r}, expected {value!r}")
        for name, value in wanted.get("headers", {}).items():
            problems += differences(value, found.headers.get(name), f"request {n}: header {name}")
        if "body" in wanted:
            problems += differences(wanted["body"], loads(found.body) if found.body else None, f"request {n}: body")
    return problems


def main():
    parser = argparse.ArgumentParser(description="Checks a client with played nodes.")
    parser.add_argument("--only", default="", help="the cases whose names have this text")
    parser.add_argument("command", nargs="+", help="runs the testee")
    given = parser.parse_args()
    cases = [each for each in loads((HERE / "cases.json").read_text())["cases"] if given.only in each["name"]]
    began, left, failed = time.monotonic(), queue.SimpleQueue(), []
    # The slow ones first.
    for case in sorted(cases, key=lambda each: -float(each.get("within_s", "0"))):
        left.put(case)
    # Most of the time goes by in waiting.
    workers = [threading.Thread(target=work, args=(given.command, left, failed)) for _ in range(min(JOBS, len(cases)))]
    for each in workers:
        each.start()
    for each in workers:
        each.join()
    print(f"{len(cases) - len(failed)} of {len(cases)} cases in {time.monotonic() - began:.0f} s")
    sys.exit(bool(failed) or not cases)


def work(command, left, failed):
    """Runs cases with a testee of its own until none is left."""
    testee = Testee(command)
    while True:
        try:
            case = left.get_nowait()
        except queue.Empty:
            break
        with tempfile.TemporaryDirectory() as folder:
            try:
                problems = run(testee, case, pathlib.Path(folder))
            except Gone as error:
                problems = [str(error)]
                testee.process.kill()
        if problems:
            told = b"".join(testee.told[-20:]).decode("utf-8", "replace").rstrip()
            shown = ["\n".join(["FAILED " + case["name"], *(f"    {each}" for each in problems)]), *([re.sub(r"(?m)^", "    | ", told)] if told else [])]
            print("\n".join(shown), flush=True)
            failed.append(case["name"])
            testee.told.clear()
        if testee.process.poll() is not None:
            testee = Testee(command)
    try:
        testee.end()
    except (Gone, BrokenPipeError) as error:
        print(f"FAILED {error}", flush=True)
        failed.append("the end")


if __name__ == "__main__":
    main()
