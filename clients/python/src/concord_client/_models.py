"""Data as instances of pydantic models and of dataclasses, and the other way round.

Pydantic is needed for models only; dataclasses are read without it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import pathlib
import re
import sys
import types
import typing
import uuid
from collections import deque
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from enum import Enum
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple, Type, TypeVar, Union, cast

from ._errors import ModelError, with_attributes
from ._json import dumps

M = TypeVar("M")
_MASK = "**********"
"""What pydantic shows in place of a secret."""
_DECIMAL_DIGITS_MAX = 100
"""Up to how many digits a decimal is written without an exponent."""
_DIGITS_MAX = 4300
"""The digits of an integer that Python writes as a text."""


def _is_pydantic(model: Any) -> bool:
    # A model of pydantic exists only where pydantic was imported.
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and isinstance(model, type) and issubclass(model, pydantic.BaseModel)


def to_data(value: Any) -> Any:  # noqa: PLR0911 (one line for each kind of value)
    """The JSON of a pydantic model, a dataclass, or of what is JSON already."""
    kind = type(value)
    if _is_pydantic(kind) or (dataclasses.is_dataclass(kind) and hasattr(kind, "__pydantic_validator__")):
        return _written(value, _dumped(_adapter(cast(Any, kind)), value, ""), "", False)
    if dataclasses.is_dataclass(kind):
        return {each.name: to_data(getattr(value, each.name)) for each in dataclasses.fields(value)}
    if _is_secret(value):
        return _open(value, "")
    if isinstance(value, Enum):
        return to_data(value.value)
    if isinstance(value, dict):
        return {name: to_data(member) for name, member in value.items()}
    if isinstance(value, (list, tuple, deque)):
        return [to_data(element) for element in value]
    if isinstance(value, (set, frozenset)):
        return _ordered([to_data(element) for element in value])
    for of, text, _ in _TEXTS:
        if isinstance(value, of):
            return text(value)
    return value


def _ordered(elements: List[Any]) -> List[Any]:
    """Elements of a set, which have another order in each process: the same set is the same list."""
    return sorted(elements, key=dumps)


# --- What pydantic writes -------------------------------------------------------------------------------------------
#
# Its JSON is made for people to look at, too: it masks secrets, has computed fields, leaves fields out, and names
# members as others are to see them. Data are what the model reads back.


def _is_secret(value: Any) -> bool:
    pydantic = sys.modules.get("pydantic")
    if pydantic is None:
        return False
    kinds = [getattr(pydantic, name, None) for name in ("SecretStr", "SecretBytes", "Secret")]
    return isinstance(value, tuple(kind for kind in kinds if kind is not None))


def _open(secret: Any, path: str) -> Any:
    value = secret.get_secret_value()
    if not isinstance(value, bytes):
        return to_data(value)
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise _fail(path, "the secret has bytes that are no UTF-8, which JSON can't hold") from None


def _dumped(adapter: Any, value: Any, path: str) -> Any:
    try:
        return adapter.dump_python(value, mode="json", by_alias=True)
    except sys.modules["pydantic_core"].PydanticSerializationError as error:
        raise _fail(path, str(error)) from error


def _written(raw: Any, dumped: Any, path: str, keeps_numbers: bool) -> Any:  # noqa: PLR0911 (one for each kind)
    """What pydantic made of a value, with what it hides from people.

    `keeps_numbers` is of a place that no `Decimal` is declared at: one that is there was a number in the data.
    """
    if _is_secret(raw):
        # A serializer of the model's own may have said something else.
        return _open(raw, path) if dumped in (_MASK, "", str(raw)) else dumped
    if isinstance(raw, Decimal) and isinstance(dumped, str):
        # The pattern of a field with bounds on its digits has no exponent.
        return raw if keeps_numbers else format(raw, "f") if abs(raw.adjusted()) < _DECIMAL_DIGITS_MAX else dumped
    fields = _fields_of(raw)
    if fields is not None and isinstance(dumped, dict):
        return _written_fields(raw, fields, dumped, path)
    if fields is not None and set(fields) == {"root"}:
        return _written(raw.root, dumped, path, _has_no_decimal(fields["root"]))
    if isinstance(raw, dict) and isinstance(dumped, dict) and len(raw) == len(dumped):
        pairs = zip(dumped.items(), raw.values())
        return {name: _written(each, member, f"{path}/{name}", keeps_numbers) for (name, member), each in pairs}
    if isinstance(raw, (list, tuple, set, frozenset, deque)) and isinstance(dumped, list) and len(raw) == len(dumped):
        elements = [
            _written(each, element, f"{path}/{place}", keeps_numbers)
            for place, (each, element) in enumerate(zip(raw, dumped))
        ]
        return _ordered(elements) if isinstance(raw, (set, frozenset)) else elements
    _check_mask(raw, dumped, path)
    return dumped


def _check_mask(raw: Any, dumped: Any, path: str) -> None:
    if _has_mask(dumped) and _has_secret(raw):
        text = "a serializer of the model masks a secret: let it return get_secret_value(), or write a dict"
        raise _fail(path, text)


def _fields_of(value: Any) -> Optional[Dict[str, Any]]:
    """The fields of a model or a dataclass of pydantic; of other dataclasses as far as they are like those."""
    if _is_pydantic(type(value)):
        return cast(Dict[str, Any], type(value).model_fields)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        of_pydantic = getattr(type(value), "__pydantic_fields__", None)
        return cast(Dict[str, Any], of_pydantic or {each.name: None for each in dataclasses.fields(value)})
    return None


def _written_fields(raw: Any, fields: Dict[str, Any], dumped: Dict[str, Any], path: str) -> Dict[str, Any]:
    made: Dict[str, Any] = {}
    rest = dict(dumped)
    for name, field in fields.items():
        value = getattr(raw, name)
        shown = name if field is None else field.serialization_alias or field.alias or name
        read = name if field is None else _read_name(name, field)
        if shown in rest:
            member = rest.pop(shown)
        elif field is not None and field.exclude and name in getattr(raw, "__pydantic_fields_set__", fields):
            # It came with the data: to leave it out would delete it.
            member = _dumped(_adapter_of_field(cast(Any, type(raw)), name), value, f"{path}/{name}")
        else:
            continue
        if read is None:
            raise _fail(f"{path}/{name}", "the field is read from inside of another member, so it can't be written")
        made[read] = _written(value, member, f"{path}/{read}", _has_no_decimal(field))
    decorators = getattr(type(raw), "__pydantic_decorators__", None)
    for name, computed in getattr(decorators, "computed_fields", {}).items():
        rest.pop(computed.info.alias or name, None)
    # What is left are members that the model does not name, and what a serializer of its own adds.
    extra = getattr(raw, "__pydantic_extra__", None) or {}
    _check_mask(raw, {name: member for name, member in rest.items() if name not in extra}, path)
    made.update({name: _written(extra.get(name, each), each, f"{path}/{name}", True) for name, each in rest.items()})
    return made


def _has_no_decimal(field: Any) -> bool:
    # Where the name of a type hides it, the number is as good by the schema as the text.
    return field is None or "Decimal" not in repr(field.annotation)


def _read_name(name: str, field: Any) -> Optional[str]:
    """The member that a field is read from, as its schema names it."""
    alias = field.validation_alias or field.alias
    if alias is None or isinstance(alias, str):
        return alias or name
    choices = getattr(alias, "choices", [alias])
    for choice in choices:
        path = [choice] if isinstance(choice, str) else choice.path
        if len(path) == 1 and isinstance(path[0], str):
            return path[0]
    return None


@functools.lru_cache(maxsize=256)
def _adapter(kind: Any) -> Any:
    return sys.modules["pydantic"].TypeAdapter(kind)


@functools.lru_cache(maxsize=256)
def _adapter_of_field(kind: Any, name: str) -> Any:
    field = (kind.model_fields if _is_pydantic(kind) else kind.__pydantic_fields__)[name]
    annotation = field.annotation
    for each in field.metadata:
        annotation = typing.Annotated[annotation, each]
    return sys.modules["pydantic"].TypeAdapter(annotation)


def _inside(value: Any) -> Iterable[Any]:
    fields = _fields_of(value)
    if fields is not None:
        return [getattr(value, name, None) for name in fields]
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, (list, tuple, set, frozenset, deque)) else ()


def _has_secret(value: Any) -> bool:
    return _is_secret(value) or any(map(_has_secret, _inside(value)))


def _has_mask(dumped: Any) -> bool:
    return (isinstance(dumped, str) and _MASK in dumped) or any(map(_has_mask, _inside(dumped)))


def from_data(model: Type[M], data: Any) -> M:
    """An instance of a pydantic model or a dataclass."""
    if _is_pydantic(model):
        return cast(M, _from_pydantic(model, data))
    if dataclasses.is_dataclass(model):
        if hasattr(model, "__pydantic_validator__"):
            return cast(M, _from_pydantic(model, data))
        return cast(M, _read(model, data, ""))
    if model is dict and isinstance(data, dict):
        return cast(M, data)
    raise TypeError(f"{model!r} is neither a pydantic model nor a dataclass")


def _from_pydantic(model: Any, data: Any) -> Any:
    pydantic = sys.modules["pydantic"]
    try:
        return _adapter(model).validate_python(data)
    except pydantic.ValidationError as error:
        with contextlib.suppress(pydantic.ValidationError):
            # A strict model takes the text of a time, of a UUID or of an enum from JSON only.
            return _adapter(model).validate_json(dumps(data))
        places = ["".join(f"/{part}" for part in item["loc"]) for item in error.errors(include_url=False)]
        told = "; ".join(f"{place}: {item['msg']}" for place, item in zip(places, error.errors(include_url=False)))
        raise with_attributes(ModelError(f"{model.__name__}: {told}"), {"paths": tuple(places)}) from error


def schema_of(model: Any) -> Dict[str, Any]:
    """The JSON Schema of the data that are written of a pydantic model, or of a dataclass where pydantic is installed.

    A `Decimal` is a number, or a text that the schema holds to the digits and the sign of its field.
    """
    if not _is_pydantic(model) and not dataclasses.is_dataclass(model):
        raise TypeError(f"{model!r} is neither a pydantic model nor a dataclass")
    try:
        import pydantic  # noqa: PLC0415
    except ImportError as error:
        needed = "the schema of a dataclass needs pydantic: pip install 'concord-config-client[pydantic]'"
        raise ModelError(needed) from error

    return pydantic.TypeAdapter(cast(Any, model)).json_schema(by_alias=True, schema_generator=_generator())


@functools.lru_cache(maxsize=1)
def _generator() -> Any:
    from pydantic.json_schema import GenerateJsonSchema  # noqa: PLC0415

    class Generator(GenerateJsonSchema):
        def decimal_schema(self, schema: Any) -> Dict[str, Any]:
            made = super().decimal_schema(schema)
            for choice in made.get("anyOf", ()):
                if choice.get("type") == "string":
                    choice["pattern"] = _decimal_pattern(schema)
            return made

    return Generator


def _decimal_pattern(schema: Any) -> str:
    """What the text of a decimal looks like: its sign and its digits. Bounds other than 0 have no pattern."""
    lower = [Decimal(schema[name]) for name in ("gt", "ge") if schema.get(name) is not None]
    upper = [Decimal(schema[name]) for name in ("lt", "le") if schema.get(name) is not None]
    sign = "-?"
    if any(bound >= 0 for bound in lower):
        sign = ""
    elif any(bound < 0 or (bound == 0 and schema.get("lt") is not None) for bound in upper):
        sign = "-"
    places, digits = schema.get("decimal_places"), schema.get("max_digits")
    if places is None and digits is None:
        return rf"^{sign}[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]{{1,4}})?$"
    most = digits if places is None else places
    whole = "[0-9]+" if digits is None else f"0*[0-9]{{1,{max(1, digits - (places or 0))}}}"
    if not most:
        return f"^{sign}{whole}$"
    return rf"^{sign}{whole}(\.[0-9]{{1,{most}}}0*)?$"


def _fail(path: str, message: str) -> ModelError:
    error = ModelError(f"{path or '/'}: {message}")
    error.paths = (path,)
    return error


def _read(kind: Any, value: Any, path: str) -> Any:  # noqa: PLR0911, PLR0912 (one line for each kind of type)
    """A value as a type says it."""
    origin, inside = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return value
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _read_dataclass(kind, value, path)
    if origin is Union or (sys.version_info >= (3, 10) and origin is types.UnionType):
        for choice in inside:
            try:
                return _read(choice, value, path)
            except ModelError:
                continue
        raise _fail(path, f"{value!r} is none of {kind}")
    if origin is typing.Literal:
        if any(value == choice and type(value) is type(choice) for choice in inside):
            return value
        raise _fail(path, f"{value!r} is none of {inside}")
    if kind is type(None):
        if value is None:
            return None
        raise _fail(path, f"expected null, not {value!r}")
    if isinstance(kind, type) and issubclass(kind, Enum):
        try:
            return kind(value)
        except ValueError:
            raise _fail(path, f"{value!r} is none of {[each.value for each in kind]}") from None
    if (origin or kind) in (list, tuple, set, frozenset, deque):
        if not isinstance(value, list):
            raise _fail(path, f"expected a list, not {value!r}")
        elements: Any = [inside[0] if inside else Any] * len(value)
        if (origin or kind) is tuple and inside and inside[-1] is not ...:
            elements = inside
        if len(elements) != len(value):
            raise _fail(path, f"expected {len(elements)} elements, not {len(value)}")
        found = [_read(elements[place], each, f"{path}/{place}") for place, each in enumerate(value)]
        return cast(Any, origin or kind)(found)
    if origin is dict or kind is dict:
        if not isinstance(value, dict):
            raise _fail(path, f"expected an object, not {value!r}")
        member = inside[1] if inside else Any
        return {name: _read(member, each, f"{path}/{name}") for name, each in value.items()}
    if isinstance(value, (int, float, Decimal)) and not isinstance(value, bool):
        number = _read_number(kind, value)
        if number is not None:
            return number
    if isinstance(value, str) and kind in _READ:
        try:
            return _READ[kind](value)
        except ValueError as error:
            raise _fail(path, f"{value!r} is no {kind.__name__}: {error}") from None
    if isinstance(kind, type) and isinstance(value, kind) and (kind is bool) == isinstance(value, bool):
        return value
    raise _fail(path, f"expected {getattr(kind, '__name__', kind)}, not {value!r}")


def _read_dataclass(kind: Any, value: Any, path: str) -> Any:
    if not isinstance(value, dict):
        raise _fail(path, f"expected an object, not {value!r}")
    hints = typing.get_type_hints(kind)
    members = {}
    for each in dataclasses.fields(kind):
        if not each.init:
            continue
        if each.name in value:
            members[each.name] = _read(hints[each.name], value[each.name], f"{path}/{each.name}")
        elif each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING:
            raise _fail(f"{path}/{each.name}", "is missing")
    return kind(**members)


def _read_number(kind: Any, value: Union[int, float, Decimal]) -> Any:
    """A number as a type of numbers holds it: the whole number 7.0 is an int. None where the type can't hold it."""
    if kind is int:
        if isinstance(value, Decimal):
            is_whole = value.adjusted() < _DIGITS_MAX and value == value.to_integral_value()
            return int(value) if is_whole else None
        return int(value) if isinstance(value, int) or value.is_integer() else None
    if kind is float:
        try:
            number = float(value)
        except OverflowError:
            return None
        return number if abs(number) != float("inf") else None
    if kind is Decimal:
        # A float has the digits that it was written with.
        return value if isinstance(value, Decimal) else Decimal(repr(value))
    return None


