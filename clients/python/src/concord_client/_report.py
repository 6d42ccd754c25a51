"""What a cache says of the candidates that it follows: that the program runs well with them, or not.

A rollout goes on by what its readers report. While a config that the cache holds is a candidate, the cache reports it
every 20 seconds: `failed` with the reason if a model refuses the data, at once; otherwise `healthy`. One report is of
all configs of a change request: it has failed if one of them has.

**Invariants:** one report at a time is under way, and none ends what follows. Nothing is reported of what a node has
not sent since the start. A key that may not report is told so once for each change request.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Dict, Optional, Set

from ._errors import ConcordError, Forbidden, NotFound
from ._flow import Context, Flow, ReadsAs, Request, call
from ._json import dumps
from ._requests import ROOT, segment

if TYPE_CHECKING:
    from ._cache import CacheCore

log = logging.getLogger("concord_client")

EVERY_S = 20.0
"""The pause between two reports of one change request. A report counts for a minute."""
EVERY_FAILED_S = 5.0
"""The same of failures: a new leader knows none, and must not wait long for them."""
FIRST_WITHIN_S = 5.0
"""The first report of a change request comes within this time, so that not all readers report in one moment."""
_TIMEOUT_S = 2.0
"""The cache follows nothing meanwhile."""
_DETAIL_BYTES_MAX = 1024


@dataclass
class _Turn:
    said: Optional[str]
    """The reason that was reported last; None for `healthy`."""
    at: float
    """When it is reported again, by the clock."""


class Reports:
    """What was reported, and when it is reported again."""

    def __init__(self, context: Context) -> None:
        self.context, self.every_s, self.first_within_s = context, EVERY_S, FIRST_WITHIN_S
        self._turns: Dict[str, _Turn] = {}
        self._forbidden: Set[str] = set()

    def wait_s(self, most_s: int) -> int:
        """How long the cache may wait for changes: until the next report is due."""
        if self.context.reader is None or not self._turns:
            return most_s
        left_s = min(turn.at for turn in self._turns.values()) - self.context.clock()
        return max(0, min(most_s, int(left_s) + 1))

    def send(self, core: CacheCore) -> Flow[None]:
        """Sends the report that is due, if there is one."""
        if self.context.reader is None:
            return
        now, reasons = self.context.clock(), _reasons(core)
        self._turns = {change: turn for change, turn in self._turns.items() if change in reasons}
        self._forbidden &= reasons.keys()
        for change, reason in reasons.items():
            if change in self._forbidden:
                continue
            turn = self._turns.setdefault(change, _Turn(None, now + self.first_within_s * self.context.jitter()))
            # That something is wrong is said at once.
            if turn.at <= now or (reason is not None and turn.said != reason):
                yield from self._send(self.context.reader, change, reason)
                return

    def _send(self, reader: ReadsAs, change: str, reason: Optional[str]) -> Flow[None]:
        context = self.context
        every_s = self.every_s if reason is None else min(self.every_s, EVERY_FAILED_S)
        self._turns[change] = _Turn(reason, context.clock() + every_s * (0.9 + context.jitter() / 10))
        said: Dict[str, Any] = {"reader": reader.name, "labels": reader.labels, "state": "healthy"}
        if reason is not None:
            said.update(state="failed", detail=reason)
        try:
            path = f"{ROOT}/change_request/{segment(change, 'change_id')}/report"
            # A copy of a report is the same report: it is sent again as a read is.
            request = Request("POST", path, (("content-type", b"application/json"),), dumps(said))
            yield from call(context, request, _TIMEOUT_S, _TIMEOUT_S)
        except (Forbidden, NotFound) as error:
            # Who may not even know of a change request is told that there is none.
            self._forbidden.add(change)
            del self._turns[change]
            log.warning("nothing is reported of the change request %s: %s", change, error)
        except ConcordError as error:
            # It may be another matter at the next turn.
            log.debug("a report of the change request %s failed: %s", change, error)


def _reasons(core: CacheCore) -> Dict[str, Optional[str]]:
    """What there is to say of each change request with a candidate: why something is wrong, or None."""
    reasons: Dict[str, Optional[str]] = {}
    if not core.is_confirmed:
        return reasons
    for config in list(core.configs.values()):
        if config.variant is None:
            continue
        before = reasons.get(config.variant)
        reasons[config.variant] = before if before is not None else _reason(core, config)
    return reasons


def _reason(core: CacheCore, config: Any) -> Optional[str]:
    for typed in list(core.typed):
        error = typed.refusal(config) if typed.definition == config.definition else None
        if error is not None:
            # The places and no values: those may be secret, and others read the reason.
            places = ", ".join(path or "/" for path in error.paths) or "some place"
            told = f"{config.definition}/{config.key} does not fit {typed.model.__name__} at {places}"
            # A node refuses characters that nobody sees.
            seen = "".join(each if each.isprintable() else " " for each in told)
            return seen.encode()[:_DETAIL_BYTES_MAX].decode(errors="ignore")
    return None
