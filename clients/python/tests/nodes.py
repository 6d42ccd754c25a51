"""Three nodes of the binary that CONCORD_BIN names, as processes that a test may kill and pause."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from typing import Any, Callable, Dict, Iterator, List, Optional, TypeVar

ROOT = pathlib.Path(__file__).resolve().parents[3]
PATIENCE_S = 120
T = TypeVar("T")


def binary() -> Optional[str]:
    """The binary under test, or none."""
    named = os.environ.get("CONCORD_BIN")
    return str(pathlib.Path(named).resolve()) if named else None


def wait_for(condition: Callable[[], T], what: str, patience_s: float = PATIENCE_S) -> T:
    """What the condition returns as soon as it is true."""
    end = time.monotonic() + patience_s
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > end:
            raise AssertionError(f"{what}: not within {patience_s} s")
        time.sleep(0.02)


def free_ports(count: int) -> List[int]:
    """Ports that nothing listens on, below those that connections take for themselves."""
    found: List[int] = []
    port = 20_000 + (os.getpid() * 37 + time.monotonic_ns() // 1000) % 11_000
    while len(found) < count:
        port = 20_000 + (port + 1 - 20_000) % 12_000
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            found.append(port)
    return found


class Cluster:
    """Three nodes that form a cluster, with callers over TLS where asked for."""

    def __init__(self, with_tls: bool = False) -> None:
        program = binary()
        assert program, "CONCORD_BIN names the binary"
        self.program = program
        base = ROOT / "target" / "tmp"
        base.mkdir(parents=True, exist_ok=True)
        self.home = pathlib.Path(tempfile.mkdtemp(prefix="python-client-", dir=base))
        self.key = f"python-client-root-key-{os.getpid()}-0123456789abcdef"
        self.with_tls = with_tls
        self.processes: Dict[int, subprocess.Popen[bytes]] = {}
        ports = free_ports(6)
        self.api = {n: f"127.0.0.1:{ports[n - 1]}" for n in (1, 2, 3)}
        self.peer = {n: f"127.0.0.1:{ports[n + 2]}" for n in (1, 2, 3)}
        self._cert("ca")
        for n in self.api:
            self._cert("node", str(n), "--host", "127.0.0.1")
        if with_tls:
            # An authority of callers' certificates is another one than that of the nodes.
            self._cert("ca", "--out", "callers")
            self._cert("node", "9", "--ca", "callers", "--out", "callers", "--host", "caller")
        for n in self.api:
            self.start(n)
        for n in self.api:
            wait_for(lambda n=n: self.call(n, "GET", "/livez") == 200, f"node {n} to start")  # type: ignore[misc]
        members = [{"id": n, "api_addr": self.api[n], "peer_addr": self.peer[n]} for n in self.api]
        # It may be said again with the same members.
        wait_for(lambda: self.call(1, "POST", "/api/v1/cluster/init", {"members": members}) == 200, "a cluster")
        self.wait_ready()

    @property
    def urls(self) -> List[str]:
        return [self.url(n) for n in self.api]

    def url(self, n: int) -> str:
        return f"{'https' if self.with_tls else 'http'}://{self.api[n]}"

    def node_of(self, url: Optional[str]) -> int:
        return next(n for n in self.api if self.url(n) == url)

    @property
    def tls(self) -> Dict[str, str]:
        """The arguments of a client that speaks TLS."""
        callers = self.home / "callers"
        return {
            "ca_file": str(self.home / "ca.pem"),
            "cert_file": str(callers / "node-9.pem"),
            "cert_key_file": str(callers / "node-9.key"),
        }

    def _cert(self, *command: str) -> None:
        subprocess.run([self.program, "cert", *command], cwd=self.home, check=True, stdout=subprocess.DEVNULL)

    def start(self, n: int) -> None:
        assert n not in self.processes
        pem, key = self.home / f"node-{n}.pem", self.home / f"node-{n}.key"
        env = {name: value for name, value in os.environ.items() if not name.startswith("CONCORD_")}
        env |= {
            "CONCORD_NODE_ID": str(n),
            "CONCORD_API_ADDR": self.api[n],
            "CONCORD_PEER_ADDR": self.peer[n],
            "CONCORD_DATA_DIR": str(self.home / f"data{n}"),
            "CONCORD_API_KEY": self.key,
            "CONCORD_PEER_CERT_FILE": str(pem),
            "CONCORD_PEER_KEY_FILE": str(key),
            "CONCORD_PEER_CA_FILE": str(self.home / "ca.pem"),
        }
        if self.with_tls:
            env |= {
                "CONCORD_TLS_CERT_FILE": str(pem),
                "CONCORD_TLS_KEY_FILE": str(key),
                "CONCORD_TLS_CLIENT_CA_FILE": str(self.home / "callers" / "ca.pem"),
            }
        with (self.home / f"node{n}.log").open("ab") as log:
            self.processes[n] = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "--", self.program, "serve"],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def kill(self, n: int) -> None:
        process = self.processes.pop(n, None)
        if process is not None:
            process.kill()
            process.wait()

    def pause(self, n: int) -> None:
        self.processes[n].send_signal(signal.SIGSTOP)

    def resume(self, n: int) -> None:
        self.processes[n].send_signal(signal.SIGCONT)

    def call(self, n: int, method: str, path: str, body: Any = None) -> int:
        """The status of a request to one node; 0 when there is no answer."""
        return self.ask(n, method, path, body)[0]

    def ask(self, n: int, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        context = None
        if self.with_tls:
            context = ssl.create_default_context(cafile=self.tls["ca_file"])
            context.load_cert_chain(self.tls["cert_file"], self.tls["cert_key_file"])
        request = urllib.request.Request(
            self.url(n) + path, None if body is None else json.dumps(body).encode(), method=method
        )
        request.add_header("Authorization", self.key)
        request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=30, context=context) as answer:
                text = answer.read()
                return answer.status, json.loads(text) if text[:1] in (b"{", b"[") else None
        except urllib.error.HTTPError as error:
            with error:
                return error.code, None
        except OSError:
            return 0, None

    def wait_ready(self) -> None:
        for n in self.processes:
            wait_for(lambda n=n: self.call(n, "GET", "/readyz") == 200, f"node {n} to be ready")  # type: ignore[misc]

    def leader(self) -> int:
        def named() -> Optional[int]:
            for n in self.processes:
                status, answer = self.ask(n, "GET", "/api/v1/cluster")
                if status == 200 and answer["data"]["leader_id"] in self.processes:
                    return int(answer["data"]["leader_id"])
            return None

        found = wait_for(named, "a leader")
        assert found is not None
        return found

    def end(self) -> None:
        for n in list(self.processes):
            self.kill(n)
        shutil.rmtree(self.home, ignore_errors=True)


@contextlib.contextmanager
def cluster(with_tls: bool = False) -> Iterator[Cluster]:
    made = Cluster.__new__(Cluster)
    made.processes = {}
    try:
        made.__init__(with_tls)  # type: ignore[misc]
        yield made
    finally:
        if hasattr(made, "home"):
            made.end()
