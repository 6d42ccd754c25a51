"""A config as the settings of a program: a source for pydantic-settings, and a loader for dynaconf.

Both read once, at the start. If no node responds, they read the last-known-good file.

    class Settings(BaseSettings):
        @classmethod
        def settings_customise_sources(cls, settings_cls, init_settings, env_settings, **others):
            return init_settings, env_settings, ConcordSource(settings_cls, "limits", "acme")

For dynaconf, name the module and the config:

    Dynaconf(core_loaders=[], LOADERS_FOR_DYNACONF=["concord_client.settings"], CONCORD_CONFIG="limits/acme")
"""

from __future__ import annotations

import copy
from typing import Any, Dict, Optional, Protocol, Tuple, Type

from ._cache import Value
from ._errors import NotCached
from ._sync import Client

try:
    from pydantic.fields import FieldInfo
    from pydantic_settings import BaseSettings, PydanticBaseSettingsSource
except ImportError:
    FieldInfo = BaseSettings = Any  # type: ignore[assignment,misc]
    PydanticBaseSettingsSource = object  # type: ignore[assignment,misc]


class Cache(Protocol):
    """What is asked for a config: a cache of a client, or a `MemoryCache` of tests."""

    def get(self, definition: str, key: str) -> Value: ...


def data_of(
    definition: str,
    key: str,
    *,
    client: Optional[Client] = None,
    cache: Optional[Cache] = None,
    file: Optional[str] = None,
    start_timeout: float = 10.0,
) -> Dict[str, Any]:
    """The data of a config, as plain Python objects. Raises `NotCached` if there is no such config, and `NotReady` if
    no node responds and there is no file.

    It is read from `cache`, or from a cache of `client` with this `file`; by default of `Client.from_env()`.
    """
    if cache is not None:
        return dict(copy.deepcopy(cache.get(definition, key).data))
    if client is not None:
        with client.cache(definition, configs=[key], file=file, start_timeout=start_timeout) as own:
            return data_of(definition, key, cache=own)
    with Client.from_env() as made:
        return data_of(definition, key, client=made, file=file, start_timeout=start_timeout)


class ConcordSource(PydanticBaseSettingsSource):
    """A source of pydantic-settings: the members of a config are the fields. The arguments are those of `data_of`.

    With `required=False`, a config that does not exist gives no fields.
    """

    def __init__(
        self, settings_cls: Type[BaseSettings], definition: str, key: str, *, required: bool = True, **arguments: Any
    ) -> None:
        super().__init__(settings_cls)
        self._data: Dict[str, Any] = {}
        try:
            self._data = data_of(definition, key, **arguments)
        except NotCached:
            if required:
                raise

    def get_field_value(self, field: FieldInfo, field_name: str) -> Tuple[Any, str, bool]:
        """The value of one field: that of its alias, or of its name."""
        name = field.validation_alias if isinstance(field.validation_alias, str) else field_name
        return self._data.get(name), name, False

    def __call__(self) -> Dict[str, Any]:
        return self._data


def load(obj: Any, env: Optional[str] = None, silent: bool = True, key: Optional[str] = None, **_: Any) -> None:
    """The loader of dynaconf. `CONCORD_CONFIG` is the config, as `definition/key`; `CONCORD_FILE` its last-known-good
    file.

    The members of the config are the settings. Errors are raised, whatever `silent` says: a program must not start
    without its config.
    """
    name = obj.get("CONCORD_CONFIG")
    if not name:
        raise ValueError("set CONCORD_CONFIG to the config to load, as definition/key")
    definition, _, config = name.partition("/")
    data = data_of(definition, config, file=obj.get("CONCORD_FILE"))
    if key is None:
        obj.update(data, loader_identifier="concord", validate=False)
    elif key in data:
        obj.set(key, data[key], loader_identifier="concord", validate=False)
