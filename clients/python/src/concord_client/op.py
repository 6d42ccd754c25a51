"""The operations of batches and the conditions of transactions.

client.batch([op.create("web", "a", {"port": 80}), op.patch("web", "b", {"tls": True})])
client.transaction([op.check("web", "a", revision=7)], then=[op.delete("web", "a")])
"""

from __future__ import annotations

from typing import Any, Dict, Optional, Sequence, Union

from ._keep import stored
from ._models import schema_of, to_data

Operation = Dict[str, Any]
_ABSENT = object()


def _operation(op: str, definition: str, key: Optional[str], **members: Any) -> Operation:
    made: Operation = {"op": op, "config_definition_key": definition}
    if key is not None:
        made["config_key"] = key
    made.update({name: member for name, member in members.items() if member is not _ABSENT})
    return made


def _match(revision: Union[int, str, None]) -> Any:
    # The interface takes a text, as in the header of this name.
    return _ABSENT if revision is None else str(revision)


def create_definition(key: str, *, indexes: Sequence[str] = (), schema: Any = None, model: Any = None) -> Operation:
    if model is not None:
        schema = schema_of(model)
    return _operation(
        "create_definition", key, None, indexes=list(indexes), json_schema=_ABSENT if schema is None else schema
    )


def set_indexes(key: str, indexes: Sequence[str], *, if_match: Optional[int] = None) -> Operation:
    return _operation("set_indexes", key, None, indexes=list(indexes), if_match=_match(if_match))


def delete_definition(key: str, *, restrict: bool = False, if_match: Optional[int] = None) -> Operation:
    mode = "restrict" if restrict else _ABSENT
    return _operation("delete_definition", key, None, mode=mode, if_match=_match(if_match))


def create(definition: str, key: str, data: Any) -> Operation:
    return _operation("create_config", definition, key, data=stored(data))


def put(
    definition: str, key: str, data: Any, *, if_match: Optional[int] = None, create_only: bool = False
) -> Operation:
    """Replaces a config; with `create_only` creates it, if there is none."""
    condition = "*" if create_only else _ABSENT
    return _operation(
        "put_config", definition, key, data=stored(data), if_match=_match(if_match), if_none_match=condition
    )


def patch(definition: str, key: str, change: Any, *, if_match: Optional[int] = None) -> Operation:
    """A dict is a merge patch, a list a JSON patch."""
    return _operation("patch_config", definition, key, patch=to_data(change), if_match=_match(if_match))


def delete(definition: str, key: str, *, if_match: Optional[int] = None) -> Operation:
    return _operation("delete_config", definition, key, if_match=_match(if_match))


def rollback(definition: str, key: str, revision: int, *, if_match: Optional[int] = None) -> Operation:
    return _operation("rollback_config", definition, key, revision=revision, if_match=_match(if_match))


def get(definition: str, key: str) -> Operation:
    """Reads a config as it is before the batch."""
    return _operation("get_config", definition, key)


def check(
    definition: str,
    key: str,
    *,
    revision: Optional[int] = None,
    absent: Optional[bool] = None,
    equals: Any = _ABSENT,
    pointer: Optional[str] = None,
) -> Operation:
    """A condition: give one of `revision`, `absent` and `equals`; the latter two with or without a `pointer`."""
    given = [revision is not None, absent is not None, equals is not _ABSENT]
    if sum(given) != 1:
        raise TypeError("a check says exactly one of revision, absent and equals")
    return _operation(
        "check_config",
        definition,
        key,
        revision=_ABSENT if revision is None else revision,
        absent=_ABSENT if absent is None else absent,
        equals=equals if equals is _ABSENT else to_data(equals),
        pointer=_ABSENT if pointer is None else pointer,
    )
