"""JSON whose numbers keep their value, and data that nobody can change by accident.

A number that a float would round or lose (`0.1000000000000000055511151231257827`, `1e400`) is read as a
`decimal.Decimal` and written with all its digits; every other number is an `int` or a `float`.

**Invariant:** what is read and written back has the same numbers. `NaN` and infinities are refused, as JSON has none.
"""

from __future__ import annotations

import json
from decimal import Decimal
from json.encoder import encode_basestring
from typing import Any, Callable, Dict, List, NoReturn, Tuple


def _number(text: str) -> Any:
    value = float(text)
    exact = Decimal(text)
    if value in (float("inf"), float("-inf")) or Decimal(repr(value)) != exact:
        return exact
    return value


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def loads(text: str | bytes) -> Any:
    return json.loads(text, parse_float=_number, parse_constant=_refuse)


def dumps(value: Any) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except TypeError:
        # The encoder of the standard library has no place for a Decimal.
        parts: List[str] = []
        _write(value, parts.append)
        return "".join(parts).encode()


def _write(value: Any, out: Callable[[str], None]) -> None:
    if isinstance(value, Decimal):
        if not value.is_finite():
            raise ValueError(f"{value} is no JSON")
        out(str(value))
    elif isinstance(value, dict):
        out("{")
        for place, (name, member) in enumerate(value.items()):
            if not isinstance(name, str):
                raise TypeError(f"the name of a member must be a str, not {type(name).__name__}")
            out(("," if place else "") + encode_basestring(name) + ":")
            _write(member, out)
        out("}")
    elif isinstance(value, (list, tuple)):
        out("[")
        for place, element in enumerate(value):
            if place:
                out(",")
            _write(element, out)
        out("]")
    else:
        out(json.dumps(value, ensure_ascii=False, allow_nan=False))


class _ReadOnly:
    """What the two containers share."""

    __slots__ = ()

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("data in the cache can't be changed; copy.deepcopy() gives a copy that can")

    def __deepcopy__(self, memo: Dict[int, Any]) -> Any:
        return thawed(self)

    def __copy__(self) -> Any:
        return self.__reduce__()[1][0]

    def __reduce__(self) -> Tuple[Any, ...]:
        raise NotImplementedError


class FrozenDict(_ReadOnly, Dict[str, Any]):
    """A `dict` that can't be changed. Equal to, and written as, the `dict` with the same members."""

    __slots__ = ()
    __setitem__ = __delitem__ = update = pop = popitem = clear = setdefault = _ReadOnly._refuse
    __ior__ = _ReadOnly._refuse

    def __reduce__(self) -> Tuple[Any, ...]:
        return (dict, (dict(self),))

    def copy(self) -> Dict[str, Any]:
        return dict(self)


class FrozenList(_ReadOnly, List[Any]):
    """A `list` that can't be changed. Equal to, and written as, the `list` with the same elements."""

    __slots__ = ()
    __setitem__ = __delitem__ = append = extend = insert = remove = _ReadOnly._refuse
    pop = clear = sort = reverse = _ReadOnly._refuse
    __iadd__ = __imul__ = _ReadOnly._refuse

    def __reduce__(self) -> Tuple[Any, ...]:
        return (list, (list(self),))

    def copy(self) -> List[Any]:
        return list(self)


def frozen(value: Any) -> Any:
    """The same data in containers that can't be changed."""
    if isinstance(value, dict):
        return FrozenDict({name: frozen(member) for name, member in value.items()})
    if isinstance(value, list):
        return FrozenList([frozen(element) for element in value])
    return value


def thawed(value: Any) -> Any:
    """A copy of the data in plain containers."""
    if isinstance(value, dict):
        return {name: thawed(member) for name, member in value.items()}
    if isinstance(value, list):
        return [thawed(element) for element in value]
    return value
