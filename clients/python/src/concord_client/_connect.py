"""What a client is told about the cluster, and the one translation between requests of flows and httpx."""

from __future__ import annotations

import os
import ssl
import threading
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

import httpx

from ._flow import Failure, Request, Send
from ._reader import Host, labels_of
from ._version import __version__

Nodes = Union[str, Sequence[str]]
KEEPALIVE_S = 20.0
"""How long an idle connection is kept: less than a node keeps it, so that no request meets its end."""
_HEADERS = [
    (b"accept-encoding", b"gzip, deflate"),
    (b"user-agent", f"concord-client-python/{__version__}".encode()),
]
_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol, httpx.ProxyError)


@dataclass(frozen=True)
class Settings:
    """How the cluster is reached. Nothing of it is sent but the key."""

    nodes: Tuple[str, ...]
    credential: Credential
    connect_timeout_s: float
    tls: Union[ssl.SSLContext, bool]

    @classmethod
    def of(
        cls,
        nodes: Nodes,
        key: Tuple[Optional[str], Optional[str]],
        tls_files: Tuple[Optional[str], Optional[str], Optional[str], Optional[ssl.SSLContext]],
        connect_timeout_s: float,
    ) -> Settings:
        urls = tuple(_urls(nodes))
        ca_file, cert_file, cert_key_file, ssl_context = tls_files
        tls: Union[ssl.SSLContext, bool] = ssl_context or False
        if ssl_context is None and any(url.startswith("https:") for url in urls):
            tls = ssl.create_default_context(cafile=ca_file)
            if cert_file is not None:
                tls.load_cert_chain(cert_file, cert_key_file)
        return cls(urls, Credential(*key), connect_timeout_s, tls)

    def transport_arguments(self) -> Dict[str, Any]:
        """The arguments of a transport of httpx: a pool of connections.

        The environment is not trusted: neither a proxy nor a .netrc of somebody else gets the requests or their key. A
        transport by itself follows no redirect, and logs no line for each request.
        """
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=100, keepalive_expiry=KEEPALIVE_S)
        return {"verify": self.tls, "trust_env": False, "limits": limits}

    def request(self, send: Send) -> httpx.Request:
        timeout = httpx.Timeout(send.silence_s, connect=min(self.connect_timeout_s, send.silence_s))
        return httpx.Request(
            send.request.method,
            send.node + send.request.target,
            headers=[*_HEADERS, *self.headers(send.request)],
            content=send.request.body,
            extensions={"timeout": timeout.as_dict()},
        )

    def headers(self, request: Request) -> List[Tuple[bytes, bytes]]:
        sent = [(name.encode(), value) for name, value in request.headers]
        return [*sent, (b"authorization", b"Bearer " + self.credential.key())]


def arguments_of_environment(environment: Mapping[str, str]) -> Dict[str, Any]:
    """The arguments of a client, by the variables that the command line has as well."""
    found = {
        "nodes": environment.get("CONCORD_URL", "http://127.0.0.1:8101"),
        "key": environment.get("CONCORD_API_KEY") or None,
        "key_file": environment.get("CONCORD_API_KEY_FILE") or None,
        "ca_file": environment.get("CONCORD_CA_FILE") or None,
        "cert_file": environment.get("CONCORD_CLIENT_CERT_FILE") or None,
        "cert_key_file": environment.get("CONCORD_CLIENT_KEY_FILE") or None,
        "environment": environment.get("CONCORD_ENVIRONMENT"),
        "reader": environment.get("CONCORD_READER") or Host.NAME,
        "labels": labels_of(environment.get("CONCORD_LABELS", "")),
    }
    if found["key"] is not None:
        found["key_file"] = None
    return found


def _urls(nodes: Nodes) -> List[str]:
    listed = nodes.split(",") if isinstance(nodes, str) else list(nodes)
    urls = [url.strip().rstrip("/") for url in listed if url.strip()]
    for url in urls:
        parsed = httpx.URL(url)
        if parsed.scheme not in ("http", "https") or not parsed.host or parsed.query or parsed.userinfo:
            # The text may hold a password: it is not shown.
            told = "a URL with a user or a password" if "@" in url else repr(url)
            raise ValueError(f"{told} is not the URL of a node: expected http[s]://host:port")
    if not urls:
        raise ValueError("no URL of a node is given")
    return list(dict.fromkeys(urls))


class Credential:
    """The key: given, or in a file that is read again when it changes, so that a key is rotated without a restart."""

    def __init__(self, key: Optional[str], file: Optional[str]) -> None:
        if (key is None) == (file is None):
            raise ValueError("give either a key or a file that holds it")
        self._file, self._lock = file, threading.Lock()
        self._key = _valid(key) if key is not None else b""
        self._seen: Any = None
        self.key()

    def __repr__(self) -> str:
        return f"<key of {self._file or 'the program'}>"

    def renew_lock(self) -> None:
        """After a fork: a thread that held the lock is not there any more."""
        self._lock = threading.Lock()

    def key(self) -> bytes:
        if self._file is None:
            return self._key
        with self._lock:
            try:
                status = os.stat(self._file)
                seen = (status.st_mtime_ns, status.st_size, status.st_ino)
                if seen != self._seen:
                    with open(self._file, encoding="ascii") as file:
                        # A node's file may have two while the key is changed: the first is the new one.
                        lines = file.read().split()
                    self._key, self._seen = _valid(lines[0] if lines else ""), seen
            except (OSError, ValueError):
                # A file that is being replaced changes nothing.
                if not self._key:
                    raise
            return self._key


def _valid(key: str) -> bytes:
    key = key.strip()
    if not key or any(not 33 <= ord(c) <= 126 for c in key):
        # The text of the key is not shown.
        raise ValueError("the key is empty, or holds characters that no key has")
    return key.encode("ascii")


def failure(error: httpx.HTTPError) -> Failure:
    """What an error of httpx says about the request."""
    text = str(error) or type(error).__name__
    return Failure(f"{type(error).__name__}: {text}" if str(error) else text, not isinstance(error, _NOT_SENT))
