"""A config as the settings of a program, by pydantic-settings and by dynaconf."""

from __future__ import annotations

import pathlib
from typing import Any, Dict, List, Optional, Tuple, Type

import pytest

from concord_client import NotCached, NotReady, settings
from concord_client.testing import MemoryCache, node
from nodes import binary

needs_a_node = pytest.mark.skipif(binary() is None, reason="CONCORD_BIN names no binary")
CACHE = MemoryCache({"limits": {"acme": {"plan": "pro", "seats": 3, "hosts": [{"name": "a"}]}}})


def settings_of(
    key: str = "acme", arguments: Optional[Dict[str, Any]] = None, environment: Optional[Dict[str, str]] = None
) -> Any:
    pydantic_settings = pytest.importorskip("pydantic_settings")
    given = {"cache": CACHE} if arguments is None else arguments

    class Settings(pydantic_settings.BaseSettings):  # type: ignore[misc, name-defined]
        plan: str = "free"
        seats: int = 1
        hosts: List[Dict[str, str]] = []  # noqa: RUF012 (a field)

        @classmethod
        def settings_customise_sources(
            cls, settings_cls: Type[Any], init_settings: Any, env_settings: Any, **_: Any
        ) -> Tuple[Any, ...]:
            return init_settings, env_settings, settings.ConcordSource(settings_cls, "limits", key, **given)

    return Settings(**(environment or {}))


def test_pydantic_settings_have_the_members_of_a_config(monkeypatch: pytest.MonkeyPatch) -> None:
    found = settings_of()
    assert (found.plan, found.seats, found.hosts) == ("pro", 3, [{"name": "a"}])
    # What stands before it wins.
    monkeypatch.setenv("SEATS", "5")
    assert settings_of().seats == 5
    assert settings_of(environment={"plan": "own"}).plan == "own"


def test_a_config_that_does_not_exist_is_an_error_unless_it_need_not() -> None:
    with pytest.raises(NotCached):
        settings_of("nobody")
    assert settings_of("nobody", {"cache": CACHE, "required": False}).plan == "free"


@pytest.mark.cluster
@needs_a_node
def test_settings_come_from_a_node_and_then_from_the_file(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dynaconf = pytest.importorskip("dynaconf")
    file = str(tmp_path / "known.json")

    def loaded() -> Any:
        return dynaconf.Dynaconf(
            core_loaders=[],
            loaders=["concord_client.settings"],
            CONCORD_CONFIG="limits/acme",
            CONCORD_FILE=file,
        )

    with node(str(binary())) as started, started.client() as client:
        for name, value in started.environment.items():
            monkeypatch.setenv(name, value)
        client.create_definition("limits")
        client.create("limits", "acme", {"plan": "pro", "seats": 3, "hosts": [{"name": "a"}]})
        found = loaded()
        assert (found.plan, found.SEATS, found.hosts[0].name) == ("pro", 3, "a")
        assert settings_of(arguments={}).seats == 3
    arguments = {"file": file, "start_timeout": 0.5}
    assert settings_of(arguments=arguments).seats == 3
    with pytest.raises(NotReady):
        settings_of(arguments={"start_timeout": 0.5})


def test_dynaconf_without_the_name_of_a_config_says_what_to_set() -> None:
    dynaconf = pytest.importorskip("dynaconf")
    with pytest.raises(ValueError, match="set CONCORD_CONFIG"):
        _ = dynaconf.Dynaconf(core_loaders=[], loaders=["concord_client.settings"]).plan
