"""The program that makes the calls of `clients/conformance`: with `--asyncio` by the client for asyncio."""

from __future__ import annotations

import sys
import time
from typing import Any, Dict

from both import both
from concord_client import (
    ApiError,
    ConcordError,
    NotCached,
    NotReady,
    PreconditionFailed,
    ProtocolError,
    Unavailable,
    UnknownOutcome,
)
from concord_client._json import dumps, loads

_OPTIONS = ("if_match", "reason", "idempotency_key", "revision", "consistency")
_PATIENCE_S = 40


def made(client: Any, call: Dict[str, Any]) -> Any:
    """What a call results in."""
    do, name, key = call["do"], call.get("definition"), call.get("config")
    options = {option: call[option] for option in _OPTIONS if option in call}
    if do == "get":
        found = client.get(name, key, **options)
        return {"data": found.data, "revision": found.revision}
    if do in ("put", "create", "patch"):
        data = call["patch"] if do == "patch" else call["data"]
        return {"revision": getattr(client, do)(name, key, data, **options).revision}
    if do == "delete":
        client.delete(name, key, **options)
        return {}
    if do == "update":
        return {"revision": client.update(name, key, lambda data: {**data, **call["set"]}).revision}
    if do == "list":
        return [each.key for each in client.list(name, page_size=call["page_size"])]
    if do == "batch":
        return {"revision": client.batch(call["operations"]).revision}
    if do == "request":
        asked = {"idempotency_key": call["idempotency_key"]}
        return client.request(call["method"], call["path"], call.get("body"), **asked).data
    events, found = client.watch(name, from_revision=call["from"]), []
    while len(found) < call["take"]:
        event = next(events)
        for each in event.changes:
            told = {"revision": event.revision, "type": each.type, "config": each.key}
            found.append(told if each.data is None else {**told, "data": each.data})
    events.close()
    return found


class Cached:
    """A cache and its steps."""

    def __init__(self, client: Any, definition: str) -> None:
        self.client, self.definition = client, definition
        self.cache: Any = None

    def step(self, step: Dict[str, Any]) -> Any:
        if step["do"] == "start":
            more = {"file": step["file"]} if "file" in step else {}
            more["start_timeout"] = step["start_timeout_s"]
            cache = self.client.cache(self.definition, poll_s=1, fresh_s=3.0, **more)
            cache.__enter__()
            self.cache = cache
            return {}
        if step["do"] == "stop":
            if self.cache is not None:
                self.cache.__exit__(None, None, None)
                self.cache = None
            return {}
        end = time.monotonic() + _PATIENCE_S
        while True:
            found = self.get(step["config"])
            is_there = all(found.get(name) == step[name] for name in ("data", "is_fresh", "missing") if name in step)
            if step["do"] == "get" or is_there or time.monotonic() > end:
                return found
            self.client.run_for(0.02) if hasattr(self.client, "run_for") else time.sleep(0.02)

    def get(self, key: str) -> Dict[str, Any]:
        assert self.cache is not None
        try:
            value = self.cache.get(self.definition, key)
        except NotCached:
            return {"missing": True}
        found = {"data": value.data, "revision": value.revision, "is_fresh": value.is_fresh}
        return {**found, "source": "file"} if value.source == "file" else found


def outcome(run: Any, *args: Any) -> Dict[str, Any]:
    try:
        return {"value": run(*args)}
    except UnknownOutcome as error:
        return {"error": {"kind": "unknown", "idempotency_key": error.idempotency_key}}
    except ApiError as error:
        if error.node is None:
            return {"error": {"kind": "invalid"}}
        told = {"kind": "rejected", "status": error.status, "code": error.code, "paths": list(error.paths)}
        current = {"current_revision": error.current_revision} if isinstance(error, PreconditionFailed) else {}
        return {"error": {**told, **current}}
    except Unavailable:
        return {"error": {"kind": "unavailable"}}
    except ProtocolError:
        return {"error": {"kind": "protocol"}}
    except NotReady:
        return {"error": {"kind": "not_ready"}}
    except (ConcordError, TypeError, ValueError) as error:
        print(repr(error), file=sys.stderr)
        return {"error": {"kind": "invalid"}}


def main() -> None:
    kind = "asyncio" if "--asyncio" in sys.argv else "threads"
    lines = iter(sys.stdin.readline, "")

    def tell(found: Dict[str, Any]) -> None:
        sys.stdout.write(dumps(found).decode() + "\n")
        sys.stdout.flush()

    line = next(lines, None)
    while line is not None:
        asked = loads(line.encode())
        given, call = asked["client"], asked["call"]
        more = {name: given[name] for name in ("environment", "labels") if name in given}
        more["reader"] = given.get("reader")
        times = {"timeout": float(given["timeout_s"]), "attempt_timeout": float(given["attempt_timeout_s"])}
        for client in both(kind, given["urls"], given["key"], **times, **more):
            if call["do"] != "cache":
                tell(outcome(made, client, call))
                line = next(lines, None)
                continue
            tell({"value": {}})
            cached, line = Cached(client, call["definition"]), next(lines, None)
            while line is not None and "step" in (asked := loads(line.encode())):
                step = asked["step"]
                tell(outcome(cached.step, step))
                line = next(lines, None)
            cached.step({"do": "stop"})


if __name__ == "__main__":
    main()
