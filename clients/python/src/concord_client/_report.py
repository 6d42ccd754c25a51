"""What a cache says of what it follows: that the program runs well with it, or not.

A rollout goes on by what its readers report. While a config that the cache holds is a candidate, the cache reports it
every 20 seconds: `failed` with the reason if a model refuses the data, at once; otherwise `healthy`. One report is of
all configs of a change request: it has failed if one of them has.

Outside rollouts, the cache reports configs that a model refuses: `failed` every 20 seconds, and `healthy` once when it
no longer does. So a fleet that runs well sends nothing.

**Invariants:** one report at a time is under way. None delays or ends what follows: a thread or a task of its own sends
them, and nothing that the program raises leaves it. Nothing is reported of what a node has not sent since the start. A
key that may not report is told so once for each change request or definition.
"""

from __future__ import annotations

import logging
import os
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Dict, NamedTuple, Optional, Set

from ._errors import ApiError, ConcordError, Forbidden, NotFound
from ._flow import Context, Flow, Pause, ReadsAs, Request, call
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
_TIMEOUT_S, _ATTEMPT_S = 5.0, 2.0
_LOOK_S = 5.0
"""How often there is a look at what there is to report where nothing comes from the cluster."""
_DETAIL_BYTES_MAX = 1024
_CONFIGS_MAX = 50
"""The most configs outside rollouts that a cache reports as failed at one time."""
SILENCE_S = 600.0
"""For how long nothing is reported of the configs of a definition after a node has said that this key may not, that
there is no such config, or that the cluster does not know such reports yet."""


class Target(NamedTuple):
    """What a report is about: the rollout of a change request, or a config."""

    change: Optional[str]
    definition: str = ""
    key: str = ""

    @property
    def group(self) -> Target:
        """Whom a refusal is about: it is the same for all configs of a definition."""
        return self if self.change is not None else Target(None, self.definition)

    @property
    def path(self) -> str:
        if self.change is not None:
            return f"{ROOT}/change_request/{segment(self.change, 'change_id')}/report"
        definition = segment(self.definition, "config_definition_key")
        return f"{ROOT}/config_definition/{definition}/config/{segment(self.key, 'config_key')}/report"

    def __str__(self) -> str:
        return f"the change request {self.change}" if self.change is not None else f"the configs of {self.definition}"


class Said(NamedTuple):
    reason: Optional[str]
    """Why something is wrong; None for `healthy`."""
    revision: int = 0
    """That of a config; 0 of a candidate."""


@dataclass
class _Turn:
    said: Optional[Said]
    """What was reported last."""
    seen: Optional[Said]
    """What was to report at the last look."""
    at: float
    """When it is reported again, by the clock."""


