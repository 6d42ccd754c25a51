"""JSON whose numbers keep their value, and data that nobody can change by accident.

A number that a float would round or lose (`0.1000000000000000055511151231257827`, `1e400`) is read as a
`decimal.Decimal` and written with all its digits, and so is an integer with more digits than Python converts. A number
that a `Decimal` cannot hold either (`1e1000000000000000000`) is an `ExactNumber`: its text. Every other number is an
`int` or a `float`.

**Invariant:** whatever a node stores can be read, and what is read and written back has the same numbers. What JSON
does not have is refused with its place: `NaN` and infinities, and members whose names are no `str`, which would be
turned into texts.
"""

from __future__ import annotations

import json
import math
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
    except UnicodeEncodeError:
        raise
    except (TypeError, ValueError) as error:
        if "Circular" in str(error):
            raise
        # The encoder of the standard library has no place for a Decimal, and names none in its errors.
        parts: List[str] = []
        _write(value, parts.append, ())
        return "".join(parts).encode()


def check_names(value: Any, place: Tuple[str, ...] = ()) -> None:
    """Refuses members whose names are no texts: the encoder of the standard library makes a text of `1`, `True` and
    `None`, so that they are read back as others, and two may become one."""
    if isinstance(value, dict):
        for name, member in value.items():
            _check_name(name, place)
            check_names(member, (*place, name))
    elif isinstance(value, (list, tuple)):
        for position, element in enumerate(value):
            check_names(element, (*place, str(position)))


def _check_name(name: Any, place: Tuple[str, ...]) -> None:
    if not isinstance(name, str):
        told = f"the name of a member must be a str, not the {type(name).__name__} {name!r}"
        raise TypeError(_told(place, told))


def _told(place: Tuple[str, ...], message: str) -> str:
    pointer = "".join("/" + part.replace("~", "~0").replace("/", "~1") for part in place)
    return f"{pointer}: {message}" if pointer else message


def _write(value: Any, out: Callable[[str], None], place: Tuple[str, ...]) -> None:
    if isinstance(value, Decimal):
        if not value.is_finite():
            raise ValueError(_told(place, f"{value} is no JSON"))
        out(str(value))
    elif isinstance(value, ExactNumber):
        out(value.text)
    elif isinstance(value, dict):
        out("{")
        for position, (name, member) in enumerate(value.items()):
            _check_name(name, place)
            out(("," if position else "") + encode_basestring(name) + ":")
            _write(member, out, (*place, name))
        out("}")
    elif isinstance(value, (list, tuple)):
        out("[")
        for position, element in enumerate(value):
            if position:
                out(",")
            _write(element, out, (*place, str(position)))
        out("]")
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(_told(place, f"{value} is no JSON"))
    else:
        try:
            out(json.dumps(value, ensure_ascii=False))
        except TypeError:
            raise TypeError(_told(place, f"an instance of {type(value).__name__} is no JSON")) from None


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
