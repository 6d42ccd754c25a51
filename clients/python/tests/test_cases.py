"""The cases that all clients share, `clients/cases.json`, with real nodes; and connections that go silent."""

from __future__ import annotations

import contextlib
import json
import pathlib
import random
import socket
import threading
import time
from typing import Any, Dict, Iterator, List, Optional, Tuple

import httpx
import pytest

from both import both, pause
from concord_client import ChangeRequired, Client, Invalid, NotReady, op
from concord_client._json import dumps, loads
from nodes import PATIENCE_S, Cluster, binary, cluster

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(binary() is None, reason="CONCORD_BIN names no binary"),
]
CASES = json.loads((pathlib.Path(__file__).resolve().parents[2] / "cases.json").read_text())


@pytest.fixture(scope="module")
def nodes() -> Iterator[Cluster]:
    with cluster() as made:
        yield made


@pytest.fixture(params=["threads", "asyncio"])
def client(request: pytest.FixtureRequest, nodes: Cluster) -> Iterator[Any]:
    yield from both(request.param, nodes.urls, nodes.key, timeout=60.0)


def same(one: Any, other: Any) -> bool:
    """Whether two documents have the same numbers, texts and members."""
    plain = [dumps(each).replace(b"e+", b"e").replace(b"E+", b"e").replace(b"E", b"e") for each in (one, other)]
    return plain[0] == plain[1]


def test_documents_are_read_and_written_back(client: Any, nodes: Cluster, request: pytest.FixtureRequest) -> None:
    name = f"documents-{request.node.callspec.id}"
    client.create_definition(name)
    with client.cache(name, poll_s=1) as cache:
        for place, case in enumerate(CASES["documents"]):
            text = case["text"]
            # As another program stores it.
            stored = httpx.post(
                f"{nodes.urls[0]}/api/v1/config_definition/{name}/config/",
                content=f'{{"config_key":"k{place}","data":{text}}}'.encode(),
                headers={"authorization": nodes.key, "content-type": "application/json"},
                timeout=30,
            )
            assert stored.status_code == 201, (case["name"], stored.text)
            found = client.get(name, f"k{place}")
            assert same(found.data, loads(text)), case["name"]
            assert cache.wait_revision(found.revision, PATIENCE_S), (case["name"], cache.status)
            assert same(cache.get(name, f"k{place}").data, loads(text)), case["name"]
            client.put(name, f"k{place}", found.data, if_match=found.revision)
            again = client.get(name, f"k{place}")
            assert same(again.data, loads(text)), case["name"]
        assert (cache.status.error, cache.status.unreadable) == (None, {})
    assert len(list(client.list(name, page_size=3))) == len(CASES["documents"])
    # A start from the state, and a watch.
    with client.cache(name) as cache:
        assert len(cache.snapshot(name)) == len(CASES["documents"])
    state = next(client.watch(name, initial=True))
    assert (len(state.configs), state.unreadable) == (len(CASES["documents"]), {})


def test_filters_select_what_they_say(client: Any, request: pytest.FixtureRequest) -> None:
    name, cases = f"filters-{request.node.callspec.id}", CASES["filters"]
    client.create_definition(name, indexes=cases["indexes"], schema=cases["schema"])
    configs = {key: loads(text) for key, text in cases["configs"].items()}
    for key, data in configs.items():
        client.create(name, key, data)
    for case in cases["cases"]:
        path, operator = case["path"], case.get("operator")
        if "values_of" in case:
            # Numbers as the client itself returned them.
            value: Any = [client.get(name, key).data[path] for key in case["values_of"]]
        else:
            value = case["values"] if "values" in case else case["value"]
        filters = {f"{path}[{operator}]" if operator else path: value}
        found = sorted(each.key for each in client.list(name, filters))
        assert found == case["selects"], case
        assert client.page(name, filters).total == len(found), case


