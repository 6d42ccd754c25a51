"""The parts that a caller meets: JSON, models, keys, filters, errors, settings, the file."""

from __future__ import annotations

import copy
import dataclasses
import enum
import json
import os
import pathlib
import pickle
from decimal import Decimal
from typing import Any, Dict, List, Literal, Optional, Union

import httpx
import pydantic
import pytest

from concord_client import Client, Invalid, ModelError, UnknownOutcome, op, schema_of
from concord_client._connect import Credential, arguments_of_environment, failure
from concord_client._errors import refusal
from concord_client._file import UnusableFile, load, save
from concord_client._flow import Context
from concord_client._json import dumps, frozen, loads, thawed
from concord_client._models import from_data, to_data
from concord_client._operations import Operations
from concord_client._requests import config_path, filter_params, target, write

# --- JSON ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "7.0",
        "-0.0",
        "123456789012345678901234567890",
        "0.1000000000000000055511151231257827",
        "1E+400",
        "1e-400",
        "0.1",
    ],
)
def test_numbers_keep_value_and_kind(text: str) -> None:
    value = loads(text)
    back = dumps({"a": [value]}).decode()[6:-2]
    assert Decimal(back) == Decimal(text)
    assert isinstance(value, int) == ("." not in text and "E" not in text.upper())
    assert back.startswith("-") == text.startswith("-")


def test_what_a_float_holds_is_a_float() -> None:
    assert [type(value) for value in loads("[0.1, 1e3, 5.5]")] == [float] * 3
    assert type(loads("0.12345678901234567890")) is Decimal


def test_what_is_no_json_is_refused() -> None:
    for text in ("NaN", "Infinity", "[1,"):
        with pytest.raises(ValueError):
            loads(text)
    for value in (float("nan"), [Decimal("Infinity")]):
        with pytest.raises(ValueError):
            dumps(value)
    with pytest.raises(TypeError):
        dumps({1: Decimal(1)})


def test_data_of_the_cache_cannot_be_changed() -> None:
    data = frozen({"a": {"b": [1, {"c": 2}]}})
    changes: List[Any] = [
        lambda: data.update(x=1),
        lambda: data["a"].__setitem__("b", 1),
        lambda: data["a"]["b"].append(1),
        lambda: data["a"]["b"].sort(),
        lambda: data["a"].pop("b"),
        lambda: data.setdefault("z", 1),
        lambda: data["a"]["b"][1].clear(),
    ]
    for change in changes:
        with pytest.raises(TypeError, match="deepcopy"):
            change()
    with pytest.raises(TypeError):
        data |= {"x": 1}
    with pytest.raises(TypeError):
        del data["a"]
    plain = {"a": {"b": [1, {"c": 2}]}}
    assert data == plain
    assert json.loads(json.dumps(data)) == plain
    for copied in (copy.deepcopy(data), thawed(data)):
        copied["a"]["b"][1]["c"] = 3
        assert data == plain
    assert pickle.loads(pickle.dumps(data)) == plain
    assert type(copy.copy(data)) is dict


# --- Models --------------------------------------------------------------------------------------------------------


class Tier(enum.Enum):
    FREE = "free"
    PRO = "pro"


@dataclasses.dataclass
class Window:
    start: int
    end: Optional[int] = None


@dataclasses.dataclass
class Plan:
    tier: Tier
    windows: List[Window]
    labels: Dict[str, str] = dataclasses.field(default_factory=dict)
    rate: float = 1.0
    size: Union[int, str] = 1
    mode: Literal["on", "off"] = "on"


class Limits(pydantic.BaseModel):
    plan: str = "free"
    seats: int = pydantic.Field(1, ge=1)


def test_a_dataclass_is_read_and_written() -> None:
    data = {"tier": "pro", "windows": [{"start": 1}, {"start": 2, "end": 3}], "rate": 2, "size": "x", "unknown": 1}
    plan = from_data(Plan, data)
    assert plan == Plan(Tier.PRO, [Window(1), Window(2, 3)], {}, 2.0, "x")
    assert from_data(Plan, to_data(plan)) == plan


