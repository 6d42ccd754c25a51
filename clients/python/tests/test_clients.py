"""Both clients with nodes that a test plays: what is sent, and what a cache makes of the answers."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import http.server
import inspect
import json
import logging
import os
import pathlib
import signal
import threading
import time
from decimal import Decimal
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import httpx
import pytest

from both import Driven, both, pause
from concord_client import (
    AsyncClient,
    Client,
    ConcordError,
    ExactNumber,
    Expired,
    Forbidden,
    Invalid,
    ModelError,
    NotCached,
    NotReady,
    PreconditionFailed,
    ProtocolError,
    Unavailable,
    UnknownOutcome,
    _cache,
    op,
)
from concord_client._operations import Operations

NODES = ["http://a:1", "http://b:2", "http://c:3"]
AT = "2026-11-23T00:00:00.000000Z"
PATIENCE_S = 60


class Play(httpx.BaseTransport, httpx.AsyncBaseTransport):
    """Nodes whose answers a function makes."""

    def __init__(self) -> None:
        self.answer: Callable[[httpx.Request], httpx.Response] = lambda _: httpx.Response(500)
        self.requests: List[httpx.Request] = []
        self.lock = threading.Lock()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        with self.lock:
            self.requests.append(request)
            return self.answer(request)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return self.handle_request(request)


def record(key: str, data: Any, revision: Optional[int] = None) -> Dict[str, Any]:
    made = {"config_key": key, "data": data, "created_at": AT, "modified_at": AT}
    return made if revision is None else {**made, "revision": revision}


def ok(data: Any, status: int = 200, **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.Response(status, json={"status": "SUCCESS", "data": data}, headers=named)


def refused(status: int, code: str, kind: str = "t", **headers: str) -> httpx.Response:
    return httpx.Response(status, json={"errors": [{"type": kind, "code": code, "msg": "m"}]}, headers=headers)


@pytest.fixture
def play() -> Play:
    return Play()


@pytest.fixture(params=["threads", "asyncio"])
def client(request: pytest.FixtureRequest, play: Play) -> Iterator[Any]:
    yield from both(request.param, NODES, "the-key", transport=play, timeout=2.0)


def test_both_clients_have_every_operation_with_the_same_parameters() -> None:
    names = [name for name in vars(Operations) if not name.startswith("_")]
    assert len(names) > 30
    for name in names:
        signatures = [
            list(inspect.signature(getattr(kind, name)).parameters.values())
            for kind in (Operations, Client, AsyncClient)
        ]
        assert signatures[0] == signatures[1] == signatures[2], name
    assert str(inspect.signature(Client.get).return_annotation) == "Config"
    assert str(inspect.signature(Client.list).return_annotation) == "Iterator[Config]"
    assert str(inspect.signature(AsyncClient.list).return_annotation) == "AsyncIterator[Config]"


def test_a_write_says_what_is_meant(client: Any, play: Play) -> None:
    play.answer = lambda _: ok({"n": 1}, 201, etag='"7"', x_concord_revision="9")
    written = client.put("d", "k", {"n": 1}, if_match=6, reason="grün", idempotency_key="i")
    sent = play.requests[0]
    assert (sent.method, sent.url.path, sent.content) == (
        "PUT",
        "/api/v1/config_definition/d/config/k",
        b'{"data":{"n":1}}',
    )
    assert sent.headers["authorization"] == "Bearer the-key"
    assert (sent.headers["if-match"], sent.headers["idempotency-key"]) == ('"6"', "i")
    assert dict(sent.headers.raw)[b"x-change-reason"] == "grün".encode()
    assert (written.revision, written.state_revision, written.created, client.revision) == (7, 9, True, 9)
    client.patch("d", "k", [{"op": "remove", "path": "/n"}])
    client.patch("d", "k", {"n": None})
    kinds = [request.headers["content-type"] for request in play.requests[1:]]
    assert kinds == ["application/json-patch+json", "application/merge-patch+json"]


def test_the_warnings_of_an_answer_are_in_what_each_call_returns(client: Any, play: Play) -> None:
    header = r'299 - "without effect: unknown member `a`, unknown member `b`", 299 - "an index has \"a\" name"'
    told = ("without effect: unknown member `a`, unknown member `b`", 'an index has "a" name')
    definition: Dict[str, Any] = {"config_definition_key": "d", "indexes": [], "json_schema": None}
    body = {**record("k", {}), **definition, "results": [], "meta": {"total": 0}, "revision": 7, "succeeded": True}
    calls: Dict[str, Callable[[], Any]] = {
        "create": lambda: client.create("d", "k", {}),
        "put": lambda: client.put("d", "k", {}),
        "patch": lambda: client.patch("d", "k", {}),
        "update": lambda: client.update("d", "k", lambda data: data),
        "rollback": lambda: client.rollback("d", "k", 3),
        "delete": lambda: client.delete("d", "k"),
        "get": lambda: client.get("d", "k"),
        "page": lambda: client.page("d"),
        "batch": lambda: client.batch([]),
        "transaction": lambda: client.transaction([]),
        "create_definition": lambda: client.create_definition("d"),
        "get_definition": lambda: client.get_definition("d"),
        "set_indexes": lambda: client.set_indexes("d", []),
        "set_schema": lambda: client.set_schema("d", None),
        "set_unique": lambda: client.set_unique("d", []),
        "set_protection": lambda: client.set_protection("d", True),
        "delete_definition": lambda: client.delete_definition("d"),
        "undelete_definition": lambda: client.undelete_definition("d"),
        "request": lambda: client.request("GET", "/api/v1/usage"),
    }
    for name, call in calls.items():
        play.answer = lambda _: ok(body, etag='"7"', warning=header)
        assert call().warnings == told, name
        play.answer = lambda _: ok(body, etag='"7"')
        assert call().warnings == (), name
    play.answer = lambda _: ok(body, etag='"7"', warning="299 of another shape")
    assert client.put("d", "k", {}).warnings == ("299 of another shape",)

    def only_new_indexes(request: httpx.Request) -> httpx.Response:
        return ok(body, etag='"7"', warning=header) if request.method == "PUT" else ok(body, etag='"7"')

    play.answer = only_new_indexes
    assert client.ensure_definition("d", indexes=["a"]).warnings == told


def test_data_that_would_be_changed_are_not_sent(client: Any, play: Play) -> None:
    play.answer = lambda _: ok({}, etag='"7"')
    cases: Dict[str, Callable[[], Any]] = {
        r"^/data/a: .*int 1": lambda: client.put("d", "k", {"a": {1: "x", "1": "y"}}),
        r"^/data: .*NoneType None": lambda: client.create("d", "k", {None: 1}),
        r"^/data/l/0: .*bool True": lambda: client.put("d", "k", {"l": [{True: 1}], "n": Decimal("1e400")}),
        r"^/a: .*float 1.5": lambda: client.patch("d", "k", {"a": {1.5: 1}}),
        r"^/operations/0/data: .*int 7": lambda: client.batch([op.put("d", "k", {7: 1})]),
        r"^/json_schema/properties: .*int 1": lambda: client.set_schema("d", {"properties": {1: {}}}),
        r"^/data/a/0: an instance of object": lambda: client.put("d", "k", {"a": [object()]}),
        r"^/data/a~1b: nan": lambda: client.put("d", "k", {"a/b": float("nan")}),
        r"^/a: .*int 1": lambda: client.request("POST", "/api/v1/x", {"a": {1: 2}}),
    }
    for told, call in cases.items():
        with pytest.raises((TypeError, ValueError), match=told):
            call()
    assert play.requests == []


def test_the_key_goes_to_the_nodes_only(client: Any, play: Play) -> None:
    play.answer = lambda _: httpx.Response(307, headers={"location": "http://evil/"})
    with pytest.raises(Unavailable):
        client.get("d", "k", timeout=0.2)
    following = iter([ok({"results": []}, link='<http://evil/x>; rel="next"')])
    play.answer = lambda _: next(following)
    assert list(client.list("d")) == []
    assert {request.url.host for request in play.requests} <= {"a", "b", "c"}


def test_copies_of_a_write_are_equal(client: Any, play: Play) -> None:
    replies: Iterator[Callable[[], httpx.Response]] = iter([_lost, _lost, lambda: ok({}, etag='"7"')])
    play.answer = lambda _: next(replies)()
    assert client.put("d", "k", {"a": 1}).revision == 7
    first, *others = play.requests
    assert len({request.url.host for request in play.requests}) == 3
    for other in others:
        assert (other.content, other.url.raw_path) == (first.content, first.url.raw_path)
        assert other.headers["idempotency-key"] == first.headers["idempotency-key"]


def _lost() -> httpx.Response:
    raise httpx.ReadError("lost")


def test_an_unknown_outcome_names_its_idempotency_key(client: Any, play: Play) -> None:
    play.answer = lambda _: _lost()
    with pytest.raises(UnknownOutcome) as caught:
        client.delete("d", "k", timeout=0.3)
    assert caught.value.idempotency_key == play.requests[0].headers["idempotency-key"]


def test_an_update_begins_again_when_somebody_else_was_faster(client: Any, play: Play) -> None:
    revision = 5

    def answer(request: httpx.Request) -> httpx.Response:
        nonlocal revision
        if request.method == "GET":
            return ok(record("k", {"n": revision}), etag=f'"{revision}"')
        if request.headers["if-match"] != '"7"':
            revision += 1
            return refused(412, "precondition_failed", etag=f'"{revision}"')
        return ok(json.loads(request.content)["data"], etag='"8"')

    play.answer = answer
    assert client.update("d", "k", lambda data: {"n": data["n"] * 10}).data == {"n": 70}
    revision = 100
    with pytest.raises(PreconditionFailed) as caught:
        client.update("d", "k", lambda data: data, attempts=3)
    assert caught.value.current_revision == 103


def test_a_list_goes_on_when_the_node_that_held_it_is_gone(client: Any, play: Play) -> None:
    keys = [f"k{n}" for n in range(10)]
    asked: List[Dict[str, str]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        query = dict(request.url.params)
        asked.append(query)
        if query.get("cursor") == "2":
            return refused(410, "cursor_expired")
        page = int(query.get("page", query.get("cursor", "1")))
        results = [record(key, {}, 1) for key in keys[(page - 1) * 4 : page * 4]]
        link = f'</x?cursor={page + 1}>; rel="next"' if page < 3 else ""
        return ok({"results": results}, x_concord_revision="50", link=link)

    play.answer = answer
    assert [each.key for each in client.list("d", page_size=4)] == keys
    assert (asked[2]["page"], asked[2]["$revision"]) == ("2", "50")
    play.answer = lambda _: refused(410, "revision_compacted")
    with pytest.raises(Expired):
        list(client.list("d", revision=3))


def change(kind: str, revision: int, key: Optional[str] = None, data: Any = None) -> Dict[str, Any]:
    made: Dict[str, Any] = {"type": kind, "config_definition_key": "d"}
    if key is not None:
        made["config_key"] = key
    if data is not None:
        made.update({"data": data, "created_at": AT, "modified_at": AT})
    return {"revision": revision, "at": AT, "by": "root", "reason": None, "changes": [made]}


class FakeCluster:
    """Answers what a cache asks, from a list of events."""

    def __init__(self, play: Play) -> None:
        self.events: List[Dict[str, Any]] = []
        self.initial: Dict[str, Any] = {"a": {"n": 1}}
        self.more: Dict[str, Any] = {}
        self.revision, self.compacted, self.is_down = 10, 0, False
        self.forbidden = self.has_no_watch = False
        self.cluster = "one"
        self.states = 0
        play.answer = self.answer

    def answer(self, request: httpx.Request) -> httpx.Response:
        if self.is_down:
            raise httpx.ConnectError("refused", request=request)
        if self.forbidden:
            return refused(403, "forbidden")
        query = request.url.params
        head = {"x-concord-revision": str(self.revision), "x-concord-cluster": self.cluster}
        if request.url.path == "/api/v1/watch":
            if self.has_no_watch:
                return refused(503, "unavailable")
            self.states += 1
            configs = [
                {"config_definition_key": "d", **record(key, data, 9), **self.more.get(key, {})}
                for key, data in self.initial.items()
            ]
            parts = [{"revision": self.revision, "definitions": [], "configs": configs, "complete": False}]
            parts.append({"revision": self.revision, "definitions": [], "configs": [], "complete": True})
            text = "retry: 1000\n" + "".join(f"event: state\ndata: {json.dumps(part)}\n\n" for part in parts)
            return httpx.Response(200, content=text, headers=head)
        if request.url.path == "/api/v1/changes":
            # Without `from` it tells the revision of now.
            begin = int(query.get("from", self.revision + 1))
            if begin <= self.compacted:
                return refused(410, "revision_compacted")
            found = [event for event in self.events if event["revision"] >= begin]
            if not found:
                return httpx.Response(304, headers={**head, "x-concord-next-from": str(self.revision + 1)})
            following = str(found[-1]["revision"] + 1)
            return ok({"events": found}, x_concord_next_from=following, x_concord_cluster=self.cluster)
        return ok({"results": []}, x_concord_revision=str(self.revision))

    def add(self, event: Dict[str, Any]) -> None:
        self.revision = event["revision"]
        self.events.append(event)


def until(client: Any, condition: Callable[[], bool]) -> None:
    for _ in range(PATIENCE_S * 100):
        if condition():
            return
        pause(client, 0.01)
    raise AssertionError("not in time")


def test_a_cache_follows_and_says_where_a_value_came_from(client: Any, play: Play) -> None:
    nodes = FakeCluster(play)
    with client.cache("d") as cache:
        value = cache.get("d", "a")
        assert (value.data, value.source, value.revision, value.is_fresh) == ({"n": 1}, "live", 9, True)
        assert value.node in NODES
        heard: List[int] = []
        cache.on_change(lambda what: heard.append(what.revision))
        nodes.add(change("config_updated", 12, "a", {"n": 2}))
        nodes.add(change("config_created", 13, "b", {"n": 3}))
        assert cache.wait_revision(13, PATIENCE_S)
        assert (cache.get("d", "a").data, cache.get("d", "b").revision) == ({"n": 2}, 13)
        assert {key: value.data for key, value in cache.snapshot("d").items()} == {
            ("d", "a"): {"n": 2},
            ("d", "b"): {"n": 3},
        }
        nodes.add(change("config_deleted", 14, "a"))
        assert cache.wait_revision(14, PATIENCE_S)
        with pytest.raises(NotCached) as caught:
            cache.get("d", "a")
        assert caught.value.source == "live"
        missing = cache.get("d", "a", default={"n": 0})
        assert (missing.source, missing.data, missing.is_fresh) == ("default", {"n": 0}, False)
        nodes.add(change("definition_deleted", 15))
        assert cache.wait_revision(15, PATIENCE_S)
        assert cache.snapshot() == {}
        assert heard == [12, 13, 14, 15]
        with pytest.raises(ValueError, match="does not follow"):
            cache.get("other", "a")


def test_a_cache_without_nodes_goes_on_and_is_not_fresh(client: Any, play: Play) -> None:
    nodes = FakeCluster(play)
    with client.cache("d") as cache:
        nodes.is_down = True
        until(client, lambda: cache.status.source == "cache")
        age_s = cache.get("d", "a").age_s
        pause(client, 0.05)
        value = cache.get("d", "a")
        assert (value.data, value.source) == ({"n": 1}, "cache")
        assert value.age_s > age_s
        assert cache.status.error
        nodes.add(change("config_updated", 12, "a", {"n": 2}))
        nodes.is_down = False
        until(client, lambda: cache.get("d", "a").source == "live")
        assert cache.get("d", "a").data == {"n": 2}
        assert cache.status.error is None


def test_a_failure_counts_until_the_next_confirmation(client: Any, play: Play) -> None:
    nodes = FakeCluster(play)
    with client.cache("d", fresh_s=1000) as cache:
        until(client, lambda: cache.status.source == "live")
        nodes.is_down = True
        until(client, lambda: cache.status.source == "cache")
        # The cluster is ahead, and this node has none of its changes.
        ahead = threading.Event()

        def behind(request: httpx.Request) -> httpx.Response:
            head = {"x-concord-revision": "10", "x-concord-cluster": "one"}
            if "from" in request.url.params:
                ahead.set()
                return httpx.Response(304, headers={**head, "x-concord-next-from": "11"})
            return httpx.Response(304, headers={**head, "x-concord-next-from": "100"})

        play.answer = behind
        until(client, ahead.is_set)
        for _ in range(30):
            assert cache.get("d", "a").source == "cache"
            pause(client, 0.02)
        nodes.is_down, play.answer = False, nodes.answer
        until(client, lambda: cache.get("d", "a").source == "live")


def test_a_state_that_always_breaks_off_is_a_problem(client: Any, play: Play) -> None:
    nodes = FakeCluster(play)

    def cut(request: httpx.Request) -> httpx.Response:
        found = nodes.answer(request)
        if request.url.path != "/api/v1/watch":
            return found
        return httpx.Response(200, content=found.content.rpartition(b"event: state")[0], headers=found.headers)

    play.answer = cut
    with pytest.raises(NotReady, match="broke off"):
        client.cache("d", start_timeout=1.0).__enter__()


def test_answers_at_once_without_changes_are_no_storm(client: Any, play: Play) -> None:
    nodes = FakeCluster(play)
    watch = client.watch("d", from_revision=11, wait_s=30, idle_events=True)
    head: Any = {"x_concord_revision": "10", "x_concord_cluster": "one", "x_concord_next_from": "11"}
    play.answer = lambda _: ok({"events": []}, **head)
    began, count = time.monotonic(), 0
    while time.monotonic() - began < 1:
        next(watch)
        count += 1
    watch.close()
    assert count < 10, count
    # The changes after the state are gone each time.
    play.answer, nodes.compacted = nodes.answer, 1000
    watch, states = client.watch("d", initial=True), 0
    began = time.monotonic()
    while time.monotonic() - began < 1:
        next(watch)
        states += 1
    watch.close()
    assert states < 10, states


def test_a_cache_reads_the_state_again_when_changes_are_gone(client: Any, play: Play) -> None:
    nodes = FakeCluster(play)
    with client.cache("d") as cache:
        before = nodes.states
        with play.lock:
            nodes.revision, nodes.compacted, nodes.initial = 90, 80, {"z": {"n": 9}}
        until(client, lambda: ("d", "z") in cache.snapshot())
        assert nodes.states > before
        with pytest.raises(NotCached):
            cache.get("d", "a")


@pytest.mark.parametrize(("cluster", "revision"), [("one", 20), ("two", 50), ("two", 70)])
def test_what_another_cluster_does_not_confirm_is_not_live(
    client: Any, play: Play, cluster: str, revision: int
) -> None:
    nodes = FakeCluster(play)
    nodes.revision = 50
    with client.cache("d", fresh_s=1000) as cache:
        until(client, lambda: cache.status.source == "live")
        with play.lock:
            nodes.cluster, nodes.revision, nodes.initial = cluster, revision, {"a": {"n": 0}}
            nodes.has_no_watch = True
        until(client, lambda: cache.status.source == "cache")
        assert cache.get("d", "a").data == {"n": 1}
        assert "another cluster" in (cache.status.error or "")
        nodes.has_no_watch = False
        until(client, lambda: cache.get("d", "a").data == {"n": 0})
        until(client, lambda: cache.status.source == "live")
        assert cache.status.revision == revision
        nodes.add(change("config_updated", revision + 1, "a", {"n": 3}))
        assert cache.wait_revision(revision + 1, PATIENCE_S)


def test_a_watch_does_not_go_on_in_another_cluster(client: Any, play: Play) -> None:
    nodes = FakeCluster(play)
    watch, anew = client.watch("d", from_revision=11), client.watch("d", initial=True)
    assert next(anew).revision == 10
    nodes.add(change("config_updated", 12, "a", {"n": 2}))
    assert (next(watch).revision, next(anew).revision) == (12, 12)
    nodes.cluster = "two"
    nodes.add(change("config_updated", 13, "a", {"n": 7}))
    with pytest.raises(Expired, match="another cluster"):
        next(watch)
    state = next(anew)
    assert (state.revision, len(state.configs)) == (13, 1)
    anew.close()


def test_a_cache_reads_the_state_again_from_time_to_time(
    client: Any, play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What the rights of the key hide and show is told by no change.
    monkeypatch.setattr(_cache, "_RELIST_S", 0.3)
    nodes = FakeCluster(play)
    with client.cache("d") as cache:
        nodes.initial = {"z": {"n": 9}}
        until(client, lambda: list(cache.snapshot()) == [("d", "z")])


def test_a_long_answer_may_take_longer_than_a_silence(nodes_that_drip: str) -> None:
    with Client(nodes_that_drip, "k", timeout=20.0, attempt_timeout=0.5) as slow:
        assert slow.get("d", "k").data == "x" * 20
    with Client(nodes_that_drip, "k", timeout=0.3, attempt_timeout=0.3) as hasty, pytest.raises(Unavailable):
        hasty.get("d", "k")


@pytest.fixture
def nodes_that_drip() -> Iterator[str]:
    """A node whose answer comes a byte at a time, for a second."""
    body = json.dumps({"data": record("k", "x" * 20)}).encode()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            with contextlib.suppress(OSError):
                for place in range(0, len(body), 10):
                    self.wfile.write(body[place : place + 10])
                    time.sleep(0.1)

        def log_message(self, *_: Any) -> None:
            return

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_cache_whose_right_is_gone_keeps_its_copy_and_is_not_fresh(client: Any, play: Play) -> None:
    nodes = FakeCluster(play)
    with client.cache("d") as cache:
        nodes.forbidden = True
        until(client, lambda: cache.status.source == "cache")
        assert "403" in (cache.status.error or "")
        assert cache.get("d", "a").data == {"n": 1}


def test_a_start_without_nodes_is_from_the_file(client: Any, play: Play, tmp_path: pathlib.Path) -> None:
    nodes, file = FakeCluster(play), str(tmp_path / "good.json")
    with client.cache("d", file=file):
        pass
    nodes.is_down = True
    with client.cache("d", file=file, start_timeout=0.2) as cache:
        value = cache.get("d", "a")
        assert (value.data, value.source, value.revision, value.is_fresh) == ({"n": 1}, "file", 9, False)
        assert value.age_s > 0
        assert value.node in NODES
        nodes.is_down = False
        until(client, lambda: cache.get("d", "a").source == "live")


def test_a_start_without_anything_is_an_error(client: Any, play: Play, tmp_path: pathlib.Path) -> None:
    nodes = FakeCluster(play)
    nodes.is_down = True
    with pytest.raises(NotReady), client.cache("d", start_timeout=0.1):
        pass
    damaged = tmp_path / "bad.json"
    damaged.write_text("{}")
    with pytest.raises(NotReady), client.cache("d", file=str(damaged), start_timeout=0.1):
        pass
    assert damaged.read_text() == "{}"


def test_an_age_is_counted_from_before_the_read_that_confirms(client: Any, play: Play) -> None:
    nodes = FakeCluster(play)
    with client.cache("d", fresh_s=1000) as cache:
        cache_ = cache._target if isinstance(cache, Driven) else cache
        until(client, lambda: cache.status.age_s < 5)
        core = cache_._core
        # The question tells a revision that the copy does not have, and no poll brings it: nothing is confirmed.
        with play.lock:
            confirmed_at = core.confirmed_at
            played = nodes.answer

            def behind(request: httpx.Request) -> httpx.Response:
                if request.url.path == "/api/v1/changes":
                    following = "11" if "from" in request.url.params else "12"
                    return httpx.Response(304, headers={"x-concord-next-from": following})
                return played(request)

            play.answer = behind
        before = len(play.requests)
        until(client, lambda: len(play.requests) > before + 20)
        later = core.confirmed_at
        until(client, lambda: len(play.requests) > before + 40)
        assert core.confirmed_at == later
        assert later - confirmed_at < 5


def test_a_watch_without_a_state_says_that_it_missed_something(client: Any, play: Play) -> None:
    nodes = FakeCluster(play)
    nodes.compacted = 20
    watch = client.watch("d", from_revision=5)
    with pytest.raises(Expired):
        next(watch)
    nodes.forbidden = True
    with pytest.raises(Forbidden):
        next(client.watch("d", from_revision=25))


def test_a_watch_begins_anew_with_the_state(client: Any, play: Play) -> None:
    nodes = FakeCluster(play)
    watch = client.watch("d", initial=True)
    assert next(watch).revision == 10
    nodes.add(change("config_updated", 12, "a", {"n": 2}))
    assert next(watch).changes[0].data == {"n": 2}
    nodes.revision, nodes.compacted, nodes.events = 90, 80, []
    state = next(watch)
    assert (state.revision, [each.key for each in state.configs]) == (90, ["a"])
    watch.close()


def test_a_state_that_broke_off_is_begun_again(client: Any, play: Play) -> None:
    nodes = FakeCluster(play)
    whole, count = nodes.answer, 0

    def cut(request: httpx.Request) -> httpx.Response:
        nonlocal count
        answer = whole(request)
        if request.url.path == "/api/v1/watch":
            count += 1
            if count == 1:
                text = answer.read()
                return httpx.Response(200, content=text[: len(text) // 2])
        return answer

    play.answer = cut
    state = next(client.watch("d", initial=True))
    assert (state.revision, count) == (10, 2)


# --- What one record, one answer or one process must not do to others -----------------------------------------------


@dataclasses.dataclass
class Numbered:
    n: int


def test_data_that_do_not_fit_a_model_leave_its_last_instance(
    client: Any, play: Play, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = FakeCluster(play)
    nodes.initial["never-asked"] = {"n": 5}
    with client.cache("d") as cache:
        typed = cache.typed("d", Numbered)
        assert typed["a"] == Numbered(1)
        nodes.add(change("config_updated", 12, "a", {"m": 2}))
        nodes.add(change("config_updated", 13, "never-asked", {"m": 2}))
        assert cache.wait_revision(13, PATIENCE_S)
        for _ in range(3):
            assert (typed["a"], typed["never-asked"]) == (Numbered(1), Numbered(5))
        kept = typed.explain("a")
        assert (kept.data, kept.revision, kept.source) == ({"n": 1}, 9, "live")
        assert kept.invalid is not None
        assert kept.invalid.paths == ("/n",)
        assert cache.get("d", "a").data == {"m": 2}
        # What makes an instance first says so, and that may be the thread that reports.
        until(client, lambda: len([each for each in caplog.records if "does not fit the model" in each.message]) == 2)
        nodes.add(change("config_updated", 14, "a", {"n": 3}))
        assert cache.wait_revision(14, PATIENCE_S)
        assert (typed["a"], typed.explain("a").invalid, typed.explain("a").revision) == (Numbered(3), None, 14)
        # What is created again has no last instance, and neither has what never fitted.
        nodes.add(change("config_deleted", 15, "a"))
        nodes.add(change("config_created", 16, "a", {"m": 2}))
        assert cache.wait_revision(16, PATIENCE_S)
        with pytest.raises(ModelError):
            typed.get("a")


def test_a_cache_names_secret_values(client: Any, play: Play) -> None:
    nodes = FakeCluster(play)
    nodes.initial, nodes.more = {"a": {"password": None}}, {"a": {"redacted": ["#/password"]}}
    with client.cache("d") as cache:
        assert cache.get("d", "a").redacted == ("#/password",)
        assert cache.snapshot()["d", "a"].redacted == ("#/password",)
        made = change("config_updated", 12, "a", {"token": None, "n": 1})
        made["changes"][0]["redacted"] = ["#/token"]
        nodes.add(made)
        assert cache.wait_revision(12, PATIENCE_S)
        assert cache.get("d", "a").redacted == ("#/token",)


def test_a_first_start_without_nodes_has_defaults(client: Any, play: Play, tmp_path: pathlib.Path) -> None:
    nodes = FakeCluster(play)
    nodes.is_down = True
    file = str(tmp_path / "good.json")
    options: Dict[str, Any] = {"defaults": {"d": {"a": {"n": 7}}}, "file": file, "start_timeout": 0.1}
    with client.cache("d", **options) as cache:
        value = cache.get("d", "a")
        assert (value.data, value.source, value.is_fresh, value.age_s) == ({"n": 7}, "default", False, float("inf"))
        assert cache.typed("d", Numbered)["a"] == Numbered(7)
        assert list(cache.snapshot()) == [("d", "a")]
        assert (cache.status.source, cache.status.configs) == ("default", 1)
        assert "defaults" in (cache.status.error or "") or "ConnectError" in (cache.status.error or "")
        with pytest.raises(NotCached):
            cache.get("d", "b")
        nodes.is_down = False
        until(client, lambda: cache.get("d", "a").source == "live")
        assert cache.get("d", "a").data == {"n": 1}
    nodes.is_down = True
    with client.cache("d", **options) as cache:
        assert (cache.get("d", "a").data, cache.get("d", "a").source) == ({"n": 1}, "file")


def test_a_start_from_the_file_says_so_once(
    client: Any, play: Play, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    nodes, file = FakeCluster(play), str(tmp_path / "good.json")
    with client.cache("d", file=file):
        pass
    # Nodes that take the connection and say nothing are noticed late.
    play.answer = lambda _: time.sleep(0.5) or _lost()  # type: ignore[func-returns-value]
    caplog.clear()
    with client.cache("d", file=file, start_timeout=0.1) as cache:
        assert "no node has answered since the start" in (cache.status.error or "")
        pause(client, 0.3)
    told = [each for each in caplog.records if each.levelno >= logging.WARNING]
    assert len(told) == 1, told
    nodes.is_down = True


def test_a_cache_logs_no_line_for_each_request(client: Any, play: Play, caplog: pytest.LogCaptureFixture) -> None:
    FakeCluster(play)
    with caplog.at_level(logging.INFO), client.cache("d"):
        until(client, lambda: len(play.requests) > 5)
    assert [each.name for each in caplog.records if each.name.startswith("http")] == []


AWKWARD = ["1e1000000000000000000", "-0e99999999999999999999", "9" * 4301]


def test_a_number_that_python_cannot_hold_stops_nobody(client: Any, play: Play) -> None:
    nodes = FakeCluster(play)
    plain = nodes.answer

    def answer(request: httpx.Request) -> httpx.Response:
        made = plain(request)
        # What `json` of Python can't write.
        text = made.read()
        for place, number in enumerate(AWKWARD):
            text = text.replace(f'"number {place}"'.encode(), number.encode())
        headers = {name: value for name, value in made.headers.items() if name != "content-length"}
        return httpx.Response(made.status_code, content=text, headers=headers)

    play.answer = answer
    nodes.initial["x"] = {"n": "number 0"}
    with client.cache("d") as cache:
        assert cache.get("d", "x").data == {"n": ExactNumber(AWKWARD[0])}
        for place in range(len(AWKWARD)):
            nodes.add(change("config_updated", 12 + place, "a", {"n": f"number {place}"}))
        assert cache.wait_revision(14, PATIENCE_S)
        assert str(cache.get("d", "a").data["n"]) == AWKWARD[2]
        assert type(cache.get("d", "a").data["n"]) is Decimal
        nodes.add(change("config_deleted", 15, "x"))
        assert cache.wait_revision(15, PATIENCE_S)
        assert (cache.status.error, cache.status.unreadable) == (None, {})


def test_a_record_that_cannot_be_read_says_nothing_of_others(client: Any, play: Play) -> None:
    nodes = FakeCluster(play)
    nodes.initial["b"], nodes.more["b"] = {"n": 2}, {"created_at": "the first of May"}
    with client.cache("d") as cache:
        assert cache.get("d", "a").data == {"n": 1}
        assert "the first of May" in cache.status.unreadable["d", "b"]
        with pytest.raises(ProtocolError, match="the first of May"):
            cache.get("d", "b")
        broken = change("config_updated", 12, "a", {"n": 7})
        broken["changes"][0]["modified_at"] = "never"
        nodes.add(broken)
        nodes.add(change("config_updated", 13, "b", {"n": 3}))
        assert cache.wait_revision(13, PATIENCE_S)
        assert (cache.get("d", "a").data, cache.get("d", "b").data) == ({"n": 1}, {"n": 3})
        assert list(cache.status.unreadable) == [("d", "a")]
        # There is a newer version: nobody knows how long the old one has not been the newest.
        old, other = cache.get("d", "a"), cache.get("d", "b")
        assert (old.source, old.is_fresh, old.age_s) == ("cache", False, float("inf"))
        assert other.source == "live"
        assert cache.status.error is None
        nodes.add(change("config_deleted", 14, "a"))
        assert cache.wait_revision(14, PATIENCE_S)
        assert cache.status.unreadable == {}


def test_no_error_ends_what_keeps_a_cache(client: Any, play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = FakeCluster(play)
    with client.cache("d") as cache:
        real = _cache.CacheCore._apply

        def failing(*_: Any) -> None:
            raise ZeroDivisionError("nobody expected it")

        monkeypatch.setattr(_cache.CacheCore, "_apply", failing)
        nodes.add(change("config_updated", 12, "a", {"n": 2}))
        until(client, lambda: "nobody expected it" in (cache.status.error or ""))
        nodes.initial = {"a": {"n": 2}}
        monkeypatch.setattr(_cache.CacheCore, "_apply", real)
        until(client, lambda: cache.status.error is None and cache.get("d", "a").data == {"n": 2})


def test_an_answer_of_another_record_is_no_answer(client: Any, play: Play) -> None:
    play.answer = lambda _: ok(record("other", {}), etag='"7"')
    with pytest.raises(ProtocolError, match="'other' where 'k'"):
        client.get("d", "k")
    played = {"config_definition_key": "other", "indexes": [], "created_at": AT, "modified_at": AT}
    play.answer = lambda _: ok(played, etag='"7"')
    with pytest.raises(ProtocolError):
        client.get_definition("d")
    item = {"config_definition_key": "d", "config_key": "x", "status": "absent"}
    play.answer = lambda _: ok({"revision": 7, "results": [item]})
    with pytest.raises(ProtocolError):
        client.read_many([("d", "k")])


def test_what_selects_by_an_empty_list_never_selects_everything(client: Any, play: Play) -> None:
    play.answer = lambda _: ok({"results": []})
    calls: List[Callable[[], Any]] = [
        lambda: list(client.list_across([])),
        lambda: next(client.watch("d", configs=[])),
        lambda: client.cache("d", configs=[]),
        lambda: list(client.list("d", {"n[gte]": []})),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="empty list"):
            call()
    with pytest.raises(TypeError):
        list(client.list("d", {"n": object()}))
    assert play.requests == []
    list(client.list_across("d*"))
    assert play.requests[0].url.params.get_list("definition") == ["d*"]


def test_a_key_that_cannot_be_sent_is_refused_before_anything_is(client: Any, play: Play) -> None:
    for options in ({"reason": "two\nlines"}, {"idempotency_key": "ü"}, {"reason": "\ud800"}):
        with pytest.raises(Invalid):
            client.put("d", "k", {}, **options)
    with pytest.raises(Invalid):
        client.request("POST", "/api/v1/batch", {}, idempotency_key="a b")
    assert play.requests == []


# --- Processes and loops --------------------------------------------------------------------------------------------


class _Mirror(http.server.BaseHTTPRequestHandler):
    """A node that answers with the config of the name that is asked for, on a connection that stays open."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        key = self.path.rpartition("/")[2]
        body = json.dumps({"data": record(key, {"of": key})}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.send_header("etag", '"7"')
        self.end_headers()
        # Long enough that all processes wait for an answer at the same time.
        time.sleep(0.05)
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        return


@pytest.fixture
def mirror() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Mirror)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_has_connections_of_its_own(mirror: str) -> None:
    def read(client: Client, name: str) -> int:
        """How many of the answers are wrong, or none."""
        wrong = 0
        for _ in range(20):
            try:
                wrong += client.get("d", name).data != {"of": name}
            except ConcordError:
                wrong += 1
        return wrong

    with Client(mirror, "k", timeout=10.0) as client:
        client.get("d", "parent")
        children = []
        for number in range(4):
            child = os.fork()
            if child == 0:
                status = 99
                with contextlib.suppress(BaseException):
                    status = read(client, f"child{number}")
                os._exit(status)
            children.append(child)
        mine = read(client, "parent")
        assert (mine, [os.waitpid(child, 0)[1] for child in children]) == (0, [0] * 4)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_cache_of_the_parent_process_is_not_fresh_and_can_be_started(play: Play, tmp_path: pathlib.Path) -> None:
    nodes = FakeCluster(play)
    with Client(NODES, "k", transport=play) as client, client.cache("d", fresh_s=1000) as cache:
        until(client, lambda: cache.status.source == "live")
        told, begun = tmp_path / "told", os.getpid()
        child = os.fork()
        if child == 0:
            with contextlib.suppress(BaseException):
                before = (cache.get("d", "a").source, cache.status.error)
                client._transport, play.lock = play, threading.Lock()
                nodes.initial = {"a": {"n": 2}}
                cache.start()
                until(client, lambda: cache.get("d", "a").source == "live")
                nodes.add(change("config_updated", 12, "b", {"n": 3}))
                assert cache.wait_revision(12, PATIENCE_S)
                client.close()
                told.write_text(json.dumps([*before, cache.get("d", "a").data, os.getpid() != begun]))
            os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(child, 0)
        source, error, data, is_other = json.loads(told.read_text())
        assert (source, data, is_other) == ("cache", {"n": 2}, True)
        assert "forked" in error
        assert cache.get("d", "a").data == {"n": 1}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_given_transport_is_not_used_after_a_fork(play: Play) -> None:
    play.answer = lambda _: ok(record("k", {}), etag='"7"')
    with Client(NODES, "k", transport=play) as client:
        child = os.fork()
        if child == 0:
            try:
                client.get("d", "k")
            except ConcordError as error:
                os._exit(0 if "before a fork" in str(error) else 2)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_client_is_used_in_one_event_loop_after_the_other(mirror: str) -> None:
    import asyncio  # noqa: PLC0415

    client = AsyncClient(mirror, "k", timeout=10.0)

    async def get() -> Tuple[Any, Any]:
        return (await client.get("d", "a")).data, (await client.get("d", "b")).data

    async def last() -> Tuple[Any, Any]:
        found = await get()
        await client.close()
        return found

    for of in (get, get, last):
        assert asyncio.run(of()) == ({"of": "a"}, {"of": "b"})
    gc.collect()
