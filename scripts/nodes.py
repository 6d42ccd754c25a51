"""Nodes of CONCORD_BIN for scripts that ask a real cluster, and a client that keeps its connections.

Every node has free ports of its own and a directory below the one that is given; `with` ends the nodes.
"""

import http.client
import json
import os
import pathlib
import socket
import subprocess
import sys
import time
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parent.parent
BINARY = pathlib.Path(os.environ.get("CONCORD_BIN", ROOT / "target" / "debug" / "concord")).resolve()
KEY = "the-root-key-of-a-script-0123456789abcdef"
SECRET = "the-secret-of-a-script-0123456789abcdef"
PATIENCE_S = 120


def wait_for(condition, what):
    """The first value of a condition that is true."""
    end = time.monotonic() + PATIENCE_S
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > end:
            sys.exit(f"{pathlib.Path(sys.argv[0]).name}: {what}: not within {PATIENCE_S} s")
        time.sleep(0.1)


def free_ports(count):
    """Ports that nobody listens on."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


class Answer:
    """What a node answered."""

    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def data(self):
        return self.json["data"]

    def expect(self, *statuses):
        if self.status not in statuses:
            raise AssertionError(f"{self.status} instead of {statuses}: {self.body[:2000]!r}")
        return self


class Client:
    """A caller with the root key on one connection, which is opened again when the node closes it."""

    def __init__(self, address):
        self.address, self.connection = address, None

    def ask(self, method, path, body=None, query=(), headers=()):
        if query:
            path += "?" + urllib.parse.urlencode(query)
        text = body if body is None or isinstance(body, (bytes, str)) else json.dumps(body)
        content = text.encode() if isinstance(text, str) else text
        sent = {"Authorization": KEY, **({"Content-Type": "application/json"} if content is not None else {}), **dict(headers)}
        for is_last in (False, True):
            is_new = self.connection is None
            if is_new:
                host, port = self.address.split(":")
                self.connection = http.client.HTTPConnection(host, int(port), timeout=60)
            try:
                self.connection.request(method, path, content, sent)
                answer = self.connection.getresponse()
                return Answer(answer.status, answer.headers, answer.read())
            except (http.client.HTTPException, ConnectionError):
                self.connection.close()
                self.connection = None
                # A connection that was kept may have been closed meanwhile. Whoever writes that way repeats nothing
                # that may not be repeated.
                if is_new or is_last:
                    raise
        raise AssertionError("the loop returns or raises")

    def get(self, path, **query):
        return self.ask("GET", path, query=list(query.items()))

    def is_up(self, path="/readyz"):
        try:
            return self.ask("GET", path).status == 200
        except OSError:
            return False


class Nodes:
    """A cluster of so many nodes."""

    def __init__(self, home, count=1, settings=None):
        self.home, self.settings = pathlib.Path(home), settings or {}
        ports = free_ports(2 * count)
        self.api = {n: f"127.0.0.1:{ports[n - 1]}" for n in range(1, count + 1)}
        self.peer = {n: f"127.0.0.1:{ports[count + n - 1]}" for n in range(1, count + 1)}
        self.processes = {}

    def __enter__(self):
        for n in self.api:
            self.start(n)
        wait_for(lambda: all(self.client(n).is_up("/livez") for n in self.api), "the nodes to start")
        members = [{"id": n, "api_addr": self.api[n], "peer_addr": self.peer[n]} for n in self.api]
        self.client(1).ask("POST", "/api/v1/cluster/init", {"members": members}).expect(200)
        self.ready()
        return self

    def __exit__(self, *_):
        for n in self.processes:
            self.kill(n)

    def start(self, n):
        env = {
            **os.environ, "CONCORD_NODE_ID": str(n), "CONCORD_API_ADDR": self.api[n], "CONCORD_PEER_ADDR": self.peer[n],
            "CONCORD_DATA_DIR": str(self.home / f"node{n}"), "CONCORD_API_KEY": KEY, "CONCORD_CLUSTER_SECRET": SECRET,
            "CONCORD_LOG": "warn", **self.settings,
        }
        with open(self.home / f"node{n}.log", "ab") as log:
            self.processes[n] = subprocess.Popen([BINARY, "serve"], env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def kill(self, n):
        self.processes[n].kill()
        self.processes[n].wait()

    def ready(self):
        wait_for(lambda: all(self.client(n).is_up() for n in self.api), "the nodes to be ready")

    def cluster(self, n=1):
        return self.client(n).get("/api/v1/cluster").expect(200).data

    def leader(self):
        return wait_for(lambda: self.cluster()["leader_id"], "a leader")

    def client(self, n=1):
        return Client(self.api[n])

    def memory_kb(self, n):
        """The memory of a node's process."""
        status = pathlib.Path(f"/proc/{self.processes[n].pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0])

    def cpu_s(self, n=None):
        """The processor time of a node, or of all."""
        ticks = os.sysconf("SC_CLK_TCK")
        used = 0
        for process in [self.processes[n]] if n else self.processes.values():
            fields = pathlib.Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
            used += int(fields[11]) + int(fields[12])
        return used / ticks
