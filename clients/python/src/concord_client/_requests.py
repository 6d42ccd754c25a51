"""How requests are written: paths, queries, headers."""

from __future__ import annotations

import re
import uuid
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Sequence, Tuple, TypedDict, Union
from urllib.parse import quote

from ._errors import invalid
from ._flow import Request, Sink
from ._json import dumps

if TYPE_CHECKING:
    from typing_extensions import Literal

    Consistency = Literal["linearizable", "lease", "local"]

ROOT = "/api/v1"
_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.~-]{0,254}")
_PARAMETERS_OF_LISTS = frozenset(
    ("page", "limit", "sort_by", "sort_order", "search", "consistency", "max_staleness_ms", "min_revision", "cursor")
).union(("include", "fields", "revision", "pretty", "upsert", "definition", "from", "initial", "prev", "wait"))

Filters = Mapping[str, Any]
Params = List[Tuple[str, str]]


class WriteOptions(TypedDict, total=False):
    """What every write takes."""

    reason: str
    """Why the change is made; the history has it."""
    idempotency_key: str
    """Of a call of unknown outcome, to repeat it. Without one each call makes its own."""
    dry_run: bool
    """The answer, and nothing is stored."""
    timeout: float
    """Seconds for the call with all its attempts."""


class ReadOptions(TypedDict, total=False):
    """What every read takes."""

    consistency: Consistency
    max_staleness_ms: int
    min_revision: int
    timeout: float


class NamedOptions(TypedDict, total=False):
    """What a write takes that must not be a dry run, nor the copy of another."""

    reason: str
    timeout: float


def segment(key: str, of: str) -> str:
    """A key as a part of a path.

    What is no key is refused here: `..` or nothing at the end of a path would name another resource.
    """
    if not isinstance(key, str) or not _KEY.fullmatch(key):
        raise invalid("key_invalid", f"{key!r} is no key: expected 1 to 255 characters of A-Z a-z 0-9 _ . ~ -", of)
    return quote(key, safe="")


def definition_path(definition: str, *rest: str) -> str:
    return "/".join([ROOT, "config_definition", segment(definition, "config_definition_key"), *rest])


def config_path(definition: str, key: str, *rest: str) -> str:
    return definition_path(definition, "config", segment(key, "config_key"), *rest)


def target(path: str, params: Sequence[Tuple[str, str]] = ()) -> str:
    query = "&".join(f"{quote(name, safe='$[]')}={quote(value, safe='')}" for name, value in params)
    return f"{path}?{query}" if query else path


def filter_params(filters: Optional[Filters]) -> Params:
    """Filters as parameters: a list of values is any of them, and a path that has the name of a parameter is marked."""
    params: Params = []
    for name, value in (filters or {}).items():
        path = name.partition("[")[0]
        if path in _PARAMETERS_OF_LISTS:
            name = "data." + name
        values = value if isinstance(value, (list, tuple, set, frozenset)) else [value]
        params.extend((name, each if isinstance(each, str) else dumps(each).decode()) for each in values)
    return params


def read_params(options: ReadOptions) -> Params:
    params: Params = []
    for name in ("consistency", "max_staleness_ms", "min_revision"):
        value = options.get(name)
        if value is not None:
            params.append((name, str(value)))
    return params


def checked(options: Mapping[str, Any], kind: Any) -> None:
    """Refuses an option that there is not: a misspelt condition must not be ignored."""
    unknown = sorted(set(options) - set(kind.__annotations__))
    if unknown:
        raise TypeError(f"unexpected keyword argument {unknown[0]!r}")


def read(path: str, params: Sequence[Tuple[str, str]] = (), *, sink: Optional[Sink] = None, **headers: str) -> Request:
    sent = tuple((name.replace("_", "-"), value.encode()) for name, value in headers.items())
    return Request("GET", target(path, params), sent, sink=sink)


def write(
    method: str,
    path: str,
    body: Any = None,
    *,
    options: WriteOptions,
    params: Sequence[Tuple[str, str]] = (),
    if_match: Union[int, str, None] = None,
    create_only: bool = False,
    content_type: str = "application/json",
) -> Request:
    """A write of definitions or configs. Unless it is a dry run it has an idempotency key."""
    checked(options, WriteOptions)
    is_dry = options.get("dry_run", False)
    headers: Dict[str, bytes] = {}
    if body is not None:
        headers["content-type"] = content_type.encode()
    if if_match is not None:
        headers["if-match"] = b"*" if if_match == "*" else f'"{int(if_match)}"'.encode()
    if create_only:
        headers["if-none-match"] = b"*"
    reason = options.get("reason")
    if reason:
        if any(ord(c) < 32 or ord(c) == 127 for c in reason):
            raise invalid("header_invalid", "a reason has no line ends or other control characters", "header")
        headers["x-change-reason"] = reason.encode()
    key = None
    if not is_dry:
        key = options.get("idempotency_key") or uuid.uuid4().hex
        if not 1 <= len(key) <= 255 or any(not 33 <= ord(c) <= 126 for c in key):
            raise invalid("header_invalid", "an idempotency key is 1 to 255 visible ASCII characters", "header")
        headers["idempotency-key"] = key.encode()
    sent = [*params, ("dry_run", "true")] if is_dry else list(params)
    encoded = None if body is None else dumps(body)
    return Request(method, target(path, sent), tuple(headers.items()), encoded, not is_dry, key)
