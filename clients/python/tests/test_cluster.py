"""Both clients and three real nodes, which are killed and paused."""

from __future__ import annotations

import dataclasses
import itertools
import os
import pathlib
import threading
import time
from typing import Any, Dict, Iterator, List

import pydantic
import pytest

from both import both, pause
from concord_client import (
    Client,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    PreconditionFailed,
    Unauthorized,
    Unavailable,
    op,
)
from nodes import PATIENCE_S, Cluster, binary, cluster, wait_for

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(binary() is None, reason="CONCORD_BIN names no binary"),
]
_NUMBERS = itertools.count()


class Limits(pydantic.BaseModel):
    plan: str = "free"
    seats: int = pydantic.Field(1, ge=1)


@dataclasses.dataclass
class Seats:
    seats: int


@pytest.fixture(scope="module")
def nodes() -> Iterator[Cluster]:
    with cluster() as made:
        yield made


@pytest.fixture(params=["threads", "asyncio"])
def client(request: pytest.FixtureRequest, nodes: Cluster) -> Iterator[Any]:
    yield from both(request.param, nodes.urls, nodes.key, timeout=60.0)


@pytest.fixture
def name(client: Any) -> str:
    """A definition of the test's own."""
    key = f"limits-{next(_NUMBERS)}"
    client.create_definition(key, model=Limits, indexes=["plan", "seats"])
    return key


def test_definitions(client: Any, name: str) -> None:
    found = client.get_definition(name)
    assert (found.indexes, found.json_schema) == (("plan", "seats"), Limits.model_json_schema())
    assert found in list(client.list_definitions(search=name))
    client.set_indexes(name, ["plan"], if_match=found.revision)
    with pytest.raises(PreconditionFailed) as caught:
        client.set_indexes(name, [], if_match=found.revision)
    assert caught.value.current_revision == client.get_definition(name).revision
    assert client.index_progress(name)[0].is_ready
    client.set_unique(name, ["plan"])
    assert client.get_unique(name) == ["plan"]
    client.create(name, "a", {"plan": "x", "seats": 2})
    with pytest.raises(Conflict) as taken:
        client.create(name, "b", {"plan": "x"})
    assert taken.value.code == "unique_taken"
    stricter = {"properties": {"plan": {"type": "string"}, "seats": {"minimum": 5}}}
    report = client.set_schema(name, stricter, dry_run=True)
    assert (report.breaking_count, report.dry_run) == (1, True)
    with pytest.raises(Invalid) as broken:
        client.set_schema(name, stricter)
    assert broken.value.code == "config_breaks_schema"
    assert client.set_schema(name, stricter, force=True).breaking_count == 1
    client.set_unique(name, [])
    ensured = client.ensure_definition(name, model=Limits, indexes=["seats"])
    assert (ensured.indexes, ensured.json_schema) == (("seats",), Limits.model_json_schema())
    before = ensured.revision
    assert client.ensure_definition(name, model=Limits, indexes=["seats"]).revision == before
    assert [each.operation for each in client.definition_history(name)][-1] == "create"
    told = client.create_definition(f"form-{name}", indexes=["fields"]).warnings
    assert [each.split(",")[0] for each in told] == ["an index has the name of a parameter of lists"]
    assert client.set_indexes(f"form-{name}", []).warnings == ()
    with pytest.raises(Conflict):
        client.delete_definition(name, restrict=True)
    client.set_protection(name, True)
    with pytest.raises(Conflict) as protected:
        client.delete_definition(name)
    assert protected.value.code == "definition_protected"
    assert client.get_protection(name)
    client.set_protection(name, False)
    client.delete_definition(name)
    with pytest.raises(NotFound):
        client.get_definition(name)
    kept = next(each for each in client.deleted_definitions() if each.key == name)
    assert (kept.configs > 0, kept.content_bytes > 0, kept.revision > before) == (True, True, True)
    client.undelete_definition(name)
    assert all(each.key != name for each in client.deleted_definitions())
    assert client.get(name, "a").data == {"plan": "x", "seats": 2}
    client.delete_definition(name, purge=True)
    with pytest.raises(NotFound):
        client.undelete_definition(name)


