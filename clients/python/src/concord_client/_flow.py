"""One call with all its attempts, without any input or output.

A flow is a generator. It yields what it needs done (`Send`, `Pause`, `Work`) and is sent the result; `_sync` and
`_async` do these for threads and for asyncio, and hold no other logic.

**Invariants:** a write is sent again only if no copy can have been applied, or if it has an idempotency key, by which
the cluster decides all its copies as one. Once a copy may have been applied, the result is success, a refusal that the
cluster has decided and remembered, or `UnknownOutcome`.
"""

from __future__ import annotations

import random
import re
import time
from dataclasses import dataclass
from typing import Any, Callable, Generator, Generic, List, Mapping, Optional, Protocol, Sequence, Tuple, TypeVar, Union

from ._errors import ApiError, ProtocolError, Unavailable, UnknownOutcome, refusal, violations_of, with_attributes
from ._json import loads

T = TypeVar("T")

RESEND_WINDOW_S = 15.0
"""How long after the first copy of unknown outcome was sent the request is sent again.

A cluster remembers what it decided for at least 45 seconds, and a node works on a request for at most 30.
"""
_PAUSE_FIRST_S, _PAUSE_MAX_S = 0.05, 2.0
_ATTEMPTS_TOLD = 8
# No attempt after the first is begun with less time: it would end before an answer, and the outcome would be unknown.
_ATTEMPT_MIN_S = 0.02


class Scope(Protocol):
    """The environment of a client: what stands before the definition keys of its requests."""

    name: str

    def enter(self, request: Request) -> Request: ...

    def leave(self, method: str, target: str, data: Any) -> None: ...

    def leave_event(self, event: Any) -> None: ...

    def left(self, target: str) -> str: ...


class ReadsAs(Protocol):
    """Who reads: what a client says of itself in its requests."""

    name: str

    @property
    def labels(self) -> Mapping[str, str]: ...

    def on(self, request: Request) -> Request: ...


class Sink(Protocol):
    """Takes an answer of success as it comes."""

    def feed(self, chunk: bytes) -> bool:
        """Whether that was all that is needed."""


@dataclass(frozen=True)
class Request:
    """What is sent to a node, all but the credential."""

    method: str
    target: str
    """Path and query, encoded."""
    headers: Tuple[Tuple[str, bytes], ...] = ()
    body: Optional[bytes] = None
    is_write: bool = False
    idempotency_key: Optional[str] = None
    """Without one a write is not sent again once it may have been applied."""
    sink: Optional[Sink] = None
    is_proven: bool = False
    """Whether it reads what is proven, also where the reader of the client sees a candidate."""


@dataclass(frozen=True)
class Send:
    """Send a request to a node. The result is a `Response` or a `Failure`."""

    node: str
    request: Request
    silence_s: float
    """How long the node may say nothing."""
    timeout_s: float
    """How long the whole answer may take; one that goes to a sink may take longer."""


@dataclass(frozen=True)
class Pause:
    """Wait. There is no result."""

    seconds: float


@dataclass(frozen=True)
class Work:
    """Call a function that may block, as those that read and write files do. The result is what it returns."""

    function: Callable[[], Any]


@dataclass(frozen=True)
class Item(Generic[T]):
    """A flow that makes many things hands one out. There is no result."""

    value: T


@dataclass(frozen=True)
class Response:
    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class Failure:
    """No answer."""

    text: str
    may_be_applied: bool
    """Whether a node may have got the request."""


Effect = Union[Send, Pause, Work]
Flow = Generator[Effect, Any, T]
Items = Generator[Union[Effect, Item[T]], Any, None]


@dataclass(frozen=True)
class Answer:
    """An answer of success, or 304."""

    status: int
    headers: Mapping[str, str]
    data: Any
    node: str
    """The URL of the node."""
    sent_at: float
    """When this copy was sent, by the clock of the context."""

    def number(self, name: str) -> Optional[int]:
        """A header that is a number, with or without quotes."""
        text = self.headers.get(name, "").strip('"')
        return int(text) if text.isdigit() else None

    @property
    def warnings(self) -> Tuple[str, ...]:
        """What of the request had no effect, or is missing from the answer."""
        header = self.headers.get("warning", "")
        found = tuple(re.sub(r"\\(.)", r"\1", text) for text in _WARNING.findall(header))
        return found if found or not header else (header,)


_WARNING = re.compile(r'\d{3} \S+ "((?:[^"\\]|\\.)*)"')
"""A warning: `299 - "a text"`. There may be several, with commas between."""

