"""How requests are written: paths, queries, headers."""

from __future__ import annotations

import re
import uuid
from typing import TYPE_CHECKING, Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, TypedDict, Union
from urllib.parse import quote

from ._errors import invalid
from ._flow import Request, Sink
from ._json import check_names, dumps
from ._models import to_data

if TYPE_CHECKING:
    from typing_extensions import Literal

    Consistency = Literal["linearizable", "lease", "local"]

ROOT = "/api/v1"
_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.~-]{0,254}")
_OPERATOR = re.compile(r"(.*[^\\])\[([a-z]+)\]")
_PARAMETERS_OF_LISTS = frozenset(
    ("page", "limit", "sort_by", "sort_order", "search", "consistency", "max_staleness_ms", "min_revision", "cursor")
).union(("include", "fields", "revision", "pretty", "raw", "upsert", "definition", "from", "initial", "prev", "wait"))

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
    """Filters as parameters: a list of values is any of them, and a path that has the name of a parameter is marked.

    No value is left out: an empty list selects nothing, and what is no value of a filter is an error.
    """
    params: Params = []
    for name, value in (filters or {}).items():
        found = _OPERATOR.fullmatch(name)
        path, operator = (found[1], found[2]) if found else (name, "")
        if path in _PARAMETERS_OF_LISTS:
            name, path = "data." + name, "data." + path
        is_any = operator in ("", "in")
        if not isinstance(value, (list, tuple, set, frozenset)):
            # A text of `[in]` has its values between commas, as in the interface.
            params.append((name, _filter_text(name, value)))
        elif value and is_any:
            # Not `[in]`: there a comma in a text would part it.
            params.extend((path, _filter_text(name, each)) for each in value)
        elif value:
            params.extend((name, _filter_text(name, each)) for each in value)
        elif is_any:
            params += [(path + "[exists]", "true"), (path + "[exists]", "false")]
        else:
            raise ValueError(f"the filter {name!r} has an empty list, which only equality and [in] take")
    return params


def _filter_text(name: str, value: Any) -> str:
    data = to_data(value)
    if isinstance(data, str):
        return data
    try:
        return dumps(data).decode()
    except (TypeError, ValueError) as error:
        raise TypeError(f"the filter {name!r} has no value that JSON can express: {error}") from error


def names(given: Union[str, Iterable[str], None], what: str) -> Sequence[str]:
    """The names that a call selects; none where it does not select by name.

    An empty list would select everything in place of nothing.
    """
    if given is None:
        return ()
    listed = [given] if isinstance(given, str) else list(given)
    if not listed:
        raise ValueError(f"an empty list of {what} selects nothing: leave it out to select all")
    return listed


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
    reason = _header_text("reason", options.get("reason") or "")
    if reason:
        headers["x-change-reason"] = reason
    key = None
    if not is_dry:
        key = options.get("idempotency_key") or uuid.uuid4().hex
        headers["idempotency-key"] = idempotency_header(key)
    sent = [*params, ("dry_run", "true")] if is_dry else list(params)
    check_names(body)
    encoded = None if body is None else dumps(body)
    return Request(method, target(path, sent), tuple(headers.items()), encoded, not is_dry, key)


def _header_text(name: str, text: str) -> bytes:
    """A text as the value of a header. Blanks at its ends are no part of such a value, so they are not sent."""
    text = text.strip(" \t")
    if any((ord(c) < 32 and c != "\t") or ord(c) == 127 for c in text):
        raise invalid("header_invalid", f"a {name} has no line ends or other control characters", "header")
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise invalid("header_invalid", f"a {name} is a text of Unicode: {error}", "header") from None


def idempotency_header(key: str) -> bytes:
    if not 1 <= len(key) <= 255 or any(not 33 <= ord(c) <= 126 for c in key):
        raise invalid("header_invalid", "an idempotency key is 1 to 255 visible ASCII characters", "header")
    return key.encode()