_DURATION = re.compile(
    r"([+-])?P(?:(\d+)W)?(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)(?:\.(\d{1,6})\d*)?S)?)?", re.ASCII
)


def _duration(value: timedelta) -> str:
    """As pydantic writes it: ISO 8601."""
    sign, value = ("-", -value) if value < timedelta(0) else ("", value)
    minutes, seconds = divmod(value.seconds, 60)
    hours, minutes = divmod(minutes, 60)
    digits = f".{value.microseconds:06}".rstrip("0").rstrip(".")
    parts = "".join(
        f"{text}{unit}"
        for text, unit in ((hours, "H"), (minutes, "M"), (f"{seconds}{digits}" if seconds or digits else 0, "S"))
        if text
    )
    days = f"{value.days}D" if value.days else ""
    return f"{sign}P{days}T{parts}" if parts else f"{sign}P{days or 'T0S'}"


def _read_duration(text: str) -> timedelta:
    found = _DURATION.fullmatch(text)
    if found is None or text[-1] in "PT":
        raise ValueError("expected a duration of ISO 8601 as P1DT2H")
    sign, weeks, days, hours, minutes, seconds, digits = found.groups()
    value = timedelta(
        weeks=int(weeks or 0),
        days=int(days or 0),
        hours=int(hours or 0),
        minutes=int(minutes or 0),
        seconds=int(seconds or 0),
        microseconds=int((digits or "0").ljust(6, "0")),
    )
    return -value if sign == "-" else value


