"""Why a call has no result.

**Invariant:** a write that may have been applied raises `UnknownOutcome` and nothing else. Every other error of a write
says that it was certainly not applied.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Mapping, Optional, Tuple, Type, Union

Place = Tuple[Union[str, int], ...]


@dataclass(frozen=True)
class Violation:
    """One of the reasons of a refusal."""

    type: str
    """The class of the error, as in `conflict_error`."""
    code: str
    """What exactly is wrong, as in `config_exists`. Programs may depend on it; empty where the node gives none."""
    message: str
    """For people; texts may change."""
    loc: Place
    """The way to what is wrong, outermost first: names of members and numbers of elements. Empty for the whole."""

    @property
    def path(self) -> str:
        """The place as a JSON pointer, as in `/data/limits/0/name`; empty for the whole."""
        return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in self.loc)

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.loc else self.message


class ConcordError(Exception):
    """Any error of this package."""


class ApiError(ConcordError):
    """A node refused the request. Nothing was changed."""

    status: int = 0
    violations: Tuple[Violation, ...] = ()
    request_id: Optional[str] = None
    """The id under which the node's log names the request."""
    node: Optional[str] = None
    """The URL of the node that answered."""
    revision: Optional[int] = None
    """The revision of the state that the refusal was read from."""

    @property
    def type(self) -> str:
        return self.violations[0].type if self.violations else ""

    @property
    def code(self) -> str:
        """The code of the first reason."""
        return self.violations[0].code if self.violations else ""

    @property
    def paths(self) -> Tuple[str, ...]:
        """The places that are wrong, as JSON pointers."""
        return tuple(violation.path for violation in self.violations if violation.loc)


class Unauthorized(ApiError):
    """401: the key is missing or not valid."""


class Forbidden(ApiError):
    """403: the key does not have the right; the same whether what was asked for exists or not."""


class NotFound(ApiError):
    """404."""


class MethodNotAllowed(ApiError):
    """405."""


class Conflict(ApiError):
    """409: it exists already, a unique value is taken, an index is being built."""


class ChangeRequired(Conflict):
    """409: the environment takes change requests only. It is not sent again."""


class EnvironmentFrozen(Conflict):
    """409: the environment is frozen. It is not sent again: a freeze may last for days."""


class Expired(ApiError):
    """410: the revision, the change or the cursor is no longer retained."""


class PreconditionFailed(ApiError):
    """412: `if_match` or `if_none_match` does not hold."""

    current_revision: Optional[int] = None
    """The revision that the record has, if there is one."""


class TooLarge(ApiError):
    """413."""


class UnsupportedCoding(ApiError):
    """415."""


class Invalid(ApiError):
    """422: a parameter, a key, an index, a schema or data break a rule. `violations` lists all of them."""


class RateLimited(ApiError):
    """429, until the time of the call was up. A write was certainly not applied."""


class StorageFull(ApiError):
    """507: writes are refused, reads go on."""


class ServerError(ApiError):
    """500 of a read: an internal error of the node."""


class Unavailable(ConcordError):
    """No node could serve the request in time. A write was certainly not applied."""

    attempts: Tuple[str, ...] = ()
    """What the last attempts met, the latest last."""


class UnknownOutcome(ConcordError):
    """A write may or may not have been applied.

    The same call with `idempotency_key=error.idempotency_key` is safe: the cluster decides both as one. Or read what
    is there.
    """

    idempotency_key: Optional[str] = None
    attempts: Tuple[str, ...] = ()
    refusal: Optional[ApiError] = None
    """What a later copy of the request was answered, where that does not decide the first one."""


class ProtocolError(ConcordError):
    """The answer to a read is none of a node of Concord."""


class ModelError(ConcordError):
    """Data do not fit the model that they are read as. `paths` says where."""

    paths: Tuple[str, ...] = ()


class NotReady(ConcordError):
    """The cache has nothing yet: no node has answered, and there is no usable file."""


class NotCached(ConcordError, KeyError):
    """The cache has no such config. `source` and `age_s` say how certain that is."""

    source: str = "cache"
    age_s: float = float("inf")

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else "the cache has no such config"


_BY_STATUS: Mapping[int, Type[ApiError]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    405: MethodNotAllowed,
    409: Conflict,
    410: Expired,
    412: PreconditionFailed,
    413: TooLarge,
    415: UnsupportedCoding,
    422: Invalid,
    429: RateLimited,
    500: ServerError,
    507: StorageFull,
}


_BY_CODE: Mapping[str, Type[ApiError]] = {
    "change_required": ChangeRequired,
    "environment_frozen": EnvironmentFrozen,
}


def other_cluster(node: str) -> ApiError:
    """What a client says itself of nodes that are now those of another cluster, or of one that was restored to an
    earlier state: there is nothing to go on from, as where changes are no longer kept."""
    text = "the nodes are of another cluster than before, or of an earlier state of it"
    item = {"type": "expired_error", "code": "cluster_changed", "msg": text}
    return refusal(410, {"errors": [item]}, node=node)


def violations_of(body: Any) -> Tuple[Violation, ...]:
    """The reasons in the body of a refusal; none when the body is not one of Concord's."""
    if not isinstance(body, dict):
        return ()
    listed = body.get("errors") or body.get("detail")
    if not isinstance(listed, list):
        return ()
    found = []
    for item in listed:
        if isinstance(item, dict) and isinstance(item.get("msg"), str):
            loc = item.get("loc")
            place: Place = tuple(loc) if isinstance(loc, list) else ()
            found.append(Violation(str(item.get("type", "")), str(item.get("code", "")), item["msg"], place))
    return tuple(found)


def refusal(
    status: int, body: Any, *, node: Optional[str] = None, headers: Optional[Mapping[str, str]] = None
) -> ApiError:
    """The error of a refusal."""
    headers = headers or {}
    violations = violations_of(body)
    told = "; ".join(map(str, violations)) or "the answer gives no reason"
    code = violations[0].code if violations else ""
    kind = _BY_CODE.get(code) or _BY_STATUS.get(status, ApiError)
    error = kind(f"{status}: {told}")
    error.status, error.violations, error.node = status, violations, node
    error.request_id = headers.get("x-request-id")
    error.revision = _integer(headers.get("x-concord-revision"))
    if isinstance(error, PreconditionFailed):
        error.current_revision = _integer((headers.get("etag") or "").strip('"'))
    return error


def invalid(code: str, message: str, *loc: Union[str, int]) -> Invalid:
    """A refusal before anything is sent."""
    error = Invalid(message)
    error.status, error.violations = 422, (Violation("validation_error", code, message, loc),)
    return error


def _integer(text: Optional[str]) -> Optional[int]:
    return int(text) if text and text.isdigit() else None


def with_attributes(error: ConcordError, attributes: Dict[str, Any]) -> ConcordError:
    """The error with more said about it."""
    for name, value in attributes.items():
        setattr(error, name, value)
    return error
