"""Known bugs of a client, to see that the soak finds them: `soak.py --bug NAME`.

Each takes away one thing that a promise rests on.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Dict, List

from concord_client import _cache, _flow, _following, _operations
from concord_client._errors import ApiError
from concord_client._flow import Flow, Request
from concord_client._records import Event


def age_by_heartbeat() -> None:
    """The age of a copy rests on when a node last answered a poll, not on a linearizable read."""

    def step(core: _cache.CacheCore) -> Flow[None]:
        yield from core._poll(core.poll_s)
        core.confirmed_at = core.clock()

    setattr(_cache.CacheCore, "_step", step)  # noqa: B010


def failed_for_unknown() -> None:
    """A write whose outcome is unknown is said to have failed."""
    real: Callable[..., Exception] = _flow._Attempts.given_up

    def given_up(attempts: _flow._Attempts, last: ApiError | None = None) -> Exception:
        attempts.is_unknown = False
        return real(attempts, last)

    setattr(_flow._Attempts, "given_up", given_up)  # noqa: B010


def missed_change() -> None:
    """The last change of a long poll is dropped."""
    real: Callable[..., Flow[List[Event]]] = _following.Following.poll

    def poll(following: _following.Following, wait_s: int) -> Flow[List[Event]]:
        events = yield from real(following, wait_s)
        return events[:-1] if len(events) > 3 else events

    setattr(_following.Following, "poll", poll)  # noqa: B010


def unconditional() -> None:
    """Writes have neither a condition nor an idempotency key."""
    real: Callable[..., Request] = getattr(_operations, "write")  # noqa: B009

    def write(*args: Any, **kwargs: Any) -> Request:
        request = real(*args, **kwargs)
        kept = tuple(each for each in request.headers if each[0] not in ("if-match", "idempotency-key"))
        return dataclasses.replace(request, headers=kept)

    setattr(_operations, "write", write)  # noqa: B010


BUGS: Dict[str, Callable[[], None]] = {
    "age-by-heartbeat": age_by_heartbeat,
    "failed-for-unknown": failed_for_unknown,
    "missed-change": missed_change,
    "unconditional": unconditional,
}