def test_configs(client: Any, name: str) -> None:
    made = client.create(name, "acme", Limits(plan="pro", seats=3), reason="a contract")
    assert made.created
    with pytest.raises(Conflict) as exists:
        client.create(name, "acme", {})
    assert exists.value.code == "config_exists"
    found = client.get(name, "acme")
    assert found.revision == made.revision
    assert found.to(Limits) == Limits(plan="pro", seats=3)
    assert found.to(Seats) == Seats(3)
    assert client.get(name, "acme", fields=["plan"]).data == {"plan": "pro"}
    assert client.get_if_changed(found) is found
    changed = client.put(name, "acme", {"plan": "pro", "seats": 4}, if_match=found.revision)
    assert client.get_if_changed(found).data["seats"] == 4
    with pytest.raises(PreconditionFailed):
        client.put(name, "acme", {"seats": 5}, if_match=found.revision)
    with pytest.raises(PreconditionFailed):
        client.put(name, "acme", {}, create_only=True)
    with pytest.raises(Invalid) as invalid:
        client.patch(name, "acme", {"seats": 0})
    assert (invalid.value.code, invalid.value.paths) == ("data_invalid", ("/data/seats",))
    assert client.patch(name, "acme", {"plan": None}).data == {"seats": 4}
    assert client.patch(name, "acme", [{"op": "replace", "path": "/seats", "value": 9}]).data == {"seats": 9}
    assert client.put(name, "acme", {"seats": 1}, dry_run=True).dry_run
    assert client.get(name, "acme").data == {"seats": 9}
    assert [each.operation for each in client.history(name, "acme", page_size=2)] == ["update"] * 3 + ["create"]
    assert list(client.history(name, "acme"))[-1].reason == "a contract"
    assert client.get(name, "acme", revision=changed.revision).data == {"plan": "pro", "seats": 4}
    client.delete(name, "acme")
    assert client.find(name, "acme") is None
    back = client.rollback(name, "acme", made.revision)
    assert (back.created, back.data) == (True, {"plan": "pro", "seats": 3})
    assert client.upsert(name, "new", {}).created
    assert not client.upsert(name, "new", {"seats": 2}).created
    with pytest.raises(NotFound):
        client.put(name, "absent", {})


def test_one_idempotency_key_is_one_write(client: Any, name: str) -> None:
    first = client.create(name, "a", {}, idempotency_key=f"{name}-one")
    again = client.create(name, "a", {}, idempotency_key=f"{name}-one")
    assert (again.revision, again.created) == (first.revision, True)
    with pytest.raises(Conflict):
        client.create(name, "a", {})


def test_lists(client: Any, name: str) -> None:
    client.batch([op.create(name, f"k{n:02}", {"plan": "abc"[n % 3], "seats": n + 1}) for n in range(25)])
    keys = [each.key for each in client.list(name, sort_by="config_key", page_size=4)]
    assert keys == [f"k{n:02}" for n in range(24, -1, -1)]
    found = list(
        client.list(name, {"plan": ["a", "b"], "seats[gte]": 20}, sort_by="seats", descending=False, page_size=3)
    )
    assert [each.data["seats"] for each in found] == [20, 22, 23, 25]
    assert client.get(name, found[0].key).revision == found[0].revision
    page = client.page(name, {"plan": "a"}, page=2, limit=4, sort_by="config_key", descending=False)
    assert (page.total, [each.key for each in page.items]) == (9, ["k12", "k15", "k18", "k21"])
    past = page.state_revision
    client.delete(name, "k00")
    assert len(list(client.list(name))) == 24
    assert len(list(client.list(name, revision=past, page_size=10))) == 25
    across = list(client.list_across([name[:-1] + "*"], search="k01"))
    assert (name, "k01") in [(each.definition, each.key) for each in across]
    many = client.read_many([(name, "k01"), (name, "k00"), ("absent", "x")])
    assert list(many.found) == [(name, "k01")]
    assert many.missing == {(name, "k00"): "absent", ("absent", "x"): "absent"}
    with pytest.raises(Invalid):
        list(client.list(name, {"owner": "me"}))