def _everything(client: Any, name: str, value: str, folder: pathlib.Path) -> Dict[str, Any]:
    """What a program does with a definition, and what it is told."""
    client.create_definition(name, indexes=["v"])
    first = client.create(name, "a", {"v": value})
    client.batch([op.create(name, "b", {"v": value}), op.put(name, "a", {"v": value}, if_match=first.revision)])
    done = client.transaction([op.check(name, "b", absent=False)], then=[op.get(name, "b")])
    client.update(name, "b", lambda data: {**data, "n": 1})
    changes = client.watch(from_revision=first.revision)
    with client.cache(file=str(folder / "cache.json"), poll_s=1) as cache:
        cached = {each.definition: each.data["v"] for each in cache.snapshot().values()}
    told = {
        "definition": client.get_definition(name).key,
        "get": (client.get(name, "a").definition, client.get(name, "a").data),
        "definitions": sorted(each.key for each in client.list_definitions(page_size=1)),
        "list": sorted(each.key for each in client.list(name, {"v": value}, page_size=1)),
        "across": sorted({each.definition for each in client.list_across(page_size=1)}),
        "many": sorted(client.read_many([(name, "a"), (name, "c")]).found),
        "transaction": (done.succeeded, done.results[0].definition, done.results[0].config.data),
        "changes": [(each.definition, each.key) for each in next(changes).changes],
        "state": sorted({each.definition for each in next(client.watch(initial=True)).configs}),
        "history": [each.operation for each in client.history(name, "b")],
        "cached": cached,
    }
    client.delete_definition(name)
    told["deleted"] = sorted(each.key for each in client.deleted_definitions())
    client.undelete_definition(name)
    return told


def test_one_program_runs_in_every_environment(
    nodes: Cluster, request: pytest.FixtureRequest, tmp_path: pathlib.Path
) -> None:
    found = []
    for kind in ("threads", "asyncio"):
        for place, name in enumerate((f"prod-{kind}", f"staging-{kind}")):
            for client in both(kind, nodes.urls, nodes.key, timeout=60.0, environment=name):
                folder = tmp_path / name
                folder.mkdir()
                told = _everything(client, "limits", f"of-{place}", folder)
                found.append(json.dumps(told).replace(f"of-{place}", "of"))
                # Without a node, the file is used in its environment, and in no other.
                file = str(folder / "cache.json")
                alone = Client("http://127.0.0.1:1", "k", environment=name)
                with alone, alone.cache(file=file, start_timeout=0.1) as cache:
                    assert cache.get("limits", "a").data == {"v": f"of-{place}"}
                for other in (None, "other"):
                    alone = Client("http://127.0.0.1:1", "k", environment=other)
                    with alone, pytest.raises(NotReady):
                        alone.cache(file=file, start_timeout=0.1).start()
    assert len(found) == 4
    assert len(set(found)) == 1, found
    told = json.loads(found[0])
    assert told["definitions"] == told["across"] == told["state"] == told["deleted"] == ["limits"]
    assert (told["list"], told["cached"]) == (["a", "b"], {"limits": "of"})
    with Client(nodes.urls, nodes.key) as whole:
        assert whole.get("prod-threads.limits", "a").data == {"v": "of-0"}
        assert whole.get("staging-threads.limits", "a").data == {"v": "of-1"}
        assert whole.find("limits", "a") is None


def test_a_restricted_environment_takes_change_requests(client: Any, request: pytest.FixtureRequest) -> None:
    name = f"restricted-{request.node.callspec.id}"
    client.create_definition(f"{name}.limits")
    client.request("PUT", f"/api/v1/environment/{name}", {"direct": "refuse", "approvals": 0, "freeze": []})
    with pytest.raises(ChangeRequired):
        client.create(f"{name}.limits", "a", {})
    made = client.propose("a limit", [op.create(f"{name}.limits", "a", {"n": 1})], description="for a customer")
    assert (made["phase"], made["config_definition_keys"]) == ("open", [f"{name}.limits"])
    assert client.find(f"{name}.limits", "a") is None
    path = f"/api/v1/change_request/{made['change_id']}/apply"
    client.request("POST", path, {"digest": made["digest"]})
    assert client.get(f"{name}.limits", "a").data == {"n": 1}


