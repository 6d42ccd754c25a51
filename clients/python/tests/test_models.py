"""What is written of a model or a dataclass is what its definition asks for, and what it is read back from."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import json
import pathlib
import uuid
from decimal import Decimal
from typing import Any, Dict, List, Optional, Set, Tuple

import pydantic
import pytest
from pydantic import AliasChoices, AliasPath, ConfigDict, Field, SecretBytes, SecretStr

from concord_client import ModelError, op, schema_of
from concord_client._json import dumps, loads
from concord_client._models import from_data, to_data


class Login(pydantic.BaseModel):
    user: str
    pin: SecretStr


class Database(pydantic.BaseModel):
    host: str
    password: SecretStr
    key: Optional[SecretBytes] = None
    logins: List[Login] = []
    by_name: Dict[str, SecretStr] = {}
    either: Optional[Tuple[SecretStr, int]] = None
    opened: Set[SecretStr] = set()


SECRETS = {
    "host": "db1",
    "password": "hunter2",
    "key": "bytes",
    "logins": [{"user": "a", "pin": "1"}, {"user": "b", "pin": ""}],
    "by_name": {"x": "y"},
    "either": ["z", 7],
    "opened": ["p", "q"],
}


def test_secrets_are_written_as_they_are() -> None:
    database = from_data(Database, SECRETS)
    assert "hunter2" not in repr(database)
    database.host = "db2"
    assert to_data(database) == {**SECRETS, "host": "db2"}
    assert op.put("d", "k", {"inside": [database]})["data"]["inside"][0]["password"] == "hunter2"
    assert to_data({"plain": SecretStr("s"), "list": [SecretBytes(b"t")]}) == {"plain": "s", "list": ["t"]}


def test_secrets_in_dataclasses_and_roots_are_written_as_they_are() -> None:
    @dataclasses.dataclass
    class Plain:
        password: SecretStr

    @pydantic.dataclasses.dataclass
    class Checked:
        password: SecretStr
        named: SecretStr = Field(alias="namedSecret")

    class Root(pydantic.RootModel[List[SecretStr]]):
        pass

    class Outer(pydantic.BaseModel):
        model_config = ConfigDict(extra="allow")
        plain: Plain
        root: Root

    data = {"plain": {"password": "a"}, "root": ["b"]}
    assert to_data(from_data(Outer, data)) == data
    assert to_data(Plain(SecretStr("c"))) == {"password": "c"}
    checked = {"password": "d", "namedSecret": "e"}
    assert to_data(from_data(Checked, checked)) == checked
    assert to_data(Outer(plain=Plain(SecretStr("a")), root=Root([]), more=SecretStr("f")))["more"] == "f"  # type: ignore[call-arg]


def test_a_serializer_that_masks_a_secret_is_no_data() -> None:
    class Masked(pydantic.BaseModel):
        password: SecretStr

        @pydantic.field_serializer("password")
        def mask(self, value: SecretStr) -> str:
            return str(value)

    class Sealed(pydantic.BaseModel):
        password: SecretStr

        @pydantic.field_serializer("password")
        def seal(self, value: SecretStr) -> str:
            return "sealed:" + value.get_secret_value()

    class Whole(pydantic.BaseModel):
        password: SecretStr

        @pydantic.model_serializer
        def mask(self) -> Dict[str, Any]:
            return {"shown": f"password={self.password}"}

    assert to_data(Masked(password=SecretStr("a"))) == {"password": "a"}
    assert to_data(Sealed(password=SecretStr("a"))) == {"password": "sealed:a"}
    with pytest.raises(ModelError, match="masks a secret"):
        to_data(Whole(password=SecretStr("a")))
    # Ten asterisks of nobody's secret are a text.
    assert to_data(from_data(Text, {"text": "**********"})) == {"text": "**********"}


class Text(pydantic.BaseModel):
    text: str


def test_a_field_that_is_left_out_of_dumps_is_not_lost() -> None:
    class Hidden(pydantic.BaseModel):
        host: str
        password: str = Field(exclude=True)
        cached: Optional[str] = Field(default=None, exclude=True)

    data = {"host": "a", "password": "b"}
    read = from_data(Hidden, data)
    read.host = "c"
    assert to_data(read) == {"host": "c", "password": "b"}


def test_the_schema_and_the_data_of_a_model_agree() -> None:
    class Box(pydantic.BaseModel):
        model_config = ConfigDict(extra="forbid")
        width: int = Field(validation_alias="in_width", serialization_alias="out_width")
        size: int = Field(5, validation_alias=AliasChoices(AliasPath("x", 0), "in_size", "size"))
        plain: int = Field(1, alias="Plain")

        @pydantic.computed_field  # type: ignore[prop-decorator]
        @property
        def area(self) -> int:
            return self.width * self.size

    written = to_data(Box(in_width=2, in_size=3, Plain=4))  # type: ignore[call-arg]
    assert written == {"in_width": 2, "in_size": 3, "Plain": 4}
    assert set(schema_of(Box)["properties"]) == set(written)
    assert to_data(from_data(Box, written)) == written

    class Deep(pydantic.BaseModel):
        first: int = Field(validation_alias=AliasPath("list", 0))

    with pytest.raises(ModelError, match="inside of another member"):
        to_data(from_data(Deep, {"list": [1]}))


def test_members_that_a_model_does_not_name_keep_their_numbers() -> None:
    class Open(pydantic.BaseModel):
        model_config = ConfigDict(extra="allow")
        name: str
        anything: Any = None
        price: Decimal = Decimal("1.0")

    text = b'{"name":"a","anything":[1e400],"price":2.5,"more":{"v":0.1000000000000000055511151231257827}}'
    written = json.loads(dumps(to_data(from_data(Open, loads(text)))), parse_float=str)
    assert written["anything"] == ["1E+400"]
    assert written["more"] == {"v": "0.1000000000000000055511151231257827"}


class Color(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Job:
    at: datetime.datetime
    day: datetime.date
    clock: datetime.time
    every: datetime.timedelta
    id: uuid.UUID
    tags: Set[str]
    price: Decimal
    path: pathlib.Path
    color: Color
    pair: Tuple[int, str]
    count: int
    rate: float
    until: Optional[datetime.datetime] = None


JOB = {
    "at": "2026-11-26T12:00:00.500000Z",
    "day": "2026-11-26",
    "clock": "12:30:00",
    "every": "P1DT2H0.5S",
    "id": "12345678-1234-5678-1234-567812345678",
    "tags": ["a", "b"],
    "price": Decimal("0.10"),
    "path": "/etc/x",
    "color": "red",
    "pair": [1, "one"],
    "count": 7,
    "rate": 1.5,
    "until": None,
}


def test_a_dataclass_has_what_its_schema_has() -> None:
    job = from_data(Job, JOB)
    assert (job.at.utcoffset(), job.every) == (datetime.timedelta(0), datetime.timedelta(days=1, hours=2, seconds=0.5))
    assert to_data(job) == JOB
    # As pydantic reads the same data, by the same schema.
    assert pydantic.TypeAdapter(Job).validate_python(JOB) == job
    assert set(schema_of(Job)["properties"]) == set(JOB)
    for change in ({"at": "noon"}, {"id": "x"}, {"every": "P"}, {"pair": [1]}, {"price": "NaN"}, {"day": 7}):
        with pytest.raises(ModelError) as caught:
            from_data(Job, {**JOB, **change})
        assert caught.value.paths[0].startswith("/" + next(iter(change)))


@pytest.mark.parametrize("seconds", [0, 1, 59.25, -3661, 86_400 * 400 + 0.000001])
def test_durations_are_read_as_they_are_written(seconds: float) -> None:
    @dataclasses.dataclass
    class Every:
        every: datetime.timedelta

    value = Every(datetime.timedelta(seconds=seconds))
    written = to_data(value)
    assert from_data(Every, written) == value
    assert pydantic.TypeAdapter(Every).validate_python(written) == value


def test_numbers_that_are_equal_are_read_as_the_type_says() -> None:
    data = loads(b'{"count": 7.0, "rate": 0.1000000000000000055511151231257827, "price": "2.10"}')
    job = from_data(Job, {**JOB, **data})
    assert (job.count, type(job.count), job.rate, job.price) == (7, int, 0.1, Decimal("2.10"))
    assert from_data(Job, {**JOB, "count": Decimal("1e20")}).count == 10**20
    for change in ({"count": 7.5}, {"count": Decimal("1e400000")}, {"rate": Decimal("1e400")}, {"count": True}):
        with pytest.raises(ModelError):
            from_data(Job, {**JOB, **change})


def test_a_strict_model_reads_what_it_wrote() -> None:
    class Strict(pydantic.BaseModel):
        model_config = ConfigDict(strict=True)
        at: datetime.datetime
        id: uuid.UUID
        tags: Set[str]

    made = Strict(at=datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc), id=uuid.UUID(int=7), tags={"b", "a"})
    assert from_data(Strict, to_data(made)) == made
    assert to_data(made)["tags"] == ["a", "b"]


@pytest.mark.parametrize(
    ("annotation", "good", "bad"),
    [
        (Field(), ["0", "-1.5", "10", "1E-7"], ["abc", "", ".", "1.", "NaN", "+", "1\n"]),
        (Field(gt=0), ["0.5", "3"], ["-5.0", "abc"]),
        (Field(ge=0, max_digits=6, decimal_places=2), ["1234.56", "0", "00012.3400"], ["-1", "12345", "1.234", "1e5"]),
        (Field(max_digits=3), ["999", "-1.25"], ["1000", "x"]),
        (Field(decimal_places=0), ["-12"], ["1.5"]),
        (Field(lt=0), ["-2.5"], ["2.5"]),
    ],
)
def test_the_text_of_a_decimal_has_a_pattern(annotation: Any, good: List[str], bad: List[str]) -> None:
    import re  # noqa: PLC0415

    model = pydantic.create_model("Price", price=(Decimal, annotation))
    choices = schema_of(model)["properties"]["price"]["anyOf"]
    pattern = next(choice["pattern"] for choice in choices if choice["type"] == "string")
    # In JSON Schema `$` is the end, not the place before a last line end.
    matcher = re.compile(pattern.replace("$", r"\Z"))
    assert [text for text in good if not matcher.search(text)] == []
    assert [text for text in bad if matcher.search(text)] == []
    for text in good:
        written = to_data(model(price=Decimal(text)))["price"]
        assert matcher.search(written), written
