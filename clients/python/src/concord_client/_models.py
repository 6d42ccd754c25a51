"""Data as instances of pydantic models and of dataclasses, and the other way round.

Pydantic is needed for models only; dataclasses are read without it.
"""

from __future__ import annotations

import dataclasses
import sys
import types
import typing
from enum import Enum
from typing import Any, Dict, Type, TypeVar, Union, cast

from ._errors import ModelError, with_attributes

M = TypeVar("M")


def _is_pydantic(model: Any) -> bool:
    # A model of pydantic exists only where pydantic was imported.
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and isinstance(model, type) and issubclass(model, pydantic.BaseModel)


def to_data(value: Any) -> Any:
    """The JSON of a pydantic model, a dataclass, or of what is JSON already."""
    if _is_pydantic(type(value)):
        return value.model_dump(mode="json", by_alias=True)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: to_data(getattr(value, each.name)) for each in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return to_data(value.value)
    if isinstance(value, dict):
        return {name: to_data(member) for name, member in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_data(element) for element in value]
    return value


def from_data(model: Type[M], data: Any) -> M:
    """An instance of a pydantic model or a dataclass."""
    if _is_pydantic(model):
        return cast(M, _from_pydantic(model, data))
    if dataclasses.is_dataclass(model):
        return cast(M, _read(model, data, ""))
    if model is dict and isinstance(data, dict):
        return cast(M, data)
    raise TypeError(f"{model!r} is neither a pydantic model nor a dataclass")


def _from_pydantic(model: Any, data: Any) -> Any:
    pydantic = sys.modules["pydantic"]
    try:
        return model.model_validate(data)
    except pydantic.ValidationError as error:
        places = ["".join(f"/{part}" for part in item["loc"]) for item in error.errors(include_url=False)]
        told = "; ".join(f"{place}: {item['msg']}" for place, item in zip(places, error.errors(include_url=False)))
        raise with_attributes(ModelError(f"{model.__name__}: {told}"), {"paths": tuple(places)}) from error


def schema_of(model: Any) -> Dict[str, Any]:
    """The JSON Schema of a pydantic model, or of a dataclass where pydantic is installed."""
    if _is_pydantic(model):
        return cast(Dict[str, Any], model.model_json_schema(by_alias=True))
    if dataclasses.is_dataclass(model):
        try:
            import pydantic  # noqa: PLC0415
        except ImportError as error:
            raise ModelError(
                "the schema of a dataclass needs pydantic: pip install 'concord-client[pydantic]'"
            ) from error
        return pydantic.TypeAdapter(cast(Any, model)).json_schema(by_alias=True)
    raise TypeError(f"{model!r} is neither a pydantic model nor a dataclass")


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
    if origin in (list, tuple) or kind in (list, tuple):
        if not isinstance(value, list):
            raise _fail(path, f"expected a list, not {value!r}")
        element = inside[0] if inside else Any
        found = [_read(element, each, f"{path}/{place}") for place, each in enumerate(value)]
        return tuple(found) if (origin or kind) is tuple else found
    if origin is dict or kind is dict:
        if not isinstance(value, dict):
            raise _fail(path, f"expected an object, not {value!r}")
        member = inside[1] if inside else Any
        return {name: _read(member, each, f"{path}/{name}") for name, each in value.items()}
    if kind is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
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