@pytest.mark.parametrize(
    ("data", "path"),
    [
        ({"windows": []}, "/tier"),
        ({"tier": "gold", "windows": []}, "/tier"),
        ({"tier": "pro", "windows": [{"start": True}]}, "/windows/0/start"),
        ({"tier": "pro", "windows": [{"start": 1}, 7]}, "/windows/1"),
        ({"tier": "pro", "windows": [], "labels": {"a": 1}}, "/labels/a"),
        ({"tier": "pro", "windows": [], "size": None}, "/size"),
        ({"tier": "pro", "windows": [], "mode": "both"}, "/mode"),
        ({"tier": "pro", "windows": {}}, "/windows"),
    ],
)
def test_what_does_not_fit_a_dataclass_names_its_place(data: Any, path: str) -> None:
    with pytest.raises(ModelError) as caught:
        from_data(Plan, data)
    assert caught.value.paths == (path,)


def test_pydantic_models_are_read_written_and_make_schemas() -> None:
    assert from_data(Limits, {"seats": 3}) == Limits(seats=3)
    assert to_data(Limits(seats=3)) == {"plan": "free", "seats": 3}
    with pytest.raises(ModelError) as caught:
        from_data(Limits, {"seats": 0})
    assert caught.value.paths == ("/seats",)
    assert schema_of(Limits)["properties"]["seats"]["minimum"] == 1
    assert "windows" in schema_of(Plan)["properties"]
    with pytest.raises(TypeError):
        schema_of(int)


# --- Requests ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["", ".", "..", "a/b", "a?b", "../x", "a b", "ä", "x" * 256, "a\n", "%2e%2e"])
def test_what_is_no_key_never_becomes_a_path(key: str) -> None:
    # `DELETE …/config/..` would name the definition.
    with pytest.raises(Invalid) as caught:
        config_path("limits", key)
    assert caught.value.code == "key_invalid"
    with pytest.raises(Invalid):
        next(Operations(Context(["http://a"])).delete_definition(key))


def test_keys_are_part_of_the_path() -> None:
    assert config_path("a.b", "x~1_-") == "/api/v1/config_definition/a.b/config/x~1_-"


def test_filters_become_parameters() -> None:
    filters = {
        "tier[gte]": 2,
        "team": ["a", "b"],
        "on": True,
        "zip": None,
        "limit": 5,
        "config_key[prefix]": "x",
        "f": 1.5,
    }
    assert filter_params(filters) == [
        ("tier[gte]", "2"),
        ("team", "a"),
        ("team", "b"),
        ("on", "true"),
        ("zip", "null"),
        ("data.limit", "5"),
        ("config_key[prefix]", "x"),
        ("f", "1.5"),
    ]
    assert target("/x", [("a[]&", "1 &")]) == "/x?a[]%26=1%20%26"


def test_each_write_has_an_idempotency_key_of_its_own_and_a_dry_run_has_none() -> None:
    one, other = (write("PUT", "/x", {}, options={}) for _ in range(2))
    assert one.idempotency_key
    assert one.idempotency_key != other.idempotency_key
    assert write("PUT", "/x", {}, options={"idempotency_key": "mine"}).idempotency_key == "mine"
    dry = write("PUT", "/x", {}, options={"dry_run": True})
    assert dry.idempotency_key is None
    assert not dry.is_write
    assert dry.target == "/x?dry_run=true"


def test_options_that_there_are_not_are_refused() -> None:
    with pytest.raises(TypeError, match="if_macth"):
        next(Operations(Context(["http://a"])).put("d", "k", {}, if_macth=1))  # type: ignore[call-arg]
    with pytest.raises(Invalid):
        write("PUT", "/x", {}, options={"reason": "a\r\nb: c"})
    with pytest.raises(Invalid):
        write("PUT", "/x", {}, options={"idempotency_key": "a b"})


def test_a_check_says_one_thing() -> None:
    assert op.check("d", "k", equals=None) == {
        "op": "check_config",
        "config_definition_key": "d",
        "config_key": "k",
        "equals": None,
    }
    with pytest.raises(TypeError):
        op.check("d", "k")
    with pytest.raises(TypeError):
        op.check("d", "k", revision=1, absent=True)


# --- Errors and settings -------------------------------------------------------------------------------------------


def test_a_refusal_has_its_code_and_places() -> None:
    items = [{"type": "validation_error", "code": "data_invalid", "msg": "bad", "loc": ["data", "a/b", 0]}]
    error = refusal(422, {"errors": items}, node="http://a", headers={"x-request-id": "r", "x-concord-revision": "7"})
    assert isinstance(error, Invalid)
    assert (error.code, error.type, error.paths) == ("data_invalid", "validation_error", ("/data/a~1b/0",))
    assert (error.request_id, error.revision, str(error)) == ("r", 7, "422: /data/a~1b/0: bad")
    shape = refusal(422, {"detail": [{"type": "missing", "msg": "required", "loc": ["body", "data"]}]})
    assert (shape.type, shape.paths) == ("missing", ("/body/data",))


