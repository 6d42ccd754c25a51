"""What a program tests itself with: a cache in memory, and a node of its own."""

from __future__ import annotations

import asyncio
import copy
from dataclasses import dataclass
from typing import Any, List

import pytest
from pydantic import BaseModel

from concord_client import Client, NotCached, NotFound
from concord_client.testing import MemoryCache, node
from nodes import binary


class Limits(BaseModel):
    plan: str
    seats: int = 1


@dataclass
class Quota:
    requests: int


def test_a_memory_cache_is_read_as_a_cache() -> None:
    with MemoryCache({"limits": {"acme": Limits(plan="pro"), "globex": {"plan": "free", "seats": 2}}}) as cache:
        value = cache.get("limits", "acme")
        assert (value.data, value.source, value.is_fresh, value.revision) == (
            {"plan": "pro", "seats": 1},
            "live",
            True,
            1,
        )
        limits = cache.typed("limits", Limits)
        assert (limits["globex"].seats, sorted(limits)) == (2, ["acme", "globex"])
        assert len(cache.snapshot("limits")) == 2
        with pytest.raises(NotCached):
            cache.get("limits", "nobody")
        assert cache.get("limits", "nobody", default={"plan": "free"}).source == "default"


def test_a_test_changes_a_memory_cache() -> None:
    cache, heard = MemoryCache({"quotas": {"acme": Quota(7)}}), []
    cache.on_change(lambda what: heard.append([change.key for change in what.changes]))  # type: ignore[union-attr]
    quotas = cache.typed("quotas", Quota)
    assert quotas["acme"].requests == 7
    revision = cache.put("quotas", "acme", Quota(8))
    assert cache.wait_revision(revision, 0)
    assert quotas["acme"].requests == 8
    # Data that do not fit: the last instance stays, as in a program that runs.
    cache.put("quotas", "acme", {"requests": "many"})
    explained = quotas.explain("acme")
    assert (quotas["acme"].requests, explained.invalid is None) == (8, False)
    cache.delete("quotas", "acme")
    with pytest.raises(NotCached):
        quotas["acme"]
    assert heard == [["acme"]] * 3


def test_a_memory_cache_plays_the_loss_of_its_nodes() -> None:
    cache = MemoryCache({"limits": {"acme": {"plan": "pro"}}})
    cache.set_connected(False)
    value = cache.get("limits", "acme")
    assert (value.source, value.is_fresh, cache.status.error) == ("cache", False, "no node answers")
    cache.set_connected(True)
    assert cache.get("limits", "acme").is_fresh


def test_what_a_program_reads_can_not_change_the_cache() -> None:
    cache = MemoryCache({"limits": {"acme": {"hosts": ["a"]}}})
    data: Any = cache.get("limits", "acme").data
    with pytest.raises((TypeError, AttributeError)):
        data["hosts"].append("b")
    own = copy.deepcopy(data)
    own["hosts"].append("b")
    assert cache.get("limits", "acme").data == {"hosts": ["a"]}


@pytest.mark.cluster
@pytest.mark.skipif(binary() is None, reason="CONCORD_BIN names no binary")
def test_a_node_starts_and_ends_with_its_test(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: List[str] = []
    with node(str(binary())) as started:
        with started.client() as client:
            client.create_definition("limits")
            client.create("limits", "acme", {"plan": "pro"})
            with pytest.raises(NotFound):
                client.get("limits", "nobody")

        async def read() -> Any:
            async with started.async_client() as client:
                return (await client.get("limits", "acme")).data

        assert asyncio.run(read()) == {"plan": "pro"}
        for name, value in started.environment.items():
            monkeypatch.setenv(name, value)
        with Client.from_env() as client:
            seen += [each.key for each in client.list_definitions()]
    assert seen == ["limits"]
    with started.client(timeout=0.5) as client, pytest.raises(Exception, match="no node served"):
        client.get("limits", "acme")


def test_a_node_that_does_not_start_says_so() -> None:
    with pytest.raises(RuntimeError, match="does not start"), node("/bin/false"):
        raise AssertionError("it has started")