class Reports:
    """What was reported, and when it is reported again."""

    def __init__(self, context: Context) -> None:
        self.context, self.every_s, self.first_within_s = context, EVERY_S, FIRST_WITHIN_S
        self._turns: Dict[Target, _Turn] = {}
        self._silent: Dict[Target, Optional[float]] = {}
        """Of what nothing is reported, and until when; None: as long as there is something to report of it."""
        self._warned: Set[Target] = set()
        self._has_failed = False
        """Whether the log has what nobody expected."""
        self._instance = ("", 0)

    @property
    def instance(self) -> str:
        """Tells programs with one name apart, as those on one host. A process that was forked is another one."""
        if self._instance[1] != os.getpid():
            self._instance = (secrets.token_hex(8), os.getpid())
        return self._instance[0]

    @property
    def is_on(self) -> bool:
        """Whether there is anything to report as."""
        return self.context.reader is not None

    def wait_s(self) -> float:
        """How long until the next look, where no news come before."""
        at = [turn.at for target, turn in self._turns.items() if target.group not in self._silent]
        return max(0.0, min(_LOOK_S, min(at) - self.context.clock())) if at else _LOOK_S

    def send(self, core: CacheCore) -> Flow[None]:
        """Sends the report that is due, if there is one."""
        try:
            yield from self._send_due(core)
        except Exception:
            # Whatever a model of the program raises, too: it ends no reports.
            if not self._has_failed:
                self._has_failed = True
                log.exception("a report met an error that it does not know")
            yield Pause(_LOOK_S)

    def _send_due(self, core: CacheCore) -> Flow[None]:
        if self.context.reader is None:
            return
        now, all_said = self.context.clock(), self._all(core)
        self._turns = {target: turn for target, turn in self._turns.items() if target in all_said}
        self._silent = {
            group: until
            for group, until in self._silent.items()
            if (group in all_said if until is None else until > now)
        }
        self._warned = {group for group in self._warned if group.change is None or group in all_said}
        for target, said in all_said.items():
            if target.group not in self._silent and self._is_due(target, said, now):
                yield from self._send(self.context.reader, target, said)
                return

    def _is_due(self, target: Target, said: Said, now: float) -> bool:
        soon = now + self.first_within_s * self.context.jitter()
        turn = self._turns.setdefault(target, _Turn(None, None, soon))
        if target.change is None and turn.seen != said:
            # Many readers refuse one config in one moment: nobody waits for a report of it.
            turn.seen, turn.at = said, min(turn.at, soon)
        # That something is wrong in a rollout is said at once: the rollout ends by it.
        is_news = target.change is not None and said.reason is not None and turn.said != said
        return turn.at <= now or is_news

    def _all(self, core: CacheCore) -> Dict[Target, Said]:
        """What there is to say, of candidates first."""
        all_said = _of_candidates(core)
        all_said.update(_of_refused(core))
        for target, turn in self._turns.items():
            if target.change is not None or turn.said is None or target in all_said or not core.is_confirmed:
                continue
            config = core.configs.get((target.definition, target.key))
            if config is not None and config.variant is None:
                # It is refused no longer.
                all_said[target] = Said(None, config.revision or 0)
        return all_said

    def _send(self, reader: ReadsAs, target: Target, said: Said) -> Flow[None]:
        context = self.context
        is_failed, is_of_config = said.reason is not None, target.change is None
        every_s = min(self.every_s, EVERY_FAILED_S) if is_failed and not is_of_config else self.every_s
        if is_failed or not is_of_config:
            self._turns[target] = _Turn(said, said, context.clock() + every_s * (0.9 + context.jitter() / 10))
        else:
            del self._turns[target]
        told: Dict[str, Any] = {"reader": reader.name, "labels": reader.labels, "instance": self.instance}
        told.update({"state": "failed", "detail": said.reason} if is_failed else {"state": "healthy"})
        if is_of_config:
            told["revision"] = said.revision
        try:
            # A copy of a report is the same report: it is sent again as a read is.
            request = Request("POST", target.path, (("content-type", b"application/json"),), dumps(told))
            yield from call(context, request, _TIMEOUT_S, _ATTEMPT_S)
        except ConcordError as error:
            # Who may not even know of a change request is told that there is none.
            is_told = isinstance(error, (Forbidden, NotFound))
            is_early = is_of_config and isinstance(error, ApiError) and error.status == 409
            if not is_told and not is_early:
                # It may be another matter at the next turn.
                log.debug("a report of %s failed: %s", target, error)
                return
            self._silent[target.group] = context.clock() + SILENCE_S if is_of_config else None
            self._turns.pop(target, None)
            if target.group not in self._warned:
                self._warned.add(target.group)
                log.warning("nothing is reported of %s: %s", target, error)


def _of_candidates(core: CacheCore) -> Dict[Target, Said]:
    """What there is to say of each change request with a candidate."""
    all_said: Dict[Target, Said] = {}
    if not core.is_confirmed:
        return all_said
    for config in list(core.configs.values()):
        if config.variant is None:
            continue
        target = Target(config.variant)
        before = all_said.get(target)
        if before is None or before.reason is None:
            all_said[target] = Said(_reason(core, config))
    return all_said


def _of_refused(core: CacheCore) -> Dict[Target, Said]:
    """What there is to say of configs outside rollouts that a model refuses, of those that the program has read."""
    all_said: Dict[Target, Said] = {}
    if not core.is_confirmed:
        return all_said
    for typed in core.all_typed():
        for key in typed.looked_at():
            config = core.configs.get((typed.definition, key))
            target = Target(None, typed.definition, key)
            if config is None or config.variant is not None or target in all_said:
                continue
            reason = _reason(core, config)
            if reason is not None and len(all_said) < _CONFIGS_MAX:
                all_said[target] = Said(reason, config.revision or 0)
    return all_said


def _reason(core: CacheCore, config: Any) -> Optional[str]:
    for typed in core.all_typed():
        error = typed.refusal(config) if typed.definition == config.definition else None
        if error is not None:
            # The places and no values: those may be secret, and others read the reason.
            told = f"{config.definition}/{config.key} does not fit "
            try:
                places = ", ".join(path or "/" for path in error.paths) or "some place"
                told += f"{typed.model.__name__} at {places}"
            except Exception:  # noqa: BLE001 (the error, and the model, are the program's)
                told += "its model"
            # A node refuses characters that nobody sees.
            seen = "".join(each if each.isprintable() else " " for each in told)
            return seen.encode()[:_DETAIL_BYTES_MAX].decode(errors="ignore")
    return None
