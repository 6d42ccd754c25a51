"""Environments: the cases that all clients share, and what a client does with them, without a network."""

from __future__ import annotations

import json
import pathlib
from typing import Any, Dict, Iterator, List

import httpx
import pytest

from both import both
from concord_client import AsyncClient, ChangeRequired, Client, Conflict, EnvironmentFrozen
from concord_client._environment import Environment
from concord_client._file import UnusableFile, load, save
from concord_client._flow import Request
from concord_client._json import dumps, loads

CASES: Dict[str, Any] = json.loads((pathlib.Path(__file__).resolve().parents[2] / "cases.json").read_text())[
    "environments"
]


def environment(name: str = CASES["name"]) -> Environment:
    made = Environment.of(name)
    assert made is not None
    return made


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_a_client_is_of_an_environment_or_is_not_made(kind: Any) -> None:
    for name in CASES["names"]:
        assert kind("http://a", "k", environment=name).environment == name
    for name in [None, *CASES["without_prefix"]]:
        assert kind("http://a", "k", environment=name).environment is None
    for name in CASES["refused"]:
        with pytest.raises(ValueError, match="is not the name of an environment"):
            kind("http://a", "k", environment=name)


def test_the_variable_names_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONCORD_API_KEY", "k")
    for text, expected in [("prod", "prod"), ("default", None)]:
        monkeypatch.setenv("CONCORD_ENVIRONMENT", text)
        assert Client.from_env().environment == expected
    assert Client.from_env(environment="dev").environment == "dev"
    # An empty one is a mistake of a deployment: without a prefix, the program would have the configs of all.
    for text in ("a.b", ""):
        monkeypatch.setenv("CONCORD_ENVIRONMENT", text)
        with pytest.raises(ValueError, match="environment"):
            Client.from_env()


@pytest.mark.parametrize("case", CASES["requests"], ids=lambda case: f"{case['method']} {case['path']}")
def test_requests_have_the_whole_keys(case: Dict[str, Any]) -> None:
    body = dumps(case["body"]) if "body" in case else None
    sent = environment().enter(Request(case["method"], case["path"], body=body))
    assert sent.target == case["sent"]
    expected = case.get("sent_body", case.get("body"))
    assert (None if sent.body is None else loads(sent.body)) == expected


@pytest.mark.parametrize("case", CASES["responses"], ids=lambda case: f"{case['method']} {case['path']}")
def test_answers_have_the_keys_that_were_asked_for(case: Dict[str, Any]) -> None:
    data = json.loads(json.dumps(case["data"]))
    environment().leave(case["method"], case["path"], data)
    assert data == case.get("shown", case["data"])


def test_events_have_the_keys_that_were_asked_for() -> None:
    for case in CASES["events"]:
        data = json.loads(json.dumps(case["data"]))
        environment().leave_event(data)
        assert data == case["shown"]


@pytest.mark.parametrize("case", CASES["next_pages"], ids=lambda case: case["link"])
def test_the_next_page_is_asked_for_like_the_first(case: Dict[str, Any]) -> None:
    of = environment(case["environment"])
    left = of.left(case["link"])
    assert left == case["shown"]
    assert of.enter(Request("GET", left)).target == case["sent"]


def test_digits_and_the_order_of_members_stay() -> None:
    data = b'{"z":7.0,"a":1.25,"m":123456789012345678901234567890}'
    text = b'{"operations":[{"op":"put_config","config_definition_key":"d","data":%s}]}' % data
    sent = environment().enter(Request("POST", "/api/v1/batch", body=text))
    assert sent.body == text.replace(b'"d"', b'"prod.d"')


@pytest.fixture(params=["threads", "asyncio"])
def recorded(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A client of `prod` whose requests are answered with a page that names another one, and the requests."""
    sent: List[httpx.Request] = []

    def answer(asked: httpx.Request) -> httpx.Response:
        sent.append(asked)
        at = {"created_at": "2026-01-01T00:00:00Z", "modified_at": "2026-01-01T00:00:00Z"}
        record = {"config_definition_key": "prod.limits", "config_key": f"k{len(sent)}", "data": {}, **at}
        page = {"results": [record], "meta": {"total": 2}}
        link = {"link": f'<{asked.url.path}?definition=prod.li*&cursor=c>; rel="next"'} if len(sent) == 1 else {}
        return httpx.Response(200, json={"status": "SUCCESS", "data": page}, headers=link)

    transport = httpx.MockTransport(answer)
    for client in both(request.param, "http://a", "k", environment="prod", transport=transport):
        yield client, sent


def test_all_pages_are_of_the_environment(recorded: Any) -> None:
    client, sent = recorded
    found = list(client.list_across(["li*"], page_size=1))
    assert [(each.definition, each.key) for each in found] == [("limits", "k1"), ("limits", "k2")]
    assert [each.url.params.get_list("definition") for each in sent] == [["prod.li*"], ["prod.li*"]]


def test_a_file_of_one_environment_is_not_used_for_another(tmp_path: pathlib.Path) -> None:
    path = str(tmp_path / "cache.json")
    names = [None, "prod", "staging"]
    scopes = [Client("http://a", "k", environment=name).cache("limits")._core.scope for name in names]
    for written in scopes:
        save(path, {"scope": written, "configs": []})
        for asked in scopes:
            if asked == written:
                assert load(path, asked) is not None
            else:
                with pytest.raises(UnusableFile, match="of another environment"):
                    load(path, asked)


def test_rules_of_environments_have_errors_of_their_own() -> None:
    def refused(code: str) -> Client:
        calls: List[str] = []

        def answer(asked: httpx.Request) -> httpx.Response:
            calls.append(asked.url.path)
            assert len(calls) == 1, "a retry would get the same"
            items = [{"type": "conflict_error", "code": code, "msg": "m"}]
            return httpx.Response(409, json={"status": "FAILURE", "errors": items})

        return Client(["http://a", "http://b"], "k", transport=httpx.MockTransport(answer))

    for code, kind in [("change_required", ChangeRequired), ("environment_frozen", EnvironmentFrozen)]:
        with pytest.raises(kind) as caught:
            refused(code).put("d", "k", {})
        assert isinstance(caught.value, Conflict)
        assert (caught.value.code, caught.value.status) == (code, 409)
