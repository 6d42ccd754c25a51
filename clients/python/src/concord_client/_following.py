"""Following the changes: the state to begin with, then long polls, each from where the last one ended.

A poll asks for the changes from a revision on, at whichever node answers, so that a lost connection or a killed node
costs nothing but time.

The nodes may be those of another cluster from one moment to the next: of one that was restored from a backup. Its id is
another one, which each answer tells, or its revision is lower than `position`. Then there is nothing to go on from, and
that is `Expired`.

**Invariants:** every change is handed out once and in order. `position` is a revision up to which everything was handed
out. Nothing of another cluster is handed out behind it.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

from . import _records as records
from ._errors import Expired, ProtocolError, RateLimited, Unavailable, other_cluster, refusal
from ._flow import Answer, Context, Flow, Item, Items, Pause, call, expect
from ._json import loads
from ._records import Event, State
from ._requests import ROOT, Filters, Params, filter_params, read

_STATE_SILENCE_S = 10.0
"""How long the next part of a state may take."""
_GRACE_S = 3.0
"""How much longer than it waits a poll may take."""
_EARLY_S = 0.2
_CLUSTER = "x-concord-cluster"
_PAUSE_FIRST_S, _PAUSE_MAX_S = 0.1, 5.0


class StateSink:
    """Puts a state together from the parts of an event stream."""

    def __init__(self) -> None:
        self.revision: Optional[int] = None
        self.definitions: List[Dict[str, Any]] = []
        self.configs: List[Dict[str, Any]] = []
        self.is_complete = False
        self.error: Any = None
        self._rest = b""
        self._name, self._data = "", b""

    def feed(self, chunk: bytes) -> bool:
        lines = (self._rest + chunk).split(b"\n")
        self._rest = lines.pop()
        return any(self._line(line.rstrip(b"\r")) for line in lines)

    def _line(self, line: bytes) -> bool:
        if line.startswith(b"event:"):
            self._name = line[6:].strip().decode()
        elif line.startswith(b"data:"):
            self._data += line[5:].strip()
        elif not line and self._name:
            name, data = self._name, self._data
            self._name, self._data = "", b""
            return self._event(name, data)
        return False

    def _event(self, name: str, data: bytes) -> bool:
        if name == "error":
            self.error = loads(data)
            return True
        if name == "state":
            part = loads(data)
            self.revision = part["revision"]
            self.definitions += part["definitions"]
            self.configs += part["configs"]
            self.is_complete = part["complete"]
        return self.is_complete


class Following:
    """What is followed, and how far."""

    def __init__(
        self,
        context: Context,
        definitions: Sequence[str],
        configs: Sequence[str] = (),
        filters: Optional[Filters] = None,
        search: str = "",
        prev: bool = False,
    ) -> None:
        self.context = context
        self.params: Params = [("definition", name) for name in definitions]
        self.params += [("config_key", key) for key in configs] + filter_params(filters)
        if search:
            self.params.append(("search", search))
        self.prev: Params = [("prev", "true")] if prev else []
        self.position = 0
        self.cluster: Optional[str] = None
        """The id of the cluster that the position is of, where a node has told it."""

    def state(self) -> Flow[Tuple[State, float]]:
        """All that there is, and when it was asked for. Raises `Unavailable` when it breaks off at each node."""
        for _ in self.context.nodes:
            sink = StateSink()
            request = read(f"{ROOT}/watch", [*self.params, ("initial", "true")], sink=sink, accept="text/event-stream")
            answer = yield from call(
                self.context, request, max(self.context.timeout_s, _STATE_SILENCE_S), _STATE_SILENCE_S
            )
            if sink.error is not None:
                told = sink.error.get("errors", [{}])[0].get("type", "")
                status = {"expired_error": 410, "unavailable_error": 503, "rate_limited": 429}.get(told, 0)
                if not status:
                    kind = {"unauthorized_error": 401, "forbidden_error": 403}.get(told, 422)
                    raise refusal(kind, sink.error, node=answer.node, headers=answer.headers)
            if sink.is_complete and sink.revision is not None:
                if self.context.environment is not None:
                    self.context.environment.leave_event({"definitions": sink.definitions, "configs": sink.configs})
                self.position, self.cluster = sink.revision, answer.headers.get(_CLUSTER)
                definitions = tuple(records.definition(each) for each in sink.definitions)
                configs, unreadable = records.configs(sink.configs, answer)
                return State(sink.revision, definitions, configs, answer.node, unreadable), answer.sent_at
            # It broke off half-way: another node, from the beginning.
            self.context.preferred = (self.context.preferred + 1) % len(self.context.nodes)
            yield Pause(_PAUSE_FIRST_S)
        raise Unavailable("the state broke off at each node")

    def poll(self, wait_s: int) -> Flow[List[Event]]:
        """The changes after the position; none when none came in time."""
        params = [*self.params, *self.prev, ("from", str(self.position + 1)), ("wait", str(wait_s))]
        timeout_s = wait_s + self.context.timeout_s
        answer = yield from call(self.context, read(f"{ROOT}/changes", params), timeout_s, wait_s + _GRACE_S)
        following = self._next_from(answer)
        listed = [] if answer.status == 304 else expect(answer, dict)["events"]
        events = [records.event(each, answer.node) for each in listed if each["revision"] > self.position]
        if not events and self.context.clock() - answer.sent_at < min(wait_s, _EARLY_S):
            # Something between has not waited. Asking again at once would be a storm.
            yield Pause(_EARLY_S)
        self.position = max(self.position, following - 1)
        return events

    def confirm(self) -> Flow[Tuple[int, float]]:
        """A revision, and a time by which everything acknowledged has at most that revision."""
        # Without `from`, a poll tells the revision that a linearizable read sees. It returns no earlier changes.
        answer = yield from call(self.context, read(f"{ROOT}/changes", [*self.params, ("wait", "0")]))
        revision = self._next_from(answer) - 1
        # A cluster does not go back: what was known before the question is in a linearizable answer.
        if revision < self.position:
            raise other_cluster(answer.node)
        return revision, answer.sent_at

    def _next_from(self, answer: Answer) -> int:
        """From where a poll goes on, if it is of the cluster of the position."""
        following, cluster = answer.number("x-concord-next-from"), answer.headers.get(_CLUSTER)
        if following is None:
            raise ProtocolError(f"{answer.node} answered a poll without X-Concord-Next-From")
        if cluster is not None:
            if self.cluster is not None and cluster != self.cluster:
                raise other_cluster(answer.node)
            self.cluster = cluster
        return following

    def watch(
        self, from_revision: Optional[int], initial: bool, wait_s: int, idle_events: bool
    ) -> Items[Union[Event, State]]:
        if initial and from_revision is not None:
            raise ValueError("a watch begins with the present state or with a revision, not with both")
        pause_s, is_begun = _PAUSE_FIRST_S, False
        if from_revision is not None:
            self.position, is_begun = from_revision - 1, True
        while True:
            try:
                if not is_begun:
                    if initial:
                        state, _ = yield from self.state()
                        yield Item(state)
                    else:
                        self.position, _ = yield from self.confirm()
                    is_begun = True
                events = yield from self.poll(wait_s)
            except Expired:
                if not initial or not is_begun:
                    raise
                is_begun = False
                # What is expired at once again would be read without an end.
                yield Pause(pause_s * (0.5 + self.context.jitter() / 2))
                pause_s = min(pause_s * 2, _PAUSE_MAX_S)
                continue
            except (Unavailable, RateLimited):
                # Nobody answers. The changes are retained; they come when somebody does.
                yield Pause(pause_s * (0.5 + self.context.jitter() / 2))
                pause_s = min(pause_s * 2, _PAUSE_MAX_S)
                continue
            pause_s = _PAUSE_FIRST_S
            for event in events:
                yield Item(event)
            if not events and idle_events:
                yield Item(Event(self.position, ()))