if hasattr(time, "CLOCK_BOOTTIME"):

    def clock() -> float:
        """Seconds since some time, those while the machine slept included: an age must not be taken for less."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

else:
    clock = time.monotonic


@dataclass
class Context:
    """What all calls of a client share."""

    nodes: Sequence[str]
    timeout_s: float = 30.0
    attempt_timeout_s: float = 5.0
    clock: Callable[[], float] = clock
    jitter: Callable[[], float] = random.random
    preferred: int = 0
    """The place of the node that answered last."""
    revision: int = 0
    """The highest revision that an answer named."""
    environment: Optional[Scope] = None
    reader: Optional[ReadsAs] = None


def call(
    context: Context, request: Request, timeout_s: Optional[float] = None, attempt_s: Optional[float] = None
) -> Flow[Answer]:
    """Sends a request to one node after another until one decides it or the time is up."""
    attempts = _Attempts(context, request, timeout_s, attempt_s)
    while True:
        node, allowed_s, pause_s = attempts.next()
        if pause_s:
            yield Pause(pause_s)
            continue
        sent_at = attempts.sent_at = context.clock()
        reply: Union[Response, Failure] = yield Send(node, attempts.request, allowed_s, attempts.left_s())
        if isinstance(reply, Failure):
            attempts.failed(node, reply.text, request.is_write and reply.may_be_applied)
            continue
        answer = attempts.judged(node, reply, sent_at)
        if answer is not None:
            return answer


class _Attempts:
    """The attempts of one call: which node is next, and what follows from an answer."""

    def __init__(
        self, context: Context, request: Request, timeout_s: Optional[float], attempt_s: Optional[float]
    ) -> None:
        self.context, self.asked = context, request
        entered = context.environment.enter(request) if context.environment else request
        self.request = context.reader.on(entered) if context.reader else entered
        self.attempt_s = attempt_s or context.attempt_timeout_s
        timeout_s = context.timeout_s if timeout_s is None else timeout_s
        self.deadline = context.clock() + timeout_s
        self.first, self.made = context.preferred, 0
        self.pause_s, self.asked_s, self.has_paused = _PAUSE_FIRST_S, 0.0, False
        self.told: List[str] = []
        self.sent_at = 0.0
        """When the last copy was sent."""
        self.resend_until = float("inf")
        """Until when another copy may be sent."""
        self.is_unknown = False
        self.limited: Optional[ApiError] = None

    def next(self) -> Tuple[str, float, float]:
        """The node to ask, how long, and the pause before. Between two rounds over all nodes there is a pause."""
        context, count = self.context, len(self.context.nodes)
        if self.made and self.made % count == 0 and not self.has_paused:
            self.has_paused = True
            pause_s = max(self.pause_s * (0.5 + context.jitter() / 2), self.asked_s)
            self.pause_s, self.asked_s = min(self.pause_s * 2, _PAUSE_MAX_S), 0.0
            if context.clock() + pause_s + _ATTEMPT_MIN_S >= min(self.deadline, self.resend_until):
                raise self.given_up()
            return "", 0.0, pause_s
        left_s = self.deadline - context.clock()
        if left_s <= 0 or (self.made and left_s < _ATTEMPT_MIN_S) or context.clock() >= self.resend_until:
            raise self.given_up()
        self.has_paused = False
        node = context.nodes[(self.first + self.made) % count]
        self.made += 1
        # A node that hangs must not take the time that the others need.
        may_go_on = not self.request.is_write or self.request.idempotency_key is not None
        # The last copy of a write that may be sent has the time that is left.
        may_go_on = may_go_on and context.clock() + self.attempt_s < self.resend_until
        return node, min(left_s, self.attempt_s) if may_go_on else left_s, 0.0

    def left_s(self) -> float:
        return max(0.0, self.deadline - self.context.clock())

    def failed(self, node: str, text: str, may_be_applied: bool) -> None:
        """Notes an attempt without an answer. Raises when there must be no other."""
        self.told = [*self.told, f"{node}: {text}"][-_ATTEMPTS_TOLD:]
        if not may_be_applied:
            return
        if not self.is_unknown:
            self.is_unknown = True
            # From the sending on: by the time that a loss is noticed, the cluster may have forgotten.
            self.resend_until = self.sent_at + RESEND_WINDOW_S
        if self.request.idempotency_key is None:
            raise self.given_up()

    def judged(self, node: str, reply: Response, sent_at: float) -> Optional[Answer]:
        """The answer, or none when the request is to be sent again."""
        is_write = self.request.is_write
        if (reply.status == 304 and not is_write) or 200 <= reply.status < 300:
            return self.succeeded(node, reply, sent_at)
        try:
            body = loads(reply.body)
        except (ValueError, RecursionError):
            body = None
        error = refusal(reply.status, body, node=node, headers=reply.headers)
        # What stands between may have lost an answer; only a node's own words say that nothing was applied.
        is_own = bool(violations_of(body))
        if reply.status in (429, 503) and (is_own or not is_write):
            self.limited = error if reply.status == 429 else None
            self.asked_s = max(self.asked_s, _seconds(reply.headers.get("retry-after")))
            self.failed(node, str(error), False)
            return None
        if reply.status >= 500 and reply.status != 507:
            if not is_write and reply.status == 500 and is_own:
                raise error
            self.limited = None
            self.failed(node, str(error), is_write)
            return None
        if not is_own and reply.status not in (401, 403, 404, 405, 413):
            self.failed(node, str(error), is_write)
            return None
        self.seen(error.revision)
        self.answered()
        if self.is_unknown and not self.is_decision(error):
            raise self.given_up(error)
        raise error

    def succeeded(self, node: str, reply: Response, sent_at: float) -> Optional[Answer]:
        data = None
        # A write is answered with a body: an empty one is that of something between.
        if self.request.sink is None and (reply.body or (self.request.is_write and reply.status != 304)):
            try:
                body = loads(reply.body)
                data = body["data"] if isinstance(body, dict) and "data" in body else body
            except (ValueError, RecursionError) as error:
                # An answer that was cut off, or none of Concord's.
                self.failed(node, f"{reply.status} with a body that is no JSON: {error}", self.request.is_write)
                return None
        if self.context.environment is not None:
            self.context.environment.leave(self.asked.method, self.asked.target, data)
        answer = Answer(reply.status, reply.headers, data, node, sent_at)
        self.seen(answer.number("x-concord-revision"))
        self.answered()
        return answer

    def seen(self, revision: Optional[int]) -> None:
        self.context.revision = max(self.context.revision, revision or 0)

    def answered(self) -> None:
        """The node that answers is asked first from now on."""
        self.context.preferred = (self.first + self.made - 1) % len(self.context.nodes)

    def is_decision(self, error: ApiError) -> bool:
        """Whether the cluster has decided this refusal for all copies of the request, and remembers it.

        What is said of the request itself, of the caller's rights, or of a freeze, says nothing of an earlier copy. Nor
        does what is said of a change request: the cluster stores no refusal of it.
        """
        target = self.request.target
        if target.startswith("/api/v1/change_request/"):
            return False
        if error.code == "definition_not_found":
            return self.request.method == "PATCH" or target.startswith("/api/v1/batch")
        return error.code in (
            "config_exists",
            "config_not_found",
            "definition_exists",
            "definition_not_empty",
            "definition_protected",
            "precondition_failed",
            "unique_taken",
        )

    def given_up(self, last: Optional[ApiError] = None) -> Exception:
        # The node that was asked last did not answer: the next call begins with another one.
        self.context.preferred = (self.first + self.made) % len(self.context.nodes)
        told = tuple(self.told)
        if self.is_unknown:
            latest = f"; then {last}" if last else ""
            text = f"the outcome is unknown, the write may have been applied: {told[-1]}{latest}"
            more = {"idempotency_key": self.request.idempotency_key, "attempts": told, "refusal": last}
            return with_attributes(UnknownOutcome(text), more)
        if self.limited is not None:
            return self.limited
        text = told[-1] if told else "the time was up before anything was sent"
        return with_attributes(Unavailable(f"no node served the request in time: {text}"), {"attempts": told})


def _seconds(text: Optional[str]) -> float:
    try:
        return max(0.0, float(text or 0))
    except ValueError:
        return 0.0


def expect(answer: Answer, what: type[Any], **names: str) -> Any:
    """The data of an answer to a read, if they are of this type, and of the record with these names."""
    if not isinstance(answer.data, what):
        raise ProtocolError(f"{answer.node} answered {answer.status} without the data that were asked for")
    for name, asked in names.items():
        if answer.data.get(name) != asked:
            raise ProtocolError(f"{answer.node} answered with {answer.data.get(name)!r} where {asked!r} was asked for")
    return answer.data