def test_reasons_are_as_the_history_has_them(client: Any, request: pytest.FixtureRequest) -> None:
    name = f"reasons-{request.node.callspec.id}"
    client.create_definition(name)
    for case in CASES["reasons"]["cases"]:
        began = time.monotonic()
        if "sent" in case:
            client.upsert(name, "k", {}, reason=case["reason"])
            assert next(client.history(name, "k")).reason == case["sent"], case
            continue
        with pytest.raises(Invalid) as caught:
            client.upsert(name, "k", {}, reason=case["reason"])
        assert caught.value.code == "header_invalid"
        assert time.monotonic() - began < 2


@pytest.mark.parametrize("url", CASES["urls"]["refused"])
def test_urls_that_cannot_be_used_are_refused_and_show_no_password(url: str) -> None:
    with pytest.raises(ValueError) as caught:
        Client(url, "k")
    assert "hunter2" not in str(caught.value)


# --- Secret values --------------------------------------------------------------------------------------------------


def secrets_of(value: Any, hosts: Tuple[str, ...] = ()) -> Dict[str, Tuple[str, ...]]:
    """Each secret value with the names of those that it belongs to."""
    found: Dict[str, Tuple[str, ...]] = {}
    if isinstance(value, dict):
        owner = (*hosts, str(value.get("host") or value.get("login") or ""))
        for member in value.values():
            found.update(secrets_of(member, owner))
    elif isinstance(value, list):
        for element in value:
            found.update(secrets_of(element, hosts))
    elif isinstance(value, str) and value.startswith("secret-"):
        found[value] = hosts
    return found


def edited(dice: random.Random, data: Dict[str, Any]) -> None:
    """One change of what a caller sees: of a text, of an element, of the order. Names are never used twice."""
    databases = data["databases"]
    lists = [databases, *(each["users"] for each in databases if "users" in each)]
    chosen = dice.choice(lists)
    kind = dice.randrange(7)
    fresh = f"{dice.getrandbits(64):x}"
    if kind == 0:
        data["name"] = fresh
    elif kind == 1 and chosen:
        chosen.pop(dice.randrange(len(chosen)))
    elif kind == 2 and len(chosen) < 6:
        made = {"host": f"h{fresh}", "users": []} if chosen is databases else {"login": f"u{fresh}"}
        chosen.insert(dice.randrange(len(chosen) + 1), made)
    elif kind == 3:
        dice.shuffle(chosen)
    elif kind == 4 and len(chosen) > 1:
        chosen.reverse()
    elif kind == 5 and chosen:
        chosen[dice.randrange(len(chosen))]["note"] = fresh
    elif kind == 6 and len(chosen) < 6:
        made = {"host": f"h{fresh}", "users": []} if chosen is databases else {"login": f"u{fresh}"}
        made["token" if chosen is databases else "pin"] = f"secret-{fresh}"
        chosen.append(made)


def test_a_thousand_edits_by_a_key_that_sees_no_secrets(
    client: Any, nodes: Cluster, request: pytest.FixtureRequest
) -> None:
    name, cases = f"secrets-{request.node.callspec.id}", CASES["secrets"]
    client.create_definition(name, schema=cases["schema"])
    client.create(name, "k", cases["data"])
    grants = [{"verbs": ["read", "write"], "definitions": [name]}]
    made = client.request("POST", "/api/v1/api_key/", {"name": name, "grants": grants}).data
    dice = random.Random(7)
    done = refused = 0
    with Client(nodes.urls, made["api_key"], timeout=60.0) as blind:
        before = client.get(name, "k").data
        for turn in range(500):
            if turn % 50 == 0:
                # Begin anew, as the lists run empty.
                client.put(name, "k", cases["data"])
                before = client.get(name, "k").data
            seen: List[Any] = []

            def change(data: Any, seen: List[Any] = seen) -> Any:
                seen.append(json.dumps(data))
                edited(dice, data)
                return data

            try:
                written = blind.update(name, "k", change)
            except Invalid:
                refused += 1
                assert client.get(name, "k").data == before
                continue
            done += 1
            after = client.get(name, "k").data
            old, new = secrets_of(before), secrets_of(after)
            # Nothing was shown, not even what the caller has written itself.
            assert "secret-" not in json.dumps(written.data) + "".join(seen), turn
            for secret, owner in new.items():
                # Nothing has moved to another owner, or is there that nobody wrote.
                assert old.get(secret, owner) == owner, (turn, secret)
            owners = set(_owners(after))
            for secret, owner in old.items():
                # Nothing is lost but with its owner.
                assert secret in new or owner not in owners, (turn, secret)
            before = after
    assert done > 30, (done, refused)
    assert refused > 10, (done, refused)


