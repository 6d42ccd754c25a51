"""Readers and candidates: the cases that all clients share, and what a cache reports, without a network."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import pathlib
import socket
import threading
import time
from typing import Any, Callable, Dict, Iterator, List, Optional

import httpx
import pytest

from both import both, pause
from concord_client import AsyncClient, Client, Host, ModelError, _report
from concord_client._reader import Reader, is_read_as_reader, variant_of

CASES: Dict[str, Any] = json.loads((pathlib.Path(__file__).resolve().parents[2] / "cases.json").read_text())["readers"]
AT = "2026-11-29T07:00:00Z"
FOUND = {"config_key": "acme", "data": {"n": 1}, "created_at": AT, "modified_at": AT}


def ok(data: Any, **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.Response(200, json={"status": "SUCCESS", "data": data}, headers=named)


class Node(httpx.BaseTransport, httpx.AsyncBaseTransport):
    """A node with one config, that is a candidate for readers, and that takes reports."""

    def __init__(self, data: Any) -> None:
        self.lock = threading.Lock()
        self.data, self.variant, self.revision = data, "change-1", 5
        self.events: List[Dict[str, Any]] = []
        self.requests: List[httpx.Request] = []
        self.reports: List[Dict[str, Any]] = []
        self.may_report = True
        self.is_proven = False
        self.takes_reports = threading.Event()
        """Set: it answers reports; otherwise they hang, and nothing else does."""
        self.takes_reports.set()
        self.hanging = self.hanging_most = 0

    def hang(self, count: int) -> None:
        with self.lock:
            self.hanging += count
            self.hanging_most = max(self.hanging, self.hanging_most)

    def put(self, data: Any, variant: Optional[str]) -> None:
        with self.lock:
            self.revision += 1
            named = {"variant": {"change_id": variant}} if variant else {}
            change = {"type": "config_updated", "config_definition_key": "limits", **FOUND, "data": data, "revision": 3}
            if self.is_proven:
                change["revision"] = self.revision
            made = {"revision": self.revision, "at": AT, "by": "root", "reason": None, "changes": [{**change, **named}]}
            self.events.append(made)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/report"):
            self.hang(1)
            self.takes_reports.wait(60)
            self.hang(-1)
        with self.lock:
            self.requests.append(request)
            return self.answer(request)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        # The loop goes on, as while a node answers.
        await asyncio.sleep(0)
        if request.url.path.endswith("/report"):
            self.hang(1)
            while not self.takes_reports.is_set():  # noqa: ASYNC110 (the event is for threads too)
                await asyncio.sleep(0.01)
            self.hang(-1)
        return self.handle_request(request)

    def answer(self, request: httpx.Request) -> httpx.Response:
        path, query = request.url.path, request.url.params
        is_reader = "x-concord-reader" in request.headers
        if path.endswith("/report"):
            self.reports.append({"path": path, **json.loads(request.content)})
            told = {"type": "forbidden_error", "code": "forbidden", "msg": "needs report", "loc": []}
            refused = httpx.Response(403, json={"status": "FAILURE", "errors": [told]})
            return ok({}) if self.may_report else refused
        if path.endswith("/watch"):
            config = {"config_definition_key": "limits", **FOUND, "data": self.data, "revision": 3}
            if is_reader and not self.is_proven:
                config["variant"] = {"change_id": self.variant}
            state = {"revision": self.revision, "definitions": [], "configs": [config], "complete": True}
            text = f"event: state\nid: {self.revision}\ndata: {json.dumps(state)}\n\n"
            return httpx.Response(200, text=text, headers={"content-type": "text/event-stream"})
        if path.endswith("/changes"):
            since = int(query.get("from", self.revision + 1))
            events = [each for each in self.events if each["revision"] >= since]
            headers = {"x-concord-next-from": str(self.revision + 1), "x-concord-revision": str(self.revision)}
            if not events:
                time.sleep(0.01)
                return httpx.Response(304, headers=headers)
            return httpx.Response(200, json={"status": "SUCCESS", "data": {"events": events}}, headers=headers)
        if request.method == "PUT":
            return ok({"n": 2}, etag='"8"')
        if is_reader:
            named = {"etag": '"change-1"', "x_concord_variant": "candidate; change=change-1"}
            return ok({**FOUND, "data": {"n": 9}}, **named)
        return ok(FOUND, etag='"7"')


@pytest.fixture
def node() -> Node:
    return Node({"n": 1})


@pytest.fixture(params=["threads", "asyncio"])
def client(request: pytest.FixtureRequest, node: Node) -> Iterator[Any]:
    yield from both(request.param, "http://a", "k", transport=node, timeout=2.0, reader="h", labels={"ring": "canary"})


def until(client: Any, condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        pause(client, 0.01)


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_a_reader_is_a_name_or_the_client_is_not_made(kind: Any) -> None:
    assert kind("http://a", "k").reader == socket.gethostname()
    assert kind("http://a", "k", reader=Host.NAME).reader == socket.gethostname()
    assert kind("http://a", "k", reader=None).reader is None
    for case in CASES["refused"]:
        with pytest.raises(ValueError, match=r"reader|label"):
            kind("http://a", "k", reader=case["reader"], labels=case.get("labels"))


def test_a_host_name_that_can_not_be_sent_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "höst")
    assert Client("http://a", "k").reader is None
    with pytest.raises(ValueError, match="give its name too"):
        Client("http://a", "k", labels={"ring": "canary"})


def test_the_variables_name_the_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONCORD_API_KEY", "k")
    assert Client.from_env().reader == socket.gethostname()
    monkeypatch.setenv("CONCORD_READER", "pod-7")
    monkeypatch.setenv("CONCORD_LABELS", "ring=canary, region=eu")
    client = Client.from_env()
    assert client.reader == "pod-7"
    assert client._reader is not None
    assert client._reader.labels == {"ring": "canary", "region": "eu"}
    for text in ("ring", "ring=a,ring=b", "ring="):
        monkeypatch.setenv("CONCORD_LABELS", text)
        with pytest.raises(ValueError, match="label"):
            Client.from_env()


def test_a_reader_is_sent_as_it_is(node: Node) -> None:
    for case in CASES["sent"]:
        reader = Reader.of(case["reader"], case.get("labels"))
        with Client("http://a", "k", transport=node, reader=case["reader"], labels=case.get("labels")) as client:
            assert (client.reader is None) == (reader is None)
            client.get("limits", "acme")
        headers = node.requests[-1].headers
        assert headers.get("x-concord-reader") == case.get("reader_header")
        assert headers.get("x-concord-labels") == case.get("labels_header")


@pytest.mark.parametrize("case", CASES["requests"], ids=lambda case: f"{case['method']} {case['path']}")
def test_what_follows_configs_has_the_reader(case: Dict[str, Any]) -> None:
    assert is_read_as_reader(case["method"], case["path"]) == case["is_sent"]


def test_a_candidate_is_known_by_its_change() -> None:
    for case in CASES["variants"]:
        assert variant_of(case["header"]) == case["change"]
    assert variant_of(None) is None


def test_a_candidate_has_no_revision_and_an_update_rests_on_what_is_proven(client: Any, node: Node) -> None:
    found = client.get("limits", "acme")
    assert (found.variant, found.revision, found.data) == ("change-1", 0, {"n": 9})
    client.get_if_changed(found)
    assert "if-none-match" not in node.requests[-1].headers, "the tag of a candidate names its edition"
    client.update("limits", "acme", lambda data: {"n": data["n"] + 1})
    assert node.requests[-1].headers["if-match"] == '"7"'
    assert json.loads(node.requests[-1].content) == {"data": {"n": 2}}


@dataclasses.dataclass
class Limits:
    n: int


def hurried(cache: Any) -> Any:
    """A cache whose reports are not waited for."""
    core = getattr(cache, "_target", cache)._core
    core.reports.every_s, core.reports.first_within_s = 0.02, 0.0
    return cache


def test_a_candidate_is_reported_healthy_until_the_model_refuses_it(
    client: Any, node: Node, tmp_path: pathlib.Path
) -> None:
    path = tmp_path / "cache.json"
    with hurried(client.cache("limits", file=str(path), poll_s=0)) as cache:
        limits = cache.typed("limits", Limits)
        assert limits.get("acme") == Limits(1)
        assert (cache.get("limits", "acme").variant, cache.get("limits", "acme").revision) == ("change-1", 0)
        until(client, lambda: len(node.reports) > 1)
        labels = {"ring": "canary"}
        told = {"path": "/api/v1/change_request/change-1/report", "reader": "h", "labels": labels, "state": "healthy"}
        instance = node.reports[0].pop("instance")
        assert len(instance) == 16
        assert node.reports[0] == told
        assert node.reports[1]["instance"] == instance
        node.put({"n": "s3cret"}, "change-1")
        until(client, lambda: node.reports[-1]["state"] == "failed")
        assert "limits/acme does not fit Limits at /n" in node.reports[-1]["detail"]
        assert "s3cret" not in node.reports[-1]["detail"]
        assert limits.get("acme") == Limits(1)
        until(client, lambda: path.exists() and '"variant":"change-1"' in path.read_text())
        # The rollout is taken back: the config has an earlier revision than what came before.
        node.put({"n": 0}, None)
        until(client, lambda: bool(limits.get("acme") == Limits(0)))
        assert (cache.get("limits", "acme").variant, cache.get("limits", "acme").revision) == (None, 3)
        count = len(node.reports)
        pause(client, 0.1)
        assert len(node.reports) == count


def test_a_config_that_a_model_refuses_is_reported_outside_rollouts_until_it_does_not(client: Any, node: Node) -> None:
    node.is_proven = True
    with hurried(client.cache("limits", poll_s=0)) as cache:
        limits = cache.typed("limits", Limits)
        assert limits.get("acme") == Limits(1)
        pause(client, 0.1)
        assert node.reports == [], "what runs well is silent"
        node.put({"n": "s3cret"}, None)
        until(client, lambda: len(node.reports) > 1)
        told = node.reports[1]
        assert told["path"] == "/api/v1/config_definition/limits/config/acme/report"
        assert (told["state"], told["revision"]) == ("failed", 6)
        assert "limits/acme does not fit Limits at /n" in told["detail"]
        assert "s3cret" not in told["detail"]
        node.put({"n": 2}, None)
        until(client, lambda: node.reports[-1]["state"] == "healthy")
        count = len(node.reports)
        pause(client, 0.1)
        assert len(node.reports) == count


def test_a_refused_report_of_a_config_stops_them_for_a_while(
    client: Any, node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    node.is_proven, node.may_report = True, False
    with caplog.at_level(logging.WARNING, logger="concord_client"), hurried(client.cache("limits", poll_s=0)) as cache:
        limits = cache.typed("limits", Limits)
        assert limits.get("acme") == Limits(1)
        node.put({"n": "s3cret"}, None)
        until(client, lambda: "nothing is reported of the configs of limits" in caplog.text)
        pause(client, 0.1)
        assert len(node.reports) == 1
        assert limits.get("acme") == Limits(1)
    assert caplog.text.count("nothing is reported") == 1


def test_a_key_that_may_not_report_is_told_so_once(client: Any, node: Node, caplog: pytest.LogCaptureFixture) -> None:
    node.may_report = False
    with caplog.at_level(logging.WARNING, logger="concord_client"), hurried(client.cache("limits", poll_s=0)):
        until(client, lambda: "nothing is reported" in caplog.text)
        pause(client, 0.1)
    assert len(node.reports) == 1
    assert caplog.text.count("nothing is reported") == 1


def test_a_filter_and_no_reader_follow_what_is_proven(node: Node) -> None:
    for reader, filters in (("h", {"n": 1}), (None, None)):
        client = Client("http://a", "k", transport=node, reader=reader)
        with client, client.cache("limits", filters=filters, poll_s=0) as cache:
            assert cache.get("limits", "acme").variant is None
    assert node.reports == []


def test_a_report_that_hangs_delays_no_change_and_ends_with_the_cache(client: Any, node: Node) -> None:
    node.is_proven = True
    node.takes_reports.clear()
    try:
        with hurried(client.cache("limits", poll_s=0)) as cache:
            limits = cache.typed("limits", Limits)
            assert limits.get("acme") == Limits(1)
            node.put({"n": "s3cret"}, None)
            until(client, lambda: node.hanging == 1)
            for n in range(2, 12):
                node.put({"n": n}, None)
                until(client, lambda n=n: bool(limits.get("acme") == Limits(n)))  # type: ignore[misc]
            assert (node.hanging, node.hanging_most) == (1, 1), "one at a time, and it still hangs"
            assert cache.status.source == "live"
    finally:
        node.takes_reports.set()
    until(client, lambda: all(each.name != "concord-reports" for each in threading.enumerate()))
    count = len(node.reports)
    pause(client, 0.1)
    assert len(node.reports) == count, "it ends with the cache"


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise ValueError("s3cret")


class Misplaced(ModelError):
    paths = (3, None)  # type: ignore[assignment]

    def __str__(self) -> str:
        raise ValueError("s3cret")


class Panic(BaseException):
    """As those of extensions in Rust."""


RAISED = [Unspeakable(), Misplaced(), Panic("s3cret"), SystemExit(1)]


@pytest.mark.parametrize("is_proven", [True, False])
@pytest.mark.parametrize("raised", RAISED, ids=lambda raised: type(raised).__name__)
def test_whatever_a_model_raises_is_reported_and_ends_nothing(
    client: Any, node: Node, is_proven: bool, raised: BaseException
) -> None:
    @dataclasses.dataclass
    class Fragile:
        n: int

        def __post_init__(self) -> None:
            if self.n == 4711:
                raise raised

    node.is_proven = is_proven
    variant = None if is_proven else "change-1"
    with hurried(client.cache("limits", poll_s=0)) as cache:
        limits = cache.typed("limits", Fragile)
        assert limits.get("acme").n == 1
        node.put({"n": 4711}, variant)
        until(client, lambda: bool(node.reports) and node.reports[-1]["state"] == "failed")
        assert "limits/acme does not fit" in node.reports[-1]["detail"]
        assert "s3cret" not in node.reports[-1]["detail"]
        assert limits.get("acme").n == 1
        node.put({"n": 2}, variant)
        until(client, lambda: bool(limits.get("acme").n == 2))
        until(client, lambda: node.reports[-1]["state"] == "healthy")
        assert cache.status.error is None


def test_an_error_inside_a_report_is_told_once_and_ends_nothing(
    client: Any, node: Node, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: List[None] = []

    def broken(core: Any) -> Dict[Any, Any]:
        looks.append(None)
        raise RuntimeError("broken")

    right = _report._of_candidates
    monkeypatch.setattr(_report, "_LOOK_S", 0.01)
    monkeypatch.setattr(_report, "_of_candidates", broken)
    with caplog.at_level(logging.WARNING, logger="concord_client"), hurried(client.cache("limits", poll_s=0)) as cache:
        until(client, lambda: len(looks) > 2)
        assert caplog.text.count("a report met an error") == 1
        node.put({"n": 2}, "change-1")
        until(client, lambda: bool(cache.get("limits", "acme").data["n"] == 2))
        monkeypatch.setattr(_report, "_of_candidates", right)
        until(client, lambda: bool(node.reports))
        assert cache.status.error is None
