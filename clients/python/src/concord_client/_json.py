"""JSON whose numbers keep their value, and data that nobody can change by accident.

A number that a float would round or lose (`0.1000000000000000055511151231257827`, `1e400`) is read as a
`decimal.Decimal` and written with all its digits, and so is an integer with more digits than Python converts. A number
that a `Decimal` cannot hold either (`1e1000000000000000000`) is an `ExactNumber`: its text. Every other number is an
`int` or a `float`.

**Invariant:** whatever a node stores can be read, and what is read and written back has the same numbers. `NaN` and
infinities are refused, as JSON has none.
"""

from __future__ import annotations

import json
import re
from decimal import Decimal, InvalidOperation
from json.encoder import encode_basestring
from typing import Any, Callable, Dict, List, NoReturn, Tuple

_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")


class ExactNumber:
    """A number of JSON that no type of Python can hold, as its text: its exponent has more than 18 digits.

    Equal to one with the same digits and exponent; it is written as it was read, and it can't be computed with.
    """

    __slots__ = ("text",)
    text: str

    def __init__(self, text: str) -> None:
        if not _NUMBER.fullmatch(text):
            raise ValueError(f"{text!r} is not a number of JSON")
        object.__setattr__(self, "text", text)

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError("an ExactNumber can't be changed")

    def __eq__(self, other: object) -> bool:
        return self._parts() == other._parts() if isinstance(other, ExactNumber) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._parts())

    def _parts(self) -> str:
        return self.text.lower().replace("+", "")

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"ExactNumber({self.text!r})"

    def __reduce__(self) -> Tuple[Any, ...]:
        return (ExactNumber, (self.text,))


def _number(text: str) -> Any:
    value = float(text)
    try:
        exact = Decimal(text)
    except InvalidOperation:
        return ExactNumber(text)
    if value in (float("inf"), float("-inf")) or Decimal(repr(value)) != exact:
        return exact
    return value


def _integer(text: str) -> Any:
    try:
        return int(text)
    except ValueError:
        # Python converts at most 4300 digits unless it is told otherwise.
        return Decimal(text)


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def loads(text: str | bytes) -> Any:
    return json.loads(text, parse_float=_number, parse_int=_integer, parse_constant=_refuse)


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
    elif isinstance(value, ExactNumber):
        out(value.text)
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