def _owners(value: Any, hosts: Tuple[str, ...] = ()) -> Iterator[Tuple[str, ...]]:
    if isinstance(value, dict):
        owner = (*hosts, str(value.get("host") or value.get("login") or ""))
        yield owner
        for member in value.values():
            yield from _owners(member, owner)
    elif isinstance(value, list):
        for element in value:
            yield from _owners(element, hosts)


# --- Silence --------------------------------------------------------------------------------------------------------


class Proxy:
    """Passes connections on to a node. While it `holds`, it takes bytes and connections and passes nothing on."""

    def __init__(self, address: str) -> None:
        host, _, port = address.partition(":")
        self.target, self.holds = (host, int(port)), False
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.sockets: List[socket.socket] = [self.listener]
        self.threads: List[threading.Thread] = []
        self._run(self._accept)

    def _run(self, call: Any, *args: Any) -> None:
        thread = threading.Thread(target=call, args=args, daemon=True)
        self.threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self.listener.accept()
                far = socket.create_connection(self.target)
                self.sockets += [near, far]
                self._run(self._pass, near, far)
                self._run(self._pass, far, near)

    def _pass(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                chunk = one.recv(65536)
                if not chunk:
                    break
                if not self.holds:
                    other.sendall(chunk)
            other.shutdown(socket.SHUT_WR)

    def end(self) -> None:
        for each in self.sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self.threads:
            thread.join(10)
        for each in self.sockets:
            each.close()


@pytest.fixture
def proxy(nodes: Cluster) -> Iterator[Proxy]:
    made = Proxy(nodes.api[1])
    yield made
    made.end()


@pytest.mark.parametrize("kind", ["threads", "asyncio"])
def test_a_connection_that_goes_silent_is_left_in_time(nodes: Cluster, proxy: Proxy, kind: str) -> None:
    name = f"silence-{kind}"
    with Client(nodes.urls, nodes.key) as writer:
        writer.create_definition(name)
        made = both(kind, [proxy.url, nodes.url(2)], nodes.key, timeout=60.0, attempt_timeout=1.0)
        client = next(made)
        begin = writer.upsert(name, "k", {"n": 0}).state_revision
        client._context.preferred = 0 if isinstance(client, Client) else client._context.preferred
        watch = client.watch(name, from_revision=begin, wait_s=1)
        assert next(watch).changes[0].data == {"n": 0}
        with client.cache(name, poll_s=1, fresh_s=5.0) as cache:
            proxy.holds = True
            revision = writer.upsert(name, "k", {"n": 1}).revision
            began = time.monotonic()
            assert next(watch).changes[0].data == {"n": 1}
            assert cache.wait_revision(revision, PATIENCE_S)
            assert client.get(name, "k").data == {"n": 1}
            assert client.put(name, "k", {"n": 2}).revision
            assert time.monotonic() - began < 30
            _until_live(client, cache)
            closing = time.monotonic()
        assert time.monotonic() - closing < 5
        watch.close()
        _end(made)


def _until_live(client: Any, cache: Any) -> None:
    end = time.monotonic() + PATIENCE_S
    while cache.status.source != "live" or [each.data for each in cache.snapshot().values()] != [{"n": 2}]:
        assert time.monotonic() < end, cache.status
        pause(client, 0.05)


def _end(made: Optional[Iterator[Any]]) -> None:
    if made is not None:
        for _ in made:
            raise AssertionError("a fixture has one value")
