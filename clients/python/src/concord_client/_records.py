"""What answers hold."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Dict, Generic, List, Mapping, Optional, Sequence, Tuple, Type, TypeVar

from ._flow import Answer
from ._keep import editable
from ._models import from_data
from ._reader import variant_of

M = TypeVar("M")
T = TypeVar("T")


def time_of(text: str) -> datetime:
    # `fromisoformat` knows `Z` from Python 3.11 on.
    return datetime.fromisoformat(text[:-1] + "+00:00" if text.endswith("Z") else text)


@dataclass(frozen=True)
class Config:
    """A config as a node answered it."""

    definition: str
    key: str
    data: Any
    revision: Optional[int]
    """The revision of the config, for `if_match`. None in lists across definitions, which don't have it. 0 for a
    candidate, which has none: no condition holds with it."""
    created_at: datetime
    modified_at: datetime
    node: Optional[str] = None
    """The URL of the node that answered."""
    state_revision: Optional[int] = None
    """The revision of the state that the answer was made from."""
    redacted: Tuple[str, ...] = ()
    """The places of secret values that the key may not see; they are None."""
    warnings: Tuple[str, ...] = ()
    """Parts of the request that had no effect. Empty in lists: a `Page` has them."""
    variant: Optional[str] = None
    """The id of the change request whose candidate it is: what this reader sees before the rollout has ended. None for
    what is proven."""

    def to(self, model: Type[M]) -> M:
        """The data as an instance of a pydantic model or a dataclass. Raises `ModelError` when they don't fit."""
        return from_data(model, self.data)

    def editable(self) -> Any:
        """A copy of the data to change and write back with `put`: a marker keeps each secret value that the key may not
        see. A marker that was moved is refused."""
        return editable(self.data, self.redacted)


@dataclass(frozen=True)
class Definition:
    """A definition."""

    key: str
    indexes: Tuple[str, ...]
    json_schema: Optional[Dict[str, Any]]
    created_at: datetime
    modified_at: datetime
    revision: Optional[int] = None
    warnings: Tuple[str, ...] = ()
    """Parts of the request that had no effect."""


@dataclass(frozen=True)
class Written:
    """What a write of one record has done."""

    revision: Optional[int]
    """The revision that it made. None in a dry run, and after a deletion, which leaves no record."""
    state_revision: Optional[int]
    """A revision at which the write is there: a `min_revision` of later reads."""
    data: Any = None
    """The content as it is stored."""
    created: bool = False
    dry_run: bool = False
    node: Optional[str] = None
    warnings: Tuple[str, ...] = ()
    """Parts of the request that had no effect, or what is missing from the answer."""


@dataclass(frozen=True)
class SchemaChange:
    """What a new schema breaks, or has broken."""

    breaking_count: int
    breaking: Tuple[Mapping[str, Any], ...]
    """The first of the configs that do not fit, with their errors."""
    dry_run: bool
    revision: Optional[int]
    warnings: Tuple[str, ...] = ()
    """Parts of the request that had no effect."""


@dataclass(frozen=True)
class IndexProgress:
    path: str
    is_ready: bool
    done: int
    of: int


@dataclass(frozen=True)
class DeletedDefinition:
    """A deleted definition that is kept, so that its deletion can be undone."""

    key: str
    revision: int
    """The revision that deleted it."""
    at: datetime
    configs: int
    """The configs that return with it."""
    content_bytes: int
    """The bytes of their keys and data."""


def deleted_definition(data: Mapping[str, Any]) -> DeletedDefinition:
    return DeletedDefinition(
        key=data["config_definition_key"],
        revision=data["deleted_revision"],
        at=time_of(data["deleted_at"]),
        configs=data["configs"],
        content_bytes=data["bytes"],
    )


@dataclass(frozen=True)
class Page(Generic[T]):
    """A page of a list."""

    items: Tuple[T, ...]
    page: int
    limit: int
    total: int
    """How many there are on all pages."""
    state_revision: Optional[int] = None
    warnings: Tuple[str, ...] = ()
    """Parts of the request that had no effect."""


@dataclass(frozen=True)
class Past:
    """A change in a history."""

    revision: int
    operation: str
    """`create`, `update` or `delete`."""
    at: datetime
    by: str
    """The id of the key that made it."""
    reason: Optional[str]
    data: Any
    """The content that it left; of a definition its `indexes` and `json_schema`. None for a deletion."""


@dataclass(frozen=True)
class Change:
    """What happened to one record."""

    type: str
    """`config_created`, `config_updated`, `config_deleted`, `config_unmatched` (it has left the filter),
    `definition_created`, `definition_updated`, `definition_deleted`."""
    definition: str
    key: Optional[str] = None
    """The key of the config; None when it is about the definition."""
    data: Any = None
    prev: Any = None
    """The data before, where the watch asked for it."""
    created_at: Optional[datetime] = None
    modified_at: Optional[datetime] = None
    redacted: Tuple[str, ...] = ()
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False)
    problem: Optional[str] = None
    """Why this client can't read the record; then it has no data."""
    variant: Optional[str] = None
    """The id of the change request whose candidate it is; None for what is proven."""


@dataclass(frozen=True)
class Event:
    """All that one revision did. Without changes: everything up to the revision has been handed out."""

    revision: int
    changes: Tuple[Change, ...]
    at: Optional[datetime] = None
    by: Optional[str] = None
    reason: Optional[str] = None
    node: Optional[str] = None