def test_a_list_lasts_while_its_node_is_killed(client: Any, name: str, nodes: Cluster) -> None:
    client.batch([op.create(name, f"k{n:02}", {"seats": n + 1}) for n in range(40)])
    listed = client.list(name, sort_by="config_key", descending=False, page_size=5)
    first = next(listed)
    holder = nodes.node_of(first.node)
    nodes.kill(holder)
    try:
        client.put(name, "k39", {"seats": 1000})
        client.create(name, "k385", {})
        rest = list(listed)
    finally:
        nodes.start(holder)
        nodes.wait_ready()
    assert [each.key for each in rest] == [f"k{n:02}" for n in range(1, 40)]
    assert rest[-1].data == {"seats": 40}


def test_transactions_and_updates(client: Any, name: str) -> None:
    client.batch([op.create(name, "a", {"seats": 10}), op.create(name, "b", {"seats": 1})])
    with pytest.raises(NotFound) as absent:
        client.batch([op.put(name, "a", {}), op.delete(name, "absent")])
    assert absent.value.violations[0].loc == ("operations", 1)
    revision = client.get(name, "a").revision
    with pytest.raises(PreconditionFailed):
        client.batch([op.put(name, "a", {}, if_match=revision - 1)])
    client.batch([op.put(name, "a", {"seats": 10}, if_match=revision)])
    done = client.transaction(
        [op.check(name, "a", equals=10, pointer="/seats"), op.check(name, "b", absent=False)],
        then=[op.patch(name, "a", {"seats": 5}), op.patch(name, "b", {"seats": 6})],
        otherwise=[op.get(name, "a")],
    )
    assert done.succeeded
    other = client.transaction([op.check(name, "a", absent=True)], otherwise=[op.get(name, "a")])
    assert not other.succeeded
    assert other.results[0].config.data == {"seats": 5}
    assert client.update(name, "a", lambda data: data.update(seats=data["seats"] + 1)).data == {"seats": 6}


