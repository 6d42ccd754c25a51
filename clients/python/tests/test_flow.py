"""One call with all its attempts, without a network: what is sent where, and what is concluded."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Union

import pytest

from concord_client import Conflict, Forbidden, Invalid, NotFound, RateLimited, Unavailable, UnknownOutcome
from concord_client._flow import RESEND_WINDOW_S, Answer, Context, Failure, Pause, Request, Response, Send, call
from concord_client._json import dumps

A, B, C = "http://a", "http://b", "http://c"
READ = Request("GET", "/x")
KEYED = Request("PUT", "/x", is_write=True, idempotency_key="k")
PLAIN = Request("POST", "/x", is_write=True)
REFUSED_CONNECTION = Failure("refused", False)
LOST = Failure("lost", True)


def answer(status: int, body: Any = None, headers: Optional[Dict[str, str]] = None) -> Response:
    return Response(status, headers or {}, b"" if body is None else dumps(body))


def refusal(status: int, code: str, headers: Optional[Dict[str, str]] = None) -> Response:
    return answer(status, {"errors": [{"type": "t", "code": code, "msg": "m"}]}, headers)


OK = answer(200, {"data": 1})
UNAVAILABLE = refusal(503, "unavailable")


class Script:
    """Plays the nodes: each reply is for the next attempt, and takes as long as `takes_s` says."""

    def __init__(self, *replies: Union[Response, Failure], takes_s: float = 0.0) -> None:
        self.replies, self.takes_s, self.now = list(replies), takes_s, 100.0
        self.sent: List[str] = []
        self.pauses: List[float] = []
        self.timeouts: List[float] = []
        self.context = Context([A, B, C], 30.0, 5.0, lambda: self.now, lambda: 1.0)

    def run(self, request: Request, timeout_s: Optional[float] = None) -> Answer:
        flow = call(self.context, request, timeout_s)
        effect: Any = next(flow)
        while True:
            result = None
            if isinstance(effect, Pause):
                self.pauses.append(effect.seconds)
                self.now += effect.seconds
            elif isinstance(effect, Send):
                self.sent.append(effect.node)
                self.timeouts.append(effect.silence_s)
                self.now += min(self.takes_s, effect.silence_s)
                result = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
            try:
                effect = flow.send(result)
            except StopIteration as end:
                found: Answer = end.value
                return found


def test_a_read_asks_the_next_node_at_once_and_stays_there() -> None:
    script = Script(REFUSED_CONNECTION, LOST, OK)
    assert script.run(READ).data == 1
    assert script.sent == [A, B, C]
    assert script.pauses == []
    script.run(READ)
    assert script.sent[-1] == C


def test_between_two_rounds_there_is_a_pause_that_grows() -> None:
    script = Script(*[REFUSED_CONNECTION] * 9, OK)
    script.run(READ)
    assert script.sent == [A, B, C] * 3 + [A]
    assert script.pauses == [0.05, 0.1, 0.2]


def test_a_node_says_how_long_to_wait() -> None:
    slow = refusal(503, "unavailable", {"retry-after": "3"})
    script = Script(slow, UNAVAILABLE, UNAVAILABLE, OK)
    script.run(KEYED)
    assert script.pauses == [3.0]


def test_a_write_that_no_node_took_is_unavailable() -> None:
    for reply in (REFUSED_CONNECTION, UNAVAILABLE):
        for request in (KEYED, PLAIN):
            script = Script(reply)
            with pytest.raises(Unavailable) as caught:
                script.run(request)
            assert caught.value.attempts
            assert script.now <= 130.0


def test_too_many_requests_until_the_end_say_so() -> None:
    with pytest.raises(RateLimited):
        Script(refusal(429, "overloaded")).run(KEYED)


def test_a_write_with_a_key_is_sent_again_and_its_success_is_success() -> None:
    for first in (LOST, refusal(504, "outcome_unknown"), refusal(500, "internal_error"), answer(502)):
        script = Script(first, OK)
        assert script.run(KEYED).data == 1
        assert len(script.sent) == 2


def test_a_write_without_a_key_is_not_sent_again_once_it_may_be_applied() -> None:
    script = Script(LOST, OK)
    with pytest.raises(UnknownOutcome) as caught:
        script.run(PLAIN)
    assert script.sent == [A]
    assert caught.value.idempotency_key is None
    assert Script(REFUSED_CONNECTION, OK).run(PLAIN).data == 1


@pytest.mark.parametrize("last", [REFUSED_CONNECTION, UNAVAILABLE, refusal(429, "overloaded"), LOST])
def test_after_a_copy_of_unknown_outcome_nothing_else_makes_it_a_failure(last: Union[Response, Failure]) -> None:
    script = Script(LOST, last)
    with pytest.raises(UnknownOutcome) as caught:
        script.run(KEYED)
    assert caught.value.idempotency_key == "k"
    assert caught.value.attempts[0].startswith(A) or len(caught.value.attempts) > 3


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (refusal(409, "config_exists"), Conflict),
        (refusal(404, "config_not_found"), NotFound),
        (refusal(409, "unique_taken"), Conflict),
    ],
)
def test_a_refusal_that_the_cluster_remembers_decides_earlier_copies(reply: Response, kind: Any) -> None:
    with pytest.raises(kind):
        Script(LOST, reply).run(KEYED)


@pytest.mark.parametrize(
    "reply",
    [
        refusal(401, "unauthorized"),
        refusal(403, "forbidden"),
        refusal(422, "data_invalid"),
        refusal(404, "definition_not_found"),
        refusal(409, "patch_test_failed"),
        refusal(507, "storage_full"),
    ],
)
def test_a_refusal_of_the_request_says_nothing_of_earlier_copies(reply: Response) -> None:
    with pytest.raises(UnknownOutcome) as caught:
        Script(LOST, reply).run(KEYED)
    assert caught.value.refusal is not None
    assert caught.value.refusal.status == reply.status


def test_refusals_are_raised_at_once() -> None:
    for reply, kind in ((refusal(422, "data_invalid"), Invalid), (refusal(403, "forbidden"), Forbidden)):
        script = Script(reply)
        with pytest.raises(kind):
            script.run(KEYED)
        assert len(script.sent) == 1


def test_what_stands_between_does_not_say_that_nothing_was_applied() -> None:
    for status in (400, 408, 429, 502, 503, 504, 302):
        with pytest.raises(UnknownOutcome):
            Script(answer(status, {"from": "a proxy"})).run(PLAIN)
        assert Script(answer(status), OK).run(READ).data == 1


def test_an_answer_that_was_cut_off_is_no_success() -> None:
    cut = Response(200, {}, b'{"data": ')
    with pytest.raises(UnknownOutcome):
        Script(cut).run(PLAIN)
    assert Script(cut, OK).run(KEYED).data == 1
    assert Script(cut, OK).run(READ).data == 1


def test_a_node_that_hangs_does_not_take_the_time_of_the_others() -> None:
    script = Script(LOST, OK, takes_s=60.0)
    script.run(KEYED)
    assert script.timeouts == [5.0, 5.0]
    script = Script(OK)
    script.run(PLAIN)
    assert script.timeouts == [30.0]


def test_copies_are_sent_only_while_the_cluster_certainly_remembers_the_first() -> None:
    script = Script(LOST, UNAVAILABLE, takes_s=0.5)
    with pytest.raises(UnknownOutcome):
        script.run(KEYED, timeout_s=300.0)
    assert script.now <= 100.5 + RESEND_WINDOW_S
    script = Script(UNAVAILABLE)
    with pytest.raises(Unavailable):
        script.run(KEYED, timeout_s=300.0)
    assert script.now > 350.0


def test_the_last_copy_that_may_be_sent_has_the_time_that_is_left() -> None:
    script = Script(LOST, LOST, OK, takes_s=60.0)
    assert script.run(KEYED).data == 1
    assert script.timeouts == [5.0, 5.0, 20.0]


def test_no_copy_is_sent_after_a_loss_that_was_noticed_late() -> None:
    script = Script(LOST, OK, takes_s=60.0)
    script.context.attempt_timeout_s = 60.0
    with pytest.raises(UnknownOutcome):
        script.run(KEYED, timeout_s=300.0)
    assert script.sent == [A]


def test_not_modified_is_no_success_of_a_write() -> None:
    with pytest.raises(UnknownOutcome):
        Script(answer(304)).run(PLAIN)
    assert Script(answer(304), OK).run(KEYED).data == 1


def test_the_highest_revision_is_noted() -> None:
    script = Script(
        answer(200, {"data": 1}, {"x-concord-revision": "9"}), answer(304, None, {"x-concord-revision": "7"})
    )
    script.run(READ)
    assert script.run(READ).status == 304
    assert script.context.revision == 9
