"""The environment of a client: put with a dot before the definition keys of requests, and taken off those of answers.

It is done once, where requests go out and answers come in, so that no request can be forgotten. Without a definition,
lists and watches are of all definitions of the environment. `default` has no prefix. `clients/cases.json` has the
routes with their keys, for all clients.

**Invariants:** a client with an environment reads and writes no definition outside of it. Data, schemas and patches are
never changed.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any, Optional, Sequence

from ._flow import Request
from ._json import dumps, loads

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_~-]{0,63}")
_DEFAULT = "default"
_DEFINITIONS = "/api/v1/config_definition"
_BELOW = _DEFINITIONS + "/"
_KEY = "config_definition_key"
_CHANGE_REQUESTS = "/api/v1/change_request"
_ALL = frozenset(("/api/v1/deleted_definition", "/api/v1/config", "/api/v1/watch", "/api/v1/changes"))
"""What is of all definitions without the parameter `definition`."""
_RESULTS = frozenset(("/api/v1/deleted_definition", "/api/v1/config", "/api/v1/read", "/api/v1/batch"))
_LISTS = {"/api/v1/read": ("configs",), "/api/v1/batch": ("operations", "if", "then", "else")}


class Environment:
    """An environment with a prefix."""

    def __init__(self, name: str) -> None:
        self.name, self.prefix = name, name + "."

    @classmethod
    def of(cls, name: Optional[str]) -> Optional[Environment]:
        """None for no environment, and for `default`, which has no prefix."""
        if name is None:
            return None
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            expected = "1 to 64 characters of A-Z a-z 0-9 _ ~ -, the first a letter or a digit"
            raise ValueError(f"{name!r} is not the name of an environment: expected {expected}")
        return None if name == _DEFAULT else cls(name)

    def enter(self, request: Request) -> Request:
        """The request with the whole keys."""
        body = self._entered_body(request)
        return dataclasses.replace(request, target=self._entered(request.method, request.target), body=body)

    def _entered(self, method: str, target: str) -> str:
        path, mark, query = target.partition("?")
        entered = path
        if path.startswith(_BELOW) and path != _BELOW:
            entered = _BELOW + self.prefix + path[len(_BELOW) :]
        has_all = _is_list_of_all(method, path)
        # The lines of the audit log are of requests, of which many are about no definition.
        if not has_all and not _is_audit(path):
            return entered + mark + query
        pairs = query.split("&") if query else []
        sent = [_prefixed(pair, self.prefix) for pair in pairs]
        if has_all and sent == pairs and not _is_of_change_requests(pairs):
            sent.append(f"definition={self.prefix}*")
        return entered + ("?" + "&".join(sent) if sent else "")

    def _entered_body(self, request: Request) -> Optional[bytes]:
        path = _plain(request.target)
        lists: Optional[Sequence[str]] = _LISTS.get(path) if request.method == "POST" else None
        if request.method in ("POST", "PUT") and path.startswith(_CHANGE_REQUESTS):
            lists = ("operations",)
        is_definition = request.method == "POST" and path == _DEFINITIONS
        if request.body is None or (lists is None and not is_definition):
            return request.body
        try:
            body = loads(request.body)
        except ValueError:
            # For a node to refuse.
            return request.body
        if not isinstance(body, dict):
            return request.body
        if is_definition:
            self._enter_key(body)
        for name in lists or ():
            listed = body.get(name)
            for each in listed if isinstance(listed, list) else ():
                self._enter_key(each)
        return dumps(body)

    def _enter_key(self, value: Any) -> None:
        if isinstance(value, dict) and isinstance(value.get(_KEY), str):
            value[_KEY] = self.prefix + value[_KEY]

    def leave(self, method: str, target: str, data: Any) -> None:
        """Makes the data of an answer those that were asked for. `target` is that of the request as it was made."""
        path = _plain(target)
        if not isinstance(data, dict):
            return
        if path in _RESULTS or (path == _DEFINITIONS and method in ("GET", "HEAD")):
            self._leave_list(data, "results")
        elif path == "/api/v1/changes":
            for event in data.get("events") or ():
                self.leave_event(event)
        # The data of a config's answer are its own, except when it is deleted.
        elif path == _DEFINITIONS or (path.startswith(_BELOW) and (not _is_of_config(path) or method == "DELETE")):
            self._leave_key(data)

    def leave_event(self, event: Any) -> None:
        """The same for an event of a watch."""
        if isinstance(event, dict):
            for name in ("changes", "definitions", "configs"):
                self._leave_list(event, name)

    def _leave_list(self, value: Any, name: str) -> None:
        listed = value.get(name)
        for each in listed if isinstance(listed, list) else ():
            self._leave_key(each)

    def _leave_key(self, value: Any) -> None:
        if isinstance(value, dict) and isinstance(value.get(_KEY), str) and value[_KEY].startswith(self.prefix):
            value[_KEY] = value[_KEY][len(self.prefix) :]

    def left(self, target: str) -> str:
        """The path of a next page, as a program asks for it."""
        path, mark, query = target.partition("?")
        is_list = _is_list_of_all("GET", path) or _is_audit(path)
        if path.startswith(_BELOW + self.prefix):
            path = _BELOW + path[len(_BELOW + self.prefix) :]
        if is_list:
            query = "&".join(_unprefixed(pair, self.prefix) for pair in query.split("&"))
        return path + mark + query


def _is_list_of_all(method: str, path: str) -> bool:
    path = _plain(path)
    return path in _ALL or (path == _DEFINITIONS and method in ("GET", "HEAD"))


def _is_of_change_requests(pairs: Sequence[str]) -> bool:
    """Whether a watch is of change requests, which are of no one definition. Any other value than this one may mean a
    watch of definitions, and of several values the last one counts."""
    flags = [pair for pair in pairs if pair.partition("=")[0] == "change_requests"]
    return bool(flags) and all(pair == "change_requests=true" for pair in flags)


def _is_audit(path: str) -> bool:
    return _plain(path) == "/api/v1/audit"


def _is_of_config(path: str) -> bool:
    return path[len(_BELOW) :].split("/")[1:2] == ["config"]


def _plain(target: str) -> str:
    """The path. Nodes take one with a slash at its end for the same one."""
    path = target.partition("?")[0]
    return path[:-1] if path.endswith("/") else path


def _prefixed(pair: str, prefix: str) -> str:
    name, _, value = pair.partition("=")
    return f"{name}={prefix}{value}" if name == "definition" and value else pair


def _unprefixed(pair: str, prefix: str) -> str:
    name, _, value = pair.partition("=")
    if name == "definition":
        # Nodes encode this one character of names in queries.
        for start in (prefix, prefix.replace("~", "%7E")):
            if value.startswith(start):
                return f"{name}={value[len(start) :]}"
    return pair