def test_twenty_updates_by_four_threads_are_twenty(nodes: Cluster) -> None:
    with Client(nodes.urls, nodes.key, timeout=60.0) as shared:
        shared.create_definition("counter")
        shared.create("counter", "hits", {"n": 0})

        def count() -> None:
            for _ in range(5):
                shared.update("counter", "hits", lambda data: data.update(n=data["n"] + 1))

        threads = [threading.Thread(target=count) for _ in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert shared.get("counter", "hits").data == {"n": 20}


def test_a_watch_has_every_change_once(client: Any, name: str, nodes: Cluster) -> None:
    begin = client.revision
    watch = client.watch(name, from_revision=begin + 1, prev=True, wait_s=5)
    numbers: List[Any] = []
    for n in range(1, 4):
        client.upsert(name, "a", {"seats": n})
        event = next(watch)
        numbers.append((event.changes[0].prev, event.changes[0].data["seats"]))
    assert numbers == [(None, 1), ({"seats": 1}, 2), ({"seats": 2}, 3)]
    watch.close()
    state = next(client.watch(name, initial=True, filters={"seats[gte]": 3}))
    assert [each.data for each in state.configs] == [{"seats": 3}]
    assert state.definitions[0].key == name
    idle = next(client.watch(name, wait_s=1, idle_events=True))
    assert idle.changes == ()


def test_rights(client: Any, name: str, nodes: Cluster, tmp_path: pathlib.Path) -> None:
    grants = [{"verbs": ["read"], "definitions": [name]}]
    made = client.request("POST", "/api/v1/api_key/", {"name": name, "grants": grants}).data
    file = tmp_path / "key"
    file.write_text("wrong\n")
    with Client(nodes.urls, key_file=str(file)) as other:
        with pytest.raises(Unauthorized):
            other.get(name, "a")
        file.write_text(made["api_key"] + "\n")
        assert other.whoami()["name"] == name
        with pytest.raises(Forbidden) as caught:
            other.create(name, "a", {})
        assert caught.value.code == "forbidden"
        assert [each.key for each in other.list_definitions()] == [name]


def test_a_killed_leader_and_a_paused_node(client: Any, name: str, nodes: Cluster) -> None:
    with client.cache(name) as cache:
        events: List[int] = []
        cache.on_change(lambda what: events.append(what.revision))
        leader = nodes.leader()
        nodes.kill(leader)
        try:
            written = [client.upsert(name, f"k{n}", {"seats": n + 1}).revision for n in range(5)]
            assert cache.wait_revision(written[-1], PATIENCE_S)
            assert [cache.get(name, f"k{n}").revision for n in range(5)] == written
        finally:
            nodes.start(leader)
            nodes.wait_ready()
        leader = nodes.leader()
        nodes.pause(leader)
        try:
            more = [client.upsert(name, f"k{n}", {"seats": n + 100}).revision for n in range(5)]
            assert cache.wait_revision(more[-1], PATIENCE_S)
        finally:
            nodes.resume(leader)
        assert events == written + more
        assert {key: value.data["seats"] for (_, key), value in cache.snapshot(name).items()} == {
            f"k{n}": n + 100 for n in range(5)
        }
    nodes.wait_ready()


def test_all_nodes_killed_and_a_start_from_the_file(
    client: Any, name: str, nodes: Cluster, tmp_path: pathlib.Path
) -> None:
    file = tmp_path / "good.json"
    revision = client.create(name, "acme", {"plan": "pro", "seats": 3}).revision
    with client.cache(name, file=str(file)) as cache:
        typed = cache.typed(name, Limits)
        assert typed["acme"].seats == 3
        for n in nodes.api:
            nodes.kill(n)
        began = time.monotonic()
        while cache.status.source == "live":
            assert time.monotonic() - began < PATIENCE_S
            pause(client, 0.05)
        value = cache.get(name, "acme")
        assert (value.source, value.revision, value.data["seats"]) == ("cache", revision, 3)
        assert value.age_s > 0
        assert typed["acme"] == Limits(plan="pro", seats=3)
    with pytest.raises(Unavailable):
        client.put(name, "acme", {}, timeout=1)
    assert file.stat().st_mode & 0o777 == 0o600
    with client.cache(name, file=str(file), start_timeout=0.5) as cache:
        value = cache.get(name, "acme")
        assert (value.source, value.revision, value.data) == ("file", revision, {"plan": "pro", "seats": 3})
        assert value.age_s > 0
        for n in nodes.api:
            nodes.start(n)
        nodes.wait_ready()
        changed = client.patch(name, "acme", {"seats": 4}).revision
        assert cache.wait_revision(changed, PATIENCE_S)
        assert cache.get(name, "acme").source == "live"


def test_secret_values(client: Any, nodes: Cluster) -> None:
    name = f"database-{next(_NUMBERS)}"
    schema = {"properties": {"host": {"type": "string"}, "password": {"type": "string", "x-concord-secret": True}}}
    client.create_definition(name, schema=schema)
    client.create(name, "main", {"host": "db1", "password": "hunter2"})
    grants = [{"verbs": ["read"], "definitions": [name]}]
    made = client.request("POST", "/api/v1/api_key/", {"name": name, "grants": grants}).data
    with Client(nodes.urls, made["api_key"]) as reader:
        found = reader.get(name, "main")
        assert (found.data, found.redacted) == ({"host": "db1", "password": None}, ("#/password",))
        with reader.cache(name) as cache:
            value = cache.get(name, "main")
            assert (value.data["password"], value.redacted) == (None, ("#/password",))


def test_tls_with_certificates_of_callers() -> None:
    with cluster(with_tls=True) as nodes:
        with Client(nodes.urls, nodes.key, **nodes.tls) as client:  # type: ignore[arg-type]
            client.create_definition("d")
            assert client.create("d", "k", {"n": 1}).created
            with client.cache("d") as cache:
                assert cache.get("d", "k").source == "live"
        arguments: Dict[str, Any] = {"timeout": 1.0}
        with Client(nodes.urls, nodes.key, **arguments) as stranger, pytest.raises(Unavailable, match="CERTIFICATE"):
            stranger.put("d", "k", {})


def test_a_client_by_the_environment(nodes: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in list(os.environ):
        if variable.startswith("CONCORD_") and variable != "CONCORD_BIN":
            monkeypatch.delenv(variable)
    monkeypatch.setenv("CONCORD_URL", ",".join(nodes.urls))
    monkeypatch.setenv("CONCORD_API_KEY", nodes.key)
    with Client.from_env() as client:
        assert client.whoami()["root"]
        wait_for(lambda: client.cluster()["leader_id"], "a leader")
