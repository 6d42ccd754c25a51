"""Models as users of Pydantic 2 write them, their schemas, and Pydantic's verdict on documents.

    pydantic_models.py schemas                      {name: schema} on standard output
    pydantic_models.py verdicts < documents         a line [accepted, [error types]] for each line [name, text]

The verdict is that of the strict mode for JSON: the lax one takes "1" for a number, which the schema does not.
"""

import dataclasses
import datetime
import decimal
import enum
import ipaddress
import json
import sys
import uuid
from typing import Annotated, Any, Generic, Literal, NamedTuple, Optional, TypeVar, Union

from pydantic import (
    AnyHttpUrl, AnyUrl, Base64Str, BaseModel, ConfigDict, EmailStr, Field, NonNegativeInt, PositiveFloat, RootModel,
    SecretStr, StringConstraints, TypeAdapter, ValidationError, conlist, constr,
)
from pydantic.alias_generators import to_camel
from typing_extensions import NotRequired, TypedDict


class Color(enum.Enum):
    red = "red"
    blue = "blue"


class Level(enum.IntEnum):
    low = 1
    high = 10


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = 9


class Dog(BaseModel):
    kind: Literal["dog"]
    tag: str | None = None


class Address(BaseModel):
    street: str = Field(max_length=255)
    zip: Optional[str] = None
    since: datetime.date | None = None


class Person(BaseModel):
    id: uuid.UUID
    name: Annotated[str, Field(pattern=r"^.{1,255}$")]
    mail: EmailStr
    age: int | str | None = None
    balance: decimal.Decimal = decimal.Decimal(0)
    home: Address | None = None
    pet: Annotated[Union[Cat, Dog], Field(discriminator="kind")] | None = None
    tags: list[str] = []
    limits: dict[str, float] = {}
    color: Color = Color.red
    site: AnyUrl | None = None
    pair: tuple[int, str] | None = None
    meta: object = None


class Is(BaseModel):
    op: Literal["is"]
    field: str
    value: str | int | bool | None


class And(BaseModel):
    op: Literal["and"]
    args: list["Rule"]


class Or(BaseModel):
    op: Literal["or"]
    args: list["Rule"]


class Not(BaseModel):
    op: Literal["not"]
    arg: "Rule"


Rule = Annotated[Union[Is, And, Or, Not], Field(discriminator="op")]


class Rules(BaseModel):
    name: str
    rule: Rule


for model in (And, Or, Not, Rules):
    model.model_rebuild()


class Container(BaseModel):
    image: constr(pattern=r"^[a-z0-9./-]+(:[\w.-]{1,128})?$")
    command: list[str] | None = None
    env: dict[str, str | int | bool] = {}
    cpu: PositiveFloat = 0.5
    memory_mb: Annotated[int, Field(ge=16, le=65536, multiple_of=16)] = 128


class Deployment(BaseModel):
    model_config = ConfigDict(extra="forbid")
    replicas: NonNegativeInt = 1
    level: Level = Level.low
    containers: dict[str, Container]
    timeout: datetime.timedelta | None = None
    started: datetime.datetime | None = None
    window: tuple[datetime.time, datetime.time] | None = None
    labels: dict[str, str] = {}


class Network(BaseModel):
    gateway: ipaddress.IPv4Address
    gateway6: ipaddress.IPv6Address | None = None
    ranges: list[ipaddress.IPv4Network] = []
    home: AnyHttpUrl | None = None
    ports: conlist(Annotated[int, Field(ge=1, le=65535)], min_length=1, max_length=4)


class Price(BaseModel):
    amount: Annotated[decimal.Decimal, Field(max_digits=8, decimal_places=2, ge=0)]
    discount: Annotated[float, Field(gt=0, lt=1)] | None = None
    currency: Annotated[str, StringConstraints(min_length=3, max_length=3, pattern="^[A-Z]*$")] = "EUR"
    steps: list[Annotated[float, Field(multiple_of=0.25)]] = []


class Flag(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, extra="forbid")
    is_enabled: bool
    default_value: bool | int | float | str | None
    rollout_percent: Annotated[int, Field(ge=0, le=100)] | None = None
    allowed_users: set[int] = set()
    owner_team: Literal["search", "pay", None] = None


class Tree(BaseModel):
    value: int | float
    left: Optional["Tree"] = None
    right: Optional["Tree"] = None
    children: dict[str, "Tree"] = {}


Item = TypeVar("Item")


class Page(BaseModel, Generic[Item]):
    items: list[Item]
    next: str | None = None
    total: Annotated[int, Field(ge=0)] | None = None


class Feature(TypedDict):
    name: str
    weight: NotRequired[float]


class Point(NamedTuple):
    x: int
    y: int
    label: str = ""


@dataclasses.dataclass
class Area:
    corner: Point
    features: list[Feature] = dataclasses.field(default_factory=list)
    note: str | None = None


class Areas(BaseModel):
    areas: dict[Annotated[str, Field(pattern="^[a-z]+$")], Area]
    main: Area | None = None


class Limits(RootModel[dict[str, int | None]]):
    pass


class Login(BaseModel):
    user: Annotated[str, StringConstraints(strip_whitespace=False, min_length=1, max_length=20)]
    password: SecretStr
    blob: Base64Str | None = None
    session: uuid.UUID | int | None = None
    expires: datetime.datetime | datetime.date | None = None


class Disk(BaseModel):
    type: Literal["disk"]
    path: str
    size: int | None = None


class Bucket(BaseModel):
    type: Literal["s3", "gcs"]
    bucket: str
    region: Literal["eu", "us"] | None = "eu"


class Source(BaseModel):
    name: str
    store: Annotated[Disk | Bucket, Field(discriminator="type")]


class Pipeline(BaseModel):
    sources: list[Source] = Field(min_length=1)
    sink: Disk | Bucket | None = None
    retry: int | Literal["forever"] = 3
    extra: Any = None
    matrix: list[list[int]] = []


MODELS = {
    "person": Person, "rules": Rules, "deployment": Deployment, "network": Network, "price": Price, "flag": Flag,
    "tree": Tree, "page": Page[Cat], "areas": Areas, "limits": Limits, "login": Login, "pipeline": Pipeline,
    "container": Container,
}


def verdict(adapter, text):
    try:
        adapter.validate_json(text, strict=True)
        return [True, []]
    except ValidationError as error:
        return [False, sorted({found["type"] for found in error.errors(include_url=False, include_context=False)})]


def main():
    adapters = {name: TypeAdapter(model) for name, model in MODELS.items()}
    if sys.argv[1] == "schemas":
        print(json.dumps({name: adapter.json_schema() for name, adapter in adapters.items()}))
        return
    for line in sys.stdin:
        name, text = json.loads(line)
        print(json.dumps(verdict(adapters[name], text)), flush=False)


main()