def test_errors_can_be_sent_to_another_process() -> None:
    error = UnknownOutcome("text")
    error.idempotency_key = "k"
    back = pickle.loads(pickle.dumps(error))
    assert (str(back), back.idempotency_key) == ("text", "k")


def test_only_errors_before_a_connection_say_that_nothing_was_sent() -> None:
    request = httpx.Request("PUT", "http://a")
    sent = {
        kind: failure(kind("x", request=request)).may_be_applied
        for kind in (
            httpx.ConnectError,
            httpx.ConnectTimeout,
            httpx.PoolTimeout,
            httpx.ReadError,
            httpx.ReadTimeout,
            httpx.WriteError,
            httpx.WriteTimeout,
            httpx.RemoteProtocolError,
        )
    }
    assert [kind for kind, may_be in sent.items() if not may_be] == [
        httpx.ConnectError,
        httpx.ConnectTimeout,
        httpx.PoolTimeout,
    ]


def test_settings_that_cannot_work_are_refused() -> None:
    wrong: List[Any] = ["", "localhost:8101", "ftp://a", "http://user:secret@a", []]
    for nodes in wrong:
        with pytest.raises(ValueError):
            Client(nodes, "k")
    for arguments in ({}, {"key": ""}, {"key": "a b"}, {"key": "a", "key_file": "b"}):
        with pytest.raises(ValueError) as caught:
            Client("http://a", **arguments)  # type: ignore[arg-type]
        assert "a b" not in str(caught.value)


def test_the_key_is_shown_nowhere() -> None:
    with Client("http://a", "very-secret") as client:
        assert "very-secret" not in repr(client) + repr(client._settings)


def test_the_environment_is_that_of_the_command_line() -> None:
    found = arguments_of_environment(
        {"CONCORD_URL": "http://a,http://b", "CONCORD_API_KEY": "k", "CONCORD_API_KEY_FILE": "f"}
    )
    assert (found["nodes"], found["key"], found["key_file"]) == ("http://a,http://b", "k", None)


def test_a_key_in_a_file_is_read_again_when_it_changes(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "key"
    file.write_text("one\nolder\n")
    credential = Credential(None, str(file))
    assert credential.key() == b"one"
    other = tmp_path / "other"
    other.write_text("two\n")
    os.replace(other, file)
    assert credential.key() == b"two"
    file.unlink()
    assert credential.key() == b"two"
    with pytest.raises(OSError):
        Credential(None, str(file))


# --- The file ------------------------------------------------------------------------------------------------------


def test_a_file_is_its_owners_and_comes_back(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "cache.json"
    save(str(path), {"scope": 1, "configs": [Decimal("1e400")]})
    assert path.stat().st_mode & 0o777 == 0o600
    content = load(str(path), 1)
    assert content is not None
    assert content["configs"] == [Decimal("1e400")]
    assert load(str(tmp_path / "absent"), 1) is None
    assert os.listdir(tmp_path) == ["cache.json"]


def test_a_file_that_cannot_be_trusted_is_not_used_and_not_removed(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "cache.json"
    save(str(path), {"scope": 1})
    with pytest.raises(UnusableFile, match="other definitions"):
        load(str(path), 2)
    path.chmod(0o666)
    with pytest.raises(UnusableFile, match="others may write"):
        load(str(path), 1)
    path.chmod(0o600)
    whole = path.read_bytes()
    for damaged in (whole[:-70], whole[:20], b"", whole.replace(b'"scope":1', b'"scope":2')):
        path.write_bytes(damaged)
        with pytest.raises(UnusableFile):
            load(str(path), 1)
    assert path.exists()


def test_a_failed_write_leaves_the_file_as_it_was(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "cache.json"
    save(str(path), {"scope": 1})
    with pytest.raises(ValueError):
        save(str(path), {"scope": float("nan")})
    assert load(str(path), 1) == {"concord_cache": 1, "scope": 1}
    with pytest.raises(OSError):
        save(str(tmp_path / "no" / "folder"), {"scope": 1})