def _time_text(value: Union[datetime, time]) -> str:
    text = value.isoformat()
    return text[:-6] + "Z" if text.endswith("+00:00") else text


def _without_z(text: str) -> str:
    # `fromisoformat` knows `Z` from Python 3.11 on.
    return text[:-1] + "+00:00" if text[-1:] in ("Z", "z") else text


_TEXTS: Tuple[Tuple[Type[Any], Callable[[Any], str], Callable[[str], Any]], ...] = (
    # A datetime is a date, too.
    (datetime, _time_text, lambda text: datetime.fromisoformat(_without_z(text))),
    (date, date.isoformat, date.fromisoformat),
    (time, _time_text, lambda text: time.fromisoformat(_without_z(text))),
    (timedelta, _duration, _read_duration),
    (uuid.UUID, str, uuid.UUID),
    (pathlib.Path, str, pathlib.Path),
    (bytes, bytes.decode, str.encode),
)
"""What JSON has as a text: a type of Python, how it is written, how it is read."""


def _read_decimal(text: str) -> Decimal:
    try:
        value = Decimal(text)
    except InvalidOperation:
        raise ValueError("expected the digits of a number") from None
    if not value.is_finite():
        raise ValueError("expected a finite number")
    return value


_READ: Dict[Any, Callable[[str], Any]] = {**{kind: read for kind, _, read in _TEXTS}, Decimal: _read_decimal}