@dataclass(frozen=True)
class State:
    """All that there is at a revision: what a watch with `initial=True` begins with, and begins anew with when the
    changes after its position are no longer retained. It replaces what was handed out before."""

    revision: int
    definitions: Tuple[Definition, ...]
    configs: Tuple[Config, ...]
    node: Optional[str] = None
    unreadable: Mapping[Tuple[str, str], str] = field(default_factory=dict)
    """Configs that this client can't read, with the reason."""


@dataclass(frozen=True)
class OperationResult:
    """What one operation of a batch did."""

    op: str
    definition: str
    key: Optional[str]
    created: bool
    config: Optional[Config] = None
    """What a `get` read; None when there was no config."""


@dataclass(frozen=True)
class BatchResult:
    revision: Optional[int]
    """None in a dry run."""
    results: Tuple[OperationResult, ...]
    succeeded: Optional[bool] = None
    """Whether all conditions of a transaction held."""
    dry_run: bool = False
    warnings: Tuple[str, ...] = ()
    """Parts of the request that had no effect."""


@dataclass(frozen=True)
class ManyConfigs:
    """Configs of one revision."""

    revision: int
    found: Mapping[Tuple[str, str], Config]
    missing: Mapping[Tuple[str, str], str]
    """Why others are not there: `absent` or `forbidden`."""


def config(
    definition: str,
    record: Mapping[str, Any],
    answer: Optional[Answer] = None,
    revision: Optional[int] = None,
    warnings: Tuple[str, ...] = (),
    variant: Optional[str] = None,
) -> Config:
    redacted = () if answer is None or revision is None else _places(answer.headers.get("x-concord-redacted", ""))
    listed = record.get("redacted")
    variant = variant or _variant_in(record)
    return Config(
        record.get("config_definition_key", definition),
        record["config_key"],
        record["data"],
        0 if variant else record.get("revision", revision),
        time_of(record["created_at"]),
        time_of(record["modified_at"]),
        answer.node if answer else None,
        answer.number("x-concord-revision") if answer else None,
        tuple(listed) if isinstance(listed, list) else redacted,
        warnings,
        variant,
    )


def _variant_in(record: Mapping[str, Any]) -> Optional[str]:
    """The change request that a record in a body names as that of its candidate."""
    variant = record.get("variant")
    return variant["change_id"] if variant else None


def of_answer(definition: str, record: Mapping[str, Any], answer: Answer) -> Config:
    """The config of an answer that is about it alone: its headers say the version."""
    variant = variant_of(answer.headers.get("x-concord-variant"))
    revision = 0 if variant else answer.number("etag")
    return config(definition, record, answer, revision, answer.warnings, variant)


def _places(text: str) -> Tuple[str, ...]:
    return tuple(place.strip() for place in text.split(",") if place.strip())


def definition(record: Mapping[str, Any], revision: Optional[int] = None, warnings: Tuple[str, ...] = ()) -> Definition:
    return Definition(
        record["config_definition_key"],
        tuple(record["indexes"]),
        record.get("json_schema"),
        time_of(record["created_at"]),
        time_of(record["modified_at"]),
        record.get("revision", revision),
        warnings,
    )


def written(answer: Answer) -> Written:
    return Written(
        answer.number("etag"),
        answer.number("x-concord-revision"),
        answer.data,
        answer.status == 201,
        answer.headers.get("x-concord-dry-run") == "true",
        answer.node,
        answer.warnings,
    )


def past(record: Mapping[str, Any]) -> Past:
    at = time_of(record["at"])
    return Past(record["revision"], record["operation"], at, record["by"], record["reason"], record["data"])


def configs(
    listed: Sequence[Mapping[str, Any]], answer: Answer
) -> Tuple[Tuple[Config, ...], Dict[Tuple[str, str], str]]:
    """The configs of a state, and those that can't be read: one of them says nothing of the others."""
    found: List[Config] = []
    unreadable: Dict[Tuple[str, str], str] = {}
    for each in listed:
        try:
            found.append(config("", each, answer, each["revision"]))
        except Exception as error:  # noqa: BLE001 (whatever it is, it is of this record)
            unreadable[str(each.get("config_definition_key")), str(each.get("config_key"))] = _told(error)
    return tuple(found), unreadable


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def event(record: Mapping[str, Any], node: Optional[str]) -> Event:
    changes = tuple(_change(item) for item in record["changes"])
    return Event(record["revision"], changes, time_of(record["at"]), record["by"], record["reason"], node)


def _change(record: Mapping[str, Any]) -> Change:
    kind, name, key = record["type"], record["config_definition_key"], record.get("config_key")
    try:
        created, modified = record.get("created_at"), record.get("modified_at")
        return Change(
            kind,
            name,
            key,
            record.get("data"),
            record.get("prev"),
            time_of(created) if created else None,
            time_of(modified) if modified else None,
            tuple(record.get("redacted") or ()),
            record,
            variant=_variant_in(record),
        )
    except Exception as error:  # noqa: BLE001 (whatever it is, it is of this record)
        return Change(kind, name, key, raw=record, problem=_told(error))


def batch(answer: Answer) -> BatchResult:
    results: List[OperationResult] = []
    for item in answer.data["results"]:
        name, key, read = item["config_definition_key"], item.get("config_key"), item.get("config")
        found = config(name, read, answer, read.get("revision")) if read else None
        results.append(OperationResult(item["op"], name, key, item.get("created", False), found))
    is_dry = answer.headers.get("x-concord-dry-run") == "true"
    return BatchResult(answer.data["revision"], tuple(results), answer.data.get("succeeded"), is_dry, answer.warnings)
