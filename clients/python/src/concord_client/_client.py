"""What both clients are made of, whoever sends."""

from __future__ import annotations

import os
import ssl
import weakref
from typing import Any, Optional, Sequence, Tuple, TypeVar

from ._cache import CacheCore, Defaults
from ._connect import Nodes, Settings, arguments_of_environment
from ._environment import Environment
from ._flow import Context
from ._following import Following
from ._operations import Operations
from ._reader import Labels, Reader, ReaderName
from ._requests import Filters, names

_CACHE_TIMEOUT_S = 3.0
C = TypeVar("C", bound="ClientBase")
_LIVING: weakref.WeakSet[ClientBase] = weakref.WeakSet()


def _after_fork() -> None:
    for client in list(_LIVING):
        client._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class ClientBase:
    """The settings of a client and the requests that it can make."""

    _settings: Settings
    _environment: Optional[Environment]
    _reader: Optional[Reader]
    _context: Context
    _operations: Operations

    def _set_up(
        self,
        nodes: Nodes,
        key: Tuple[Optional[str], Optional[str]],
        tls: Tuple[Optional[str], Optional[str], Optional[str], Optional[ssl.SSLContext]],
        timeout: float,
        attempt_timeout: float,
        connect_timeout: float,
        environment: Optional[str],
        reader: Tuple[ReaderName, Optional[Labels]],
    ) -> None:
        self._environment = Environment.of(environment)
        self._reader = Reader.of(*reader)
        self._settings = Settings.of(nodes, key, tls, connect_timeout)
        _LIVING.add(self)
        self._context = self._new_context(timeout, attempt_timeout)
        self._operations = Operations(self._context)

    def _new_context(self, timeout: float, attempt_timeout: float) -> Context:
        context = Context(self._settings.nodes, timeout, attempt_timeout)
        context.environment, context.reader = self._environment, self._reader
        # Clients that start together do not all ask the same node.
        context.preferred = int(context.jitter() * len(context.nodes))
        return context

    def _core_of(
        self,
        definitions: Sequence[str],
        configs: Optional[Sequence[str]],
        filters: Optional[Filters],
        file: Optional[str],
        defaults: Optional[Defaults],
        poll_s: int,
        fresh_s: float,
    ) -> CacheCore:
        # Which node a cache asks is its own matter, and it wants to know soon that none answers.
        context = self._new_context(_CACHE_TIMEOUT_S, _CACHE_TIMEOUT_S)
        keys = names(configs, "configs")
        following = Following(context, definitions, keys, filters)
        return CacheCore(following, definitions, keys, filters, file, defaults, poll_s, fresh_s)

    def _after_fork(self) -> None:
        """Leaves everything of the parent process alone: its connections, and the locks of its threads."""
        self._settings.credential.renew_lock()

    @classmethod
    def from_env(cls: type[C], **arguments: Any) -> C:
        """A client by the environment: CONCORD_URL, CONCORD_API_KEY or CONCORD_API_KEY_FILE, CONCORD_CA_FILE,
        CONCORD_CLIENT_CERT_FILE, CONCORD_CLIENT_KEY_FILE, CONCORD_ENVIRONMENT, CONCORD_READER, and CONCORD_LABELS as in
        `ring=canary,region=eu`."""
        return cls(**{**arguments_of_environment(os.environ), **arguments})

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {', '.join(self._settings.nodes)}>"

    @property
    def environment(self) -> Optional[str]:
        """The environment; None where definition keys have no prefix."""
        return self._environment.name if self._environment else None

    @property
    def reader(self) -> Optional[str]:
        """The name of the reader; None where the client sends none."""
        return self._reader.name if self._reader else None

    @property
    def revision(self) -> int:
        """The highest revision that any answer has named: a `min_revision` to read one's own writes for less."""
        return self._context.revision
