"""For the tests of programs: a cache without a cluster, and a node of one's own.

A `MemoryCache` is read as a cache is, models included, and a test changes it. A `node` is a real one, which starts in
about a second; use it where a program writes.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import threading
from dataclasses import dataclass
from datetime import datetime, timezone
from types import TracebackType
from typing import Any, Dict, Iterator, Mapping, Optional, Tuple, Type

from . import _records as records
from ._async import AsyncClient
from ._cache import CacheCore, CacheView
from ._flow import Context
from ._following import Following
from ._models import to_data
from ._sync import Client

_NODE = "memory"
_START_TRIES, _END_S = 5, 20.0


class MemoryCache(CacheView):
    """A cache of the given configs: data or models, by definition and key."""

    def __init__(self, configs: Optional[Mapping[str, Mapping[str, Any]]] = None) -> None:
        self._core = CacheCore(Following(Context([_NODE]), ()), (), (), None, None, None, 5, float("inf"))
        self._core.confirmed_at = self._core.clock()
        self._changing = threading.Lock()
        for definition, by_key in (configs or {}).items():
            for key, data in by_key.items():
                self.put(definition, key, data)

    def put(self, definition: str, key: str, data: Any) -> int:
        """Creates or replaces a config, as somebody else would do in the cluster. Returns its revision."""
        kind = "config_updated" if (definition, key) in self._core.configs else "config_created"
        now = datetime.now(timezone.utc).isoformat()
        return self._change(kind, definition, key, data=to_data(data), created_at=now, modified_at=now)

    def delete(self, definition: str, key: str) -> int:
        """Deletes a config."""
        return self._change("config_deleted", definition, key)

    def set_connected(self, is_connected: bool) -> None:
        """Whether nodes confirm the values. If not, they are of the source `cache`, and are not fresh."""
        self._core.error = None if is_connected else "no node answers"

    def wait_revision(self, revision: int, timeout: float) -> bool:
        """Whether the cache has everything up to a revision; it never waits."""
        return self._core.revision >= revision

    def start(self) -> MemoryCache:
        """As a cache of a client has it; there is nothing to start."""
        return self

    def close(self) -> None:
        """As a cache of a client has it; there is nothing to end."""

    def __enter__(self) -> MemoryCache:
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.close()

    def _change(self, kind: str, definition: str, key: str, **more: Any) -> int:
        with self._changing:
            revision = self._core.revision + 1
            change = {"type": kind, "config_definition_key": definition, "config_key": key, **more}
            now = datetime.now(timezone.utc).isoformat()
            told = {"revision": revision, "at": now, "by": "test", "reason": None, "changes": [change]}
            self._core._apply(records.event(told, _NODE))
            return revision


@dataclass(frozen=True)
class Node:
    """A node that runs."""

    urls: Tuple[str, ...]
    key: str
    """An access key that may do everything."""

    def client(self, **arguments: Any) -> Client:
        """A client for threads."""
        return Client(self.urls, self.key, **arguments)

    def async_client(self, **arguments: Any) -> AsyncClient:
        """A client for asyncio."""
        return AsyncClient(self.urls, self.key, **arguments)

    @property
    def environment(self) -> Dict[str, str]:
        """The variables by which `Client.from_env` and the command line find it."""
        return {"CONCORD_URL": ",".join(self.urls), "CONCORD_API_KEY": self.key}


@contextlib.contextmanager
def node(binary: Optional[str] = None) -> Iterator[Node]:
    """A node without data, for as long as the `with` takes; it ends with this process, too.

    `binary` is the program `concord`, by default that of CONCORD_BIN or of the PATH. Raises `RuntimeError` when the
    node does not start.
    """
    process, told = _started(binary or os.environ.get("CONCORD_BIN") or "concord")
    try:
        yield Node(tuple(told["urls"]), told["key"])
    finally:
        _end(process)


def _started(binary: str) -> Tuple[subprocess.Popen[bytes], Any]:
    for _ in range(_START_TRIES):
        # Other tests look for ports at the same time.
        port = str(random.randrange(20_000, 60_000))
        command = [binary, "demo", "--nodes", "1", "--no-sample", "--output", "json", "--port", port]
        # The caller names the program.
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # noqa: S603
        line = process.stdout.readline() if process.stdout else b""
        if line:
            return process, json.loads(line)
        _end(process)
    raise RuntimeError(f"`{binary} demo` does not start: it said why to stderr")


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()
